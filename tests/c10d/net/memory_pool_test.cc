// The rules under test: c10d/net/memory_pool.h.
#include <farspan/c10d/net/memory_pool.h>

#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <new>
#include <thread>

namespace farspan::testing {
namespace {

using net::MemoryPool;

constexpr size_t kMiB = 1 << 20;

TEST(MemoryPool, GivesWhatWasAskedForAligned) {
  const auto pool = MemoryPool::make();
  for (const size_t size :
       {size_t{1}, size_t{4096}, size_t{4097}, size_t{16385}, kMiB - 1, kMiB, kMiB + 1, 5 * kMiB}) {
    const Buffer buffer = pool->allocate(size);
    EXPECT_EQ(buffer.size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % (size >= kMiB ? 4096 : 64), 0u) << size;
    std::memset(buffer.data(), 1, size);  // AddressSanitizer sees a block that is too small
  }
}

TEST(MemoryPool, WastesAtMostAQuarter) {
  const auto pool = MemoryPool::make();
  for (size_t size = 4096; size < 9 * kMiB; size += size / 37) {
    const Buffer buffer = pool->allocate(size);
    EXPECT_LE(pool->counters().used_bytes, size + size / 4 + 1) << size;
  }
  EXPECT_EQ(pool->counters().used_bytes, 0u);
}

TEST(MemoryPool, UsesABlockAgain) {
  const auto pool = MemoryPool::make();
  const void* block = pool->allocate(kMiB).data();
  EXPECT_GE(pool->counters().idle_bytes, kMiB);
  // Expect: the warm block, also for a size of the same class.
  const Buffer again = pool->allocate(kMiB - 100);
  EXPECT_EQ(again.data(), block);
  EXPECT_EQ(pool->counters().made, 1u);
  EXPECT_EQ(pool->counters().reused, 1u);
  EXPECT_EQ(pool->counters().idle_bytes, 0u);
}

TEST(MemoryPool, KeepsNoMoreThanItsBound) {
  const auto pool = MemoryPool::make({.max_idle_bytes = 4 * kMiB});
  std::vector<Buffer> buffers;
  for (int i = 0; i < 10; ++i) buffers.push_back(pool->allocate(kMiB));
  EXPECT_GE(pool->counters().used_bytes, 10 * kMiB);
  buffers.clear();
  EXPECT_LE(pool->counters().idle_bytes, 4 * kMiB);
  EXPECT_GE(pool->counters().idle_bytes, 3 * kMiB);
  pool->allocate(5 * kMiB);
  EXPECT_LE(pool->counters().idle_bytes, 4 * kMiB);
}

TEST(MemoryPool, MakesRoomForTheSizesInUse) {
  const auto pool = MemoryPool::make({.max_idle_bytes = 4 * kMiB});
  { const Buffer a = pool->allocate(2 * kMiB), b = pool->allocate(2 * kMiB); }
  EXPECT_EQ(pool->counters().idle_bytes, 4 * kMiB);
  const void* block = pool->allocate(3 * kMiB).data();
  // Expect: the blocks of a size that is not asked for any more gave way.
  EXPECT_LE(pool->counters().idle_bytes, 4 * kMiB);
  EXPECT_EQ(pool->allocate(3 * kMiB).data(), block);
}

TEST(MemoryPool, TrimGivesEverythingBack) {
  const auto pool = MemoryPool::make();
  pool->allocate(kMiB);
  const Buffer kept = pool->allocate(kMiB);
  pool->allocate(2 * kMiB);
  pool->trim();
  EXPECT_EQ(pool->counters().idle_bytes, 0u);
  kept.data()[kMiB - 1] = std::byte{1};
}

// A pool that keeps what is idle for 100 ms, and timers that are run by hand.
struct Shrinking {
  explicit Shrinking(MemoryPool& pool) { pool.shrink_by(&timers); }
  // Until so many bytes are left, or nothing more will happen.
  size_t wait(MemoryPool& pool, size_t bytes) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(20));
    while (pool.counters().idle_bytes > bytes && !deadline.expired()) {
      pollfd due{timers.descriptor(), POLLIN, 0};
      poll(&due, 1, deadline.poll_ms());
      timers.run_due();
    }
    return pool.counters().idle_bytes;
  }
  net::Timers timers;
};

TEST(MemoryPool, WhatIsIdleForLongGoesBackToTheSystem) {
  const auto pool = MemoryPool::make({.keep = std::chrono::milliseconds(100)});
  pool->allocate(3 * kMiB);  // idle before there are timers
  Shrinking shrinking(*pool);
  const Buffer used = pool->allocate(kMiB);
  EXPECT_EQ(shrinking.wait(*pool, 0), 0u);
  EXPECT_GE(pool->counters().used_bytes, kMiB);
  // Expect: it begins anew with what comes back later.
  { const Buffer one = pool->allocate(2 * kMiB), two = pool->allocate(kMiB); }
  EXPECT_GE(pool->counters().idle_bytes, 3 * kMiB);
  EXPECT_EQ(shrinking.wait(*pool, 0), 0u);
  pool->shrink_by(nullptr);
}

TEST(MemoryPool, ABlockInUseNowAndThenStaysAndASurplusGoes) {
  const auto pool = MemoryPool::make({.keep = std::chrono::milliseconds(100)});
  Shrinking shrinking(*pool);
  { const Buffer one = pool->allocate(kMiB), two = pool->allocate(kMiB); }
  const Deadline deadline = Deadline::after(std::chrono::seconds(20));
  while (pool->counters().idle_bytes > kMiB && !deadline.expired()) {
    pool->allocate(kMiB);  // the warmest
    shrinking.timers.run_due();
  }
  EXPECT_EQ(pool->counters().idle_bytes, kMiB);
  EXPECT_EQ(pool->counters().made, 2u);
  pool->shrink_by(nullptr);
}

TEST(MemoryPool, NoTimerIsUsedAfterTheEndOfThem) {
  const auto pool = MemoryPool::make({.keep = std::chrono::milliseconds(1)});
  {
    Shrinking shrinking(*pool);
    pool->allocate(kMiB);
    pool->shrink_by(nullptr);
  }
  pool->allocate(kMiB);
  EXPECT_GE(pool->counters().idle_bytes, kMiB);
}

TEST(MemoryPool, BuffersOutliveItsMaker) {
  auto pool = MemoryPool::make();
  const std::weak_ptr<MemoryPool> watch = pool;
  Buffer buffer = pool->allocate(kMiB);
  pool.reset();
  EXPECT_FALSE(watch.expired());
  buffer.data()[0] = std::byte{1};
  buffer = Buffer();
  EXPECT_TRUE(watch.expired());
}

TEST(MemoryPool, AfterItsEndNothingIsKept) {
  const auto pool = MemoryPool::make();
  Buffer late = pool->allocate(kMiB);
  { const Buffer idle = pool->allocate(kMiB); }
  pool->close();
  EXPECT_EQ(pool->counters().idle_bytes, 0u);
  late.data()[kMiB - 1] = std::byte{1};
  late = {};
  { const Buffer later = pool->allocate(kMiB); }
  EXPECT_EQ(pool->counters().idle_bytes, 0u);
  EXPECT_EQ(pool->counters().used_bytes, 0u);
}

TEST(MemoryPool, AnImpossibleSizeIsNoMemory) {
  const auto pool = MemoryPool::make();
  EXPECT_THROW(pool->allocate(std::numeric_limits<size_t>::max()), std::bad_alloc);
  EXPECT_EQ(pool->counters().used_bytes, 0u);
}

TEST(MemoryPool, IsSharedByThreads) {
  const auto pool = MemoryPool::make({.max_idle_bytes = 2 * kMiB});
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 200; ++i) {
        const size_t size = 10'000 + static_cast<size_t>(i % 9) * 50'000;
        const Buffer buffer = pool->allocate(size);
        std::memset(buffer.data(), thread, size);
        wrong += buffer.data()[size / 2] != static_cast<std::byte>(thread);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(pool->counters().used_bytes, 0u);
  EXPECT_LE(pool->counters().idle_bytes, 2 * kMiB);
}

}  // namespace
}  // namespace farspan::testing
