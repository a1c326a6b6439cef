// The rules under test: c10d/net/receive_pool.h.
#include <farspan/c10d/net/receive_pool.h>

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <new>
#include <thread>

namespace farspan::testing {
namespace {

using net::ReceivePool;

constexpr size_t kMiB = 1 << 20;

TEST(ReceivePool, GivesWhatWasAskedForAligned) {
  const auto pool = ReceivePool::make();
  for (const size_t size :
       {size_t{1}, size_t{4096}, size_t{4097}, size_t{16385}, kMiB - 1, kMiB, kMiB + 1, 5 * kMiB}) {
    const Buffer buffer = pool->allocate(size);
    EXPECT_EQ(buffer.size(), size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % (size >= kMiB ? 4096 : 64), 0u) << size;
    std::memset(buffer.data(), 1, size);  // AddressSanitizer sees a block that is too small
  }
}

TEST(ReceivePool, WastesAtMostAQuarter) {
  const auto pool = ReceivePool::make();
  for (size_t size = 4096; size < 9 * kMiB; size += size / 37) {
    const Buffer buffer = pool->allocate(size);
    EXPECT_LE(pool->used_bytes(), size + size / 4 + 1) << size;
  }
  EXPECT_EQ(pool->used_bytes(), 0u);
}

TEST(ReceivePool, UsesABlockAgain) {
  const auto pool = ReceivePool::make();
  const void* block = pool->allocate(kMiB).data();
  EXPECT_GE(pool->idle_bytes(), kMiB);
  // Expect: the warm block, also for a size of the same class.
  const Buffer again = pool->allocate(kMiB - 100);
  EXPECT_EQ(again.data(), block);
  EXPECT_EQ(pool->idle_bytes(), 0u);
}

TEST(ReceivePool, KeepsNoMoreThanItsBound) {
  const auto pool = ReceivePool::make(4 * kMiB);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 10; ++i) buffers.push_back(pool->allocate(kMiB));
  EXPECT_GE(pool->used_bytes(), 10 * kMiB);
  buffers.clear();
  EXPECT_LE(pool->idle_bytes(), 4 * kMiB);
  EXPECT_GE(pool->idle_bytes(), 3 * kMiB);
  pool->allocate(5 * kMiB);
  EXPECT_LE(pool->idle_bytes(), 4 * kMiB);
}

TEST(ReceivePool, MakesRoomForTheSizesInUse) {
  const auto pool = ReceivePool::make(4 * kMiB);
  { const Buffer a = pool->allocate(2 * kMiB), b = pool->allocate(2 * kMiB); }
  EXPECT_EQ(pool->idle_bytes(), 4 * kMiB);
  const void* block = pool->allocate(3 * kMiB).data();
  // Expect: the blocks of a size that is not asked for any more gave way.
  EXPECT_LE(pool->idle_bytes(), 4 * kMiB);
  EXPECT_EQ(pool->allocate(3 * kMiB).data(), block);
}

TEST(ReceivePool, TrimGivesEverythingBack) {
  const auto pool = ReceivePool::make();
  pool->allocate(kMiB);
  const Buffer kept = pool->allocate(kMiB);
  pool->allocate(2 * kMiB);
  pool->trim();
  EXPECT_EQ(pool->idle_bytes(), 0u);
  kept.data()[kMiB - 1] = std::byte{1};
}

TEST(ReceivePool, BuffersOutliveItsMaker) {
  auto pool = ReceivePool::make();
  const std::weak_ptr<ReceivePool> watch = pool;
  Buffer buffer = pool->allocate(kMiB);
  pool.reset();
  EXPECT_FALSE(watch.expired());
  buffer.data()[0] = std::byte{1};
  buffer = Buffer();
  EXPECT_TRUE(watch.expired());
}

TEST(ReceivePool, AnImpossibleSizeIsNoMemory) {
  const auto pool = ReceivePool::make();
  EXPECT_THROW(pool->allocate(std::numeric_limits<size_t>::max()), std::bad_alloc);
  EXPECT_EQ(pool->used_bytes(), 0u);
}

TEST(ReceivePool, IsSharedByThreads) {
  const auto pool = ReceivePool::make(2 * kMiB);
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
  EXPECT_EQ(pool->used_bytes(), 0u);
  EXPECT_LE(pool->idle_bytes(), 2 * kMiB);
}

}  // namespace
}  // namespace farspan::testing
