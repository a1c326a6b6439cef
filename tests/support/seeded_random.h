// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// SeededRandom: the World's only source of chance, and that of random moments. The same seed gives
// the same draws everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>
#include <vector>

#include <farspan/c10d/base/time.h>

namespace farspan::testing {

// The standard library's distributions differ between implementations; its engines do not.
class SeededRandom {
 public:
  explicit SeededRandom(uint64_t seed) : engine_(seed) {}

  uint64_t next() { return engine_(); }
  // 0 to count - 1; count > 0.
  size_t below(size_t count) { return static_cast<size_t>(next() % count); }
  // True in `probability` of the cases; 0 and 1 draw nothing.
  bool chance(double probability) {
    if (probability <= 0 || probability >= 1) return probability >= 1;
    return static_cast<double>(next() >> 11) * 0x1p-53 < probability;
  }
  // 0 to `most`, in whole microseconds.
  Micros up_to(Micros most) {
    return Micros(most.count() <= 0 ? 0 : static_cast<int64_t>(below(1 + most.count())));
  }
  template <class T>
  void shuffle(std::vector<T>& items) {
    for (size_t left = items.size(); left > 1; --left) {
      std::swap(items[left - 1], items[below(left)]);
    }
  }

 private:
  std::mt19937_64 engine_;
};

// Another one in each run, which says it; FARSPAN_SEED: that of an earlier run.
//   what  is drawn with it
inline uint64_t seed_of_run(const char* what) {
  const char* const wanted = std::getenv("FARSPAN_SEED");
  const uint64_t seed = wanted ? std::strtoull(wanted, nullptr, 10) : std::random_device()();
  std::printf("%s with FARSPAN_SEED=%lu\n", what, seed);
  return seed;
}

}  // namespace farspan::testing
