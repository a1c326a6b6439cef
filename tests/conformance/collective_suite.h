// Collectives conformance: what every backend must do, written once. A test file instantiates
// CollectiveSuite with the backends it knows. The rules: c10d/group/collectives.h.
#pragma once

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <farspan/c10d/group/collectives.h>

#include "support/errors.h"

namespace farspan::testing {

// Runs `body` on each of `ranks` ranks, at once, with their group as the default group.
using RunRanks =
    std::function<void(int ranks, Millis timeout, const std::function<void(int rank)>& body)>;

struct BackendKind {
  std::string name;
  RunRanks run;
  bool names_hosts = true;  // false where all ranks are of one process by nature
};
inline void PrintTo(const BackendKind& kind, std::ostream* out) { *out << kind.name; }

// The first of one rank.
#if defined(__SANITIZE_ADDRESS__)  // which makes each rank several times slower
inline constexpr int kWorlds[] = {1, 2, 3, 5};
#else
inline constexpr int kWorlds[] = {1, 2, 3, 4, 7, 8};
#endif

// Elements of float32 that fill rooms of the cpu backend, or a rank's part of one above four ranks,
// or pieces between hosts; one less, and one more. See c10d/backends/cpu/segment.h.
inline constexpr int64_t kAboutAChunk[] = {8191, 8192, 8193, 32767, 32768, 32769};

// Else of operations, types and sizes only enough are met that each pair is.
inline bool all_combinations() { return std::getenv("FARSPAN_ALL_COMBINATIONS") != nullptr; }

class CollectiveSuite : public ::testing::TestWithParam<BackendKind> {
 protected:
  void on_each(int ranks, const std::function<void(int rank)>& body,
               Millis timeout = std::chrono::seconds(60)) {
    GetParam().run(ranks, timeout, body);
  }

  // What matches the name of a rank in errors: "rank 1 (host:pid)".
  static std::string who(int rank) {
    return "rank " + std::to_string(rank) + (GetParam().names_hosts ? " [(][^ )]+:[0-9]+[)]" : "");
  }
};

// What rank `rank` has as input number `salt`: small whole numbers, so that sums and products of
// eight ranks are exact in every type.
inline at::Tensor input_of(int rank, int64_t count, at::ScalarType type, int64_t salt = 0) {
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

}  // namespace farspan::testing
