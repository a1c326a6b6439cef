// The rule under test: c10d/base/freed_memory.h.
#include <farspan/c10d/base/freed_memory.h>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <thread>

#include "support/sanitizers.h"

namespace farspan {
namespace {

constexpr int kRefused = 101, kMost = 100;  // of what a process ends with

long page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Of one step, which needs four blocks at once. With huge pages they are few.
long faults_of_a_step(size_t block_bytes) {
  const long before = page_faults();
  std::array<char*, 4> blocks{};
  for (char*& block : blocks) {
    block = static_cast<char*>(std::malloc(block_bytes));
    for (size_t i = 0; i < block_bytes; i += 4096) const_cast<volatile char*>(block)[i] = 1;
  }
  for (char* const block : blocks) std::free(block);
  return page_faults() - before;
}

// Of three steps, after the first, in a process of its own; by its main thread, or by another.
int faults_of_a_process(bool keeps, size_t block_bytes, bool by_another_thread) {
  const pid_t child = fork();
  if (child == 0) {
    if (keeps && !keep_freed_memory()) _exit(kRefused);
    long faults = 0;
    const auto steps = [&] {
      faults_of_a_step(block_bytes);
      for (int step = 0; step < 3; ++step) faults += faults_of_a_step(block_bytes);
    };
    if (by_another_thread) {
      std::thread(steps).join();
    } else {
      steps();
    }
    _exit(static_cast<int>(std::min<long>(faults, kMost)));
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST(FreedMemory, IsUsedAgain) {
  if (testing::kSanitized) GTEST_SKIP() << "the sanitizer has a malloc of its own";
  constexpr size_t kBytes = size_t{8} << 20;
  EXPECT_EQ(faults_of_a_process(false, kBytes, false), kMost) << "malloc keeps it anyway";
  EXPECT_LT(faults_of_a_process(true, kBytes, false), 32) << kRefused << ": malloc refused";
}

TEST(FreedMemory, IsUsedAgainByThreadsOtherThanTheMainOne) {
  if (testing::kSanitized) GTEST_SKIP() << "the sanitizer has a malloc of its own";
  for (const size_t mebibytes : {8, 80}) {
    EXPECT_EQ(faults_of_a_process(false, mebibytes << 20, true), kMost) << mebibytes << " MiB";
    EXPECT_LT(faults_of_a_process(true, mebibytes << 20, true), 32) << mebibytes << " MiB";
  }
}

}  // namespace
}  // namespace farspan
