// What this host allows, without any framework: N processes that meet through flags in shared
// memory and then each copy as many bytes as the collective must bring to a rank: collective_limits
// --world N.
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "bench/collective_figures.h"

namespace {

constexpr int kMostRanks = 64;

struct alignas(64) Flag {
  std::atomic<uint64_t> value;
};

class Ranks {
 public:
  Ranks(Flag* flags, int rank, int world) : flags_(flags), rank_(rank), world_(world) {}

  void meet() {
    ++count_;
    flags_[rank_].value.store(count_, std::memory_order_release);
    for (int other = 0; other < world_; ++other) {
      for (int polls = 0; flags_[other].value.load(std::memory_order_acquire) < count_; ++polls) {
        if (polls > 500) sched_yield();
      }
    }
  }

 private:
  Flag* const flags_;
  const int rank_, world_;
  uint64_t count_ = 0;
};

void measure(Ranks ranks, int rank, int world) {
  const auto run = [&](const std::string& what, size_t floats, size_t copies) {
    std::vector<float> from(floats * copies), to(floats * copies);
    const auto work = [&] {
      ranks.meet();
      if (!from.empty()) std::memcpy(to.data(), from.data(), from.size() * sizeof(float));
    };
    const double us = bench::time_of_collective(floats * 4, work, [&] { ranks.meet(); });
    if (rank == 0) bench::report_collective(what, world, us);
  };
  for (const auto& size : bench::kCollectiveSizes) {
    run(std::string("all_reduce ") + size.name, size.floats, 1);
  }
  run("broadcast 1 MiB", bench::kOtherFloats, 1);
  run("all_gather 1 MiB", bench::kOtherFloats, static_cast<size_t>(world));
  run("reduce_scatter 1 MiB", bench::kOtherFloats, 1);
  run("all_to_all 1 MiB", bench::kOtherFloats, static_cast<size_t>(world));
  run("barrier", 0, 0);
}

}  // namespace

int main(int argc, char** argv) {
  const int world = argc == 3 ? std::atoi(argv[2]) : 0;
  if (world < 1 || world > kMostRanks) return 2;
  void* const place = mmap(nullptr, sizeof(Flag) * kMostRanks, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) return 1;
  int rank = 0;
  for (int other = 1; other < world; ++other) {
    if (fork() == 0) {
      rank = other;
      break;
    }
  }
  measure(Ranks(static_cast<Flag*>(place), rank, world), rank, world);
  if (rank != 0) _exit(0);
  while (wait(nullptr) > 0) {
  }
}
