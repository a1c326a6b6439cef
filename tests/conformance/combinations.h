// What the cases combine: operations, types and sizes, over the worlds of kWorlds.
#pragma once

#include <compare>
#include <iterator>

#include "conformance/collective_suite.h"

namespace farspan::testing {

inline constexpr at::ScalarType kTypes[] = {
    at::kByte,          at::kChar,   at::kShort,  at::kInt,   at::kLong,        at::kHalf,
    at::kBFloat16,      at::kFloat,  at::kDouble, at::kBool,  at::kComplexHalf, at::kComplexFloat,
    at::kComplexDouble, at::kUInt16, at::kUInt32, at::kUInt64};
inline constexpr dist::ReduceOp::Kind kOps[] = {
    dist::ReduceOp::kSum, dist::ReduceOp::kAvg,  dist::ReduceOp::kProduct,
    dist::ReduceOp::kMin, dist::ReduceOp::kMax,  dist::ReduceOp::kBand,
    dist::ReduceOp::kBor, dist::ReduceOp::kBxor, dist::ReduceOp::kPremulSum};

// Elements, and what they come after: so many times what travels with a call, and so many chunks.
struct Size {
  int64_t elements;
  int small = 0;
  int chunks = 0;

  // In elements, where a chunk has so many bytes.
  int64_t of(at::ScalarType type, int64_t chunk) const {
    const auto element = static_cast<int64_t>(c10::elementSize(type));
    return ((int64_t{small} << 13) + chunks * chunk) / element + elements;
  }
};
// The last is of more chunks than a rank may be ahead of the others, and ends in a short one.
inline constexpr Size kSizes[] = {{0},      {1},        {7},       {-1, 1},   {0, 1},   {1, 1},
                                  {20'001}, {-1, 0, 1}, {0, 0, 1}, {1, 0, 1}, {5, 0, 4}};

// By a table of the tests, and not by what the product says.
bool has_meaning(dist::ReduceOp::Kind op, at::ScalarType type);

// Call `body` with each operation and type that make sense, and with each type, and sizes in turn:
// every pair of two of them is met, over all worlds of more than one rank; and each with each
// world. With FARSPAN_ALL_COMBINATIONS set, all of them in each.
void for_reductions(
    int ranks, const std::function<void(dist::ReduceOp::Kind, at::ScalarType, const Size&)>& body);
void for_moves(int ranks, const std::function<void(at::ScalarType, const Size&)>& body);

// For forms of operations that share their ways with others: types of each kind, with all sizes but
// the last, which is large, and may take long; with that one in some of the worlds each.
inline constexpr at::ScalarType kSomeTypes[] = {at::kFloat,    at::kDouble, at::kHalf,
                                                at::kBFloat16, at::kLong,   at::kComplexFloat};
void for_some_types(int ranks, const std::vector<Size>& sizes,
                    const std::function<void(at::ScalarType, const Size&)>& body);

}  // namespace farspan::testing
