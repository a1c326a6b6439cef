// What this host allows, without any framework: N processes that meet through flags in shared
// memory and then each copy as many bytes as the collective must bring to a rank: collective_limits
// --world N. A message goes through shared memory, copied in and out while the other copies, or is
// read in the sender's memory by one process_vm_readv: the faster of both.
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
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

void wait_until(const Flag& flag, uint64_t count) {
  for (int polls = 0; flag.value.load(std::memory_order_acquire) < count; ++polls) {
    if (polls > 500) sched_yield();
  }
}

// The messages of one rank to the other.
struct Ring {
  static constexpr uint64_t kChunks = 4;
  static constexpr size_t kChunkBytes = 128 << 10;  // stays in the caches

  void put(const char* from, size_t size) {
    uint64_t count = filled.value.load(std::memory_order_relaxed);
    for (size_t at = 0; at < size; at += kChunkBytes) {
      if (count >= kChunks) wait_until(emptied, count - kChunks + 1);
      std::memcpy(chunks[count % kChunks], from + at, std::min(kChunkBytes, size - at));
      filled.value.store(++count, std::memory_order_release);
    }
  }
  void take(char* to, size_t size) {
    uint64_t count = emptied.value.load(std::memory_order_relaxed);
    for (size_t at = 0; at < size; at += kChunkBytes) {
      wait_until(filled, count + 1);
      std::memcpy(to + at, chunks[count % kChunks], std::min(kChunkBytes, size - at));
      emptied.value.store(++count, std::memory_order_release);
    }
  }

  Flag filled, emptied;  // how many chunks ever
  char chunks[kChunks][kChunkBytes];
};

struct Shared {
  Flag flags[kMostRanks];
  Ring rings[2];  // rings[r]: what rank r sends
  Flag may_not_read;
};

// Where a message lies in its sender's memory.
struct Place {
  pid_t process;
  char* data;
};

bool read_there(const Place& place, char* to, size_t size) {
  const iovec here{to, size}, there{place.data, size};
  return process_vm_readv(place.process, &here, 1, &there, 1, 0) == static_cast<ssize_t>(size);
}

class Ranks {
 public:
  Ranks(Flag* flags, int rank, int world) : flags_(flags), rank_(rank), world_(world) {}

  void meet() {
    ++count_;
    flags_[rank_].value.store(count_, std::memory_order_release);
    for (int other = 0; other < world_; ++other) wait_until(flags_[other], count_);
  }

 private:
  Flag* const flags_;
  const int rank_, world_;
  uint64_t count_ = 0;
};

// Microseconds for one message: half of one there and one back. Either way, the one back says that
// the one there has been read.
double time_of_message(Shared& shared, Ranks& ranks, int rank, size_t size) {
  std::vector<char> message(size, 1);
  Ring &out = shared.rings[rank], &in = shared.rings[1 - rank];
  const auto time_of = [&](const auto& send, const auto& receive) {
    const auto work = [&] {
      if (rank == 0) send();
      receive();
      if (rank == 1) send();
    };
    return bench::time_of_collective(2 * size, work, [&] { ranks.meet(); }) / 2;
  };
  const double copied =
      time_of([&] { out.put(message.data(), size); }, [&] { in.take(message.data(), size); });

  const Place mine{getpid(), message.data()};
  Place theirs{};
  const auto say_where = [&] { out.put(reinterpret_cast<const char*>(&mine), sizeof mine); };
  const auto hear_where = [&] { in.take(reinterpret_cast<char*>(&theirs), sizeof theirs); };
  say_where();
  hear_where();
  if (!read_there(theirs, message.data(), size)) shared.may_not_read.value = 1;
  ranks.meet();
  if (shared.may_not_read.value != 0) return copied;  // some systems forbid it
  const double read = time_of(say_where, [&] {
    hear_where();
    read_there(theirs, message.data(), size);
  });
  return std::min(copied, read);
}

void measure(Shared& shared, int rank, int world) {
  Ranks ranks(shared.flags, rank, world);
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
  for (const auto& size : bench::kMessageSizes) {
    if (world != 2) break;
    const double us = time_of_message(shared, ranks, rank, size.floats * 4);
    if (rank == 0) bench::report_collective(std::string("send ") + size.name, world, us);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int world = argc == 3 ? std::atoi(argv[2]) : 0;
  if (world < 1 || world > kMostRanks) return 2;
  void* const place =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) return 1;
  int rank = 0;
  for (int other = 1; other < world; ++other) {
    if (fork() == 0) {
      rank = other;
      break;
    }
  }
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // Yama lets only parents read, unless they may
  measure(*static_cast<Shared*>(place), rank, world);
  if (rank != 0) _exit(0);
  while (wait(nullptr) > 0) {
  }
}
