// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The cases of collectives, for farspan and its peers alike: tests/bench/README.md.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/figures.h"

namespace bench {

struct CollectiveSize {
  const char* name;
  size_t floats;  // float32
};
inline constexpr CollectiveSize kCollectiveSizes[] = {{"4 B", 1},           {"4 KiB", 1 << 10},
                                                      {"64 KiB", 16 << 10}, {"1 MiB", 256 << 10},
                                                      {"16 MiB", 4 << 20},  {"64 MiB", 16 << 20}};
inline constexpr size_t kOtherFloats = 256 << 10;  // of the other collectives: 1 MiB

// Microseconds for one of `work()`, which all ranks call as often: the median of five batches.
//   meet  brings the ranks together before each batch
template <class Work, class Meet>
double time_of_collective(size_t bytes, const Work& work, const Meet& meet) {
  const size_t times = std::clamp<size_t>((size_t{128} << 20) / (bytes + 1), 4, 2000);
  for (int i = 0; i < 3; ++i) work();
  std::vector<double> batches;
  for (int batch = 0; batch < 5; ++batch) {
    meet();
    const Stopwatch stopwatch;
    for (size_t i = 0; i < times; ++i) work();
    batches.push_back(stopwatch.microseconds() / static_cast<double>(times));
  }
  return median(batches);
}

inline void report_collective(const std::string& what, int world, double microseconds) {
  report(what + " world " + std::to_string(world), microseconds, "us");
}

// A message there and one back, as the two ranks call it: reported is the time of one.
inline constexpr CollectiveSize kMessageSizes[] = {
    {"4 B", 1}, {"64 KiB", 16 << 10}, {"1 MiB", 256 << 10}, {"64 MiB", 16 << 20}};

}  // namespace bench
