// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// ReduceOp: how a collective makes one element of those of all ranks.
#pragma once

#include <cstdint>
#include <string>

#include <farspan/c10d/group/dtype_info.h>

namespace farspan::dist {

// Sums, products and the like are formed in the order of the ranks where all share a host, and in
// the order that c10d/backends/README.md names elsewhere: always the same one, and every rank gets
// the same bits. Elements of float16, bfloat16 and complex32 are added in float32 and rounded at
// the end of each such step.
//
//   bool      SUM and MAX are "any", PRODUCT and MIN are "all"; no AVG, no PREMUL_SUM
//   integers  wrap around; no AVG, no PREMUL_SUM
//   complex   SUM, AVG, PRODUCT, PREMUL_SUM
//   BAND BOR BXOR   integers and bool
// Types of less than 16 bits but int8, uint8 and bool are moved, and not reduced.
//
// Threading: a value.
struct ReduceOp {
  enum Kind : uint8_t {
    kSum = 0,
    kAvg = 1,
    kProduct = 2,
    kMin = 3,
    kMax = 4,
    kBand = 5,
    kBor = 6,
    kBxor = 7,
    kPremulSum = 8,
  };

  constexpr ReduceOp(Kind of = kSum) noexcept : kind(of) {}  // meant to convert

  // Each rank's elements times a factor of its own, which are rounded to their type, then SUM.
  static constexpr ReduceOp premul_sum(double factor) noexcept {
    ReduceOp op(kPremulSum);
    op.factor = factor;
    return op;
  }

  Kind kind;
  double factor = 1;  // of PREMUL_SUM
};

// "SUM".
std::string_view name_of(ReduceOp::Kind op) noexcept;

// Why `op` has no meaning for elements of this type; empty: it has.
std::string why_not(ReduceOp::Kind op, DType type);

}  // namespace farspan::dist
