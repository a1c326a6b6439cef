// What this machine does to any work that is as long as a small call and needs two processes:
// LibTorch's add, so many times in a row that the median takes as long as a call of ours, half of
// them here and half in another process, which hears of its turn by a word in shared memory. How
// much longer the slowest of a hundred take is the machine's own unrest: interrupts, and whatever
// its host does meanwhile, after which the caches are cold.
//
//   local_adds --transport shm
#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "bench/figures.h"
#include "bench/peers/child.h"

namespace {

constexpr double kSmallCall = 2.6;  // microseconds: the median of ours on one host
constexpr double kWords = 0.4;      // of them for the words there and back
constexpr size_t kCalls = 20'000, kWarmUp = 500;

void add_in_a_row(int times) {
  static const at::Tensor one = at::ones({1});
  for (int i = 0; i < times; ++i) one.add(one);
}

int adds_of_half_a_call() {
  constexpr int kMany = 16;
  const auto row = [] { add_in_a_row(kMany); };
  bench::times_of(kWarmUp, row);
  const double half =
      kMany * (kSmallCall - kWords) / 2 / bench::median(bench::times_of(kCalls / 4, row));
  return std::max(1, static_cast<int>(std::lround(half)));
}

struct Words {  // each in a cache line of its own
  alignas(64) std::atomic<size_t> asked{0};
  alignas(64) std::atomic<size_t> done{0};
};

void await(const std::atomic<size_t>& word, size_t value) {
  while (word.load(std::memory_order_acquire) != value) __builtin_ia32_pause();
}

[[noreturn]] void serve(Words& words, int adds) {
  for (size_t call = 1;; ++call) {
    await(words.asked, call);
    add_in_a_row(adds);
    words.done.store(call, std::memory_order_release);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::strcmp(argv[1], "--transport") != 0 || std::strcmp(argv[2], "shm") != 0) {
    std::fprintf(stderr, "usage: local_adds --transport shm\n");
    return 2;
  }
  const bench::Shared<Words> shared;
  Words& words = *shared;
  const int adds = adds_of_half_a_call();
  const bench::Child server([&] { serve(words, adds); });
  size_t number = 0;
  const auto call = [&] {
    add_in_a_row(adds);
    words.asked.store(++number, std::memory_order_release);
    await(words.done, number);
  };
  bench::times_of(kWarmUp, call);
  const auto times = bench::times_of(kCalls, call);
  bench::report("small call p99 shm", bench::percentile(times, 0.99), "us");
}
