// Collectives conformance: what every backend must do, written once. A test file instantiates
// CollectiveSuite with the backends it knows. The rules: c10d/group/collectives.h.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <farspan/c10d/group/collectives.h>

#include "support/errors.h"
#include "support/sanitizers.h"

namespace farspan::testing {

// Runs `body` on each of `ranks` ranks, at once, with their group as the default group.
using RunRanks =
    std::function<void(int ranks, Millis timeout, const std::function<void(int rank)>& body)>;

// In bytes, what a backend moves at once; see c10d/backends/README.md.
struct Chunk {
  int64_t block;  // of what one rank has for all, or all for one
  int64_t part;   // of what one rank has for another
  int64_t slice;  // of what one rank reduces
};

struct BackendKind {
  std::string name;
  RunRanks run;
  std::function<Chunk(int ranks)> chunk;
  bool names_hosts = true;  // false where all ranks are of one process by nature
  // Sums are formed within each host first; see c10d/backends/README.md.
  std::function<std::string(int rank)> host_of = [](int) { return ""; };
  // A send of a small tensor does not wait for its receive.
  bool keeps_small_messages = true;
  // Not empty: this machine has not what it needs.
  std::function<std::string()> why_not = [] { return ""; };
};
inline void PrintTo(const BackendKind& kind, std::ostream* out) { *out << kind.name; }

// The first of one rank.
inline constexpr int kAllWorlds[] = {1, 2, 3, 4, 7, 8};
inline constexpr int kFewWorlds[] = {1, 2, 3, 5};  // AddressSanitizer makes each rank slow
inline constexpr std::span<const int> kWorlds =
    kAddressSanitizer ? std::span<const int>(kFewWorlds) : kAllWorlds;

// Else of operations, types and sizes only enough are met that each pair is.
inline bool all_combinations() { return std::getenv("FARSPAN_ALL_COMBINATIONS") != nullptr; }

class CollectiveSuite : public ::testing::TestWithParam<BackendKind> {
 protected:
  void SetUp() override {
    if (const std::string why = GetParam().why_not(); !why.empty()) GTEST_SKIP() << why;
  }
  void on_each(int ranks, const std::function<void(int rank)>& body,
               Millis timeout = std::chrono::seconds(60)) {
    GetParam().run(ranks, timeout, body);
  }

  // What matches the name of a rank in errors: "rank 1 (host:pid)".
  static std::string who(int rank) {
    return "rank " + std::to_string(rank) + (GetParam().names_hosts ? " [(][^ )]+:[0-9]+[)]" : "");
  }
};

// Inputs are the same again after so many elements, which no chunk is a multiple of, so that large
// ones, and what is expected of them, take little time.
inline constexpr int64_t kRepeated = 15 * 1024;
inline at::Tensor repeated(const at::Tensor& first, int64_t count) {
  const at::Tensor all = at::empty({count}, first.options());
  for (const at::Tensor& piece : all.split(kRepeated)) {
    piece.copy_(first.narrow(0, 0, piece.numel()));
  }
  return all;
}

// What rank `rank` has as input number `salt`: small whole numbers, so that sums and products of
// eight ranks are exact in every type.
inline at::Tensor input_of(int rank, int64_t count, at::ScalarType type, int64_t salt = 0) {
  if (count > kRepeated) return repeated(input_of(rank, kRepeated, type, salt), count);
  const at::Tensor index = at::arange(count, at::kLong) + (rank + 1) * 7 + salt * 3;
  at::Tensor small = (index * index) % 5;
  if (type == at::kBool) return (index % 3 == 0);
  if (c10::isComplexType(type)) {
    const at::Tensor real = small.to(at::kFloat), imaginary = ((index % 3) - 1).to(at::kFloat);
    return at::complex(real, imaginary).to(type);
  }
  if (type != at::kByte && type != at::kUInt16 && type != at::kUInt32 && type != at::kUInt64) {
    small = small - 2;
  }
  return small.to(type);
}

inline std::vector<at::Tensor> inputs(int ranks, int64_t count, at::ScalarType type,
                                      int64_t salt = 0) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(input_of(rank, count, type, salt));
  return all;
}

// LibTorch compares no unsigned numbers of more than a byte, and no complex ones of halves.
inline bool same(const at::Tensor& one, const at::Tensor& other) {
  if (one.scalar_type() != other.scalar_type()) return false;
  const auto known = [](const at::Tensor& tensor) {
    switch (tensor.scalar_type()) {
      case at::kUInt16:
        return tensor.view(at::kShort);
      case at::kUInt32:
        return tensor.view(at::kInt);
      case at::kUInt64:
        return tensor.view(at::kLong);
      case at::kComplexHalf:
        return at::view_as_real(tensor);
      default:
        return tensor;
    }
  };
  return at::equal(known(one), known(other));
}

}  // namespace farspan::testing
