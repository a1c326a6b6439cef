// What the counter of cost_bench counts. Pointers are volatile, or the compiler would leave out
// allocations whose memory nobody uses.
#include "bench/allocations.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>

namespace bench {
namespace {

// By how much the counts rise while `work()` runs.
template <class Work>
Allocations of(const Work& work) {
  const Allocations before = allocations();
  work();
  const Allocations after = allocations();
  return {after.count - before.count, after.bytes - before.bytes};
}

TEST(Allocations, EveryWayToAskForMemoryCountsOnceWithItsBytes) {
  void* volatile memory = nullptr;
  void* aligned = nullptr;
  const auto expect = [&](const char* way, int64_t bytes, const auto& allocate) {
    const Allocations asked = of(allocate);
    EXPECT_EQ(asked.count, 1) << way;
    EXPECT_EQ(asked.bytes, bytes) << way;
  };
  expect("malloc", 100, [&] { memory = std::malloc(100); });
  expect("realloc", 200, [&] { memory = std::realloc(memory, 200); });
  std::free(memory);
  expect("calloc", 60, [&] { memory = std::calloc(3, 20); });
  std::free(memory);
  expect("aligned_alloc", 128, [&] { memory = std::aligned_alloc(64, 128); });
  std::free(memory);
  expect("posix_memalign", 96, [&] { EXPECT_EQ(posix_memalign(&aligned, 64, 96), 0); });
  std::free(aligned);
  expect("new", 24, [&] { memory = ::operator new(24); });
  ::operator delete(memory);
}

TEST(Allocations, ThoseInsideOfLibrariesCount) {
  const std::string name(100, 'x');
  char* volatile copied = nullptr;
  EXPECT_EQ(of([&] { copied = strdup(name.c_str()); }).bytes, 101);
  std::free(copied);
}

TEST(Allocations, FreeingDoesNotCount) {
  void* volatile memory = std::malloc(100);
  EXPECT_EQ(of([&] { std::free(memory); }).count, 0);
}

TEST(Allocations, WhatIsAskedForIsGiven) {
  void* aligned = nullptr;
  EXPECT_EQ(posix_memalign(&aligned, 4096, 10), 0);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(aligned) % 4096, 0U);
  std::free(aligned);
  EXPECT_EQ(posix_memalign(&aligned, 3, 10), EINVAL);
  const std::unique_ptr<char, decltype(&std::free)> zeros(static_cast<char*>(std::calloc(1000, 1)),
                                                          &std::free);
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(zeros.get()[i], 0);
}

}  // namespace
}  // namespace bench
