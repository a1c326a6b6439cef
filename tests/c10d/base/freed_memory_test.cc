// The rule under test: c10d/base/freed_memory.h.
#include <farspan/c10d/base/freed_memory.h>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace farspan {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHasItsOwnMalloc = true;
#else
constexpr bool kHasItsOwnMalloc = false;
#endif

constexpr int kRefused = 101, kMost = 100;  // of what a process ends with

long page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Of one step, which needs four blocks of 8 MiB at once. With huge pages they are few.
long faults_of_a_step() {
  const long before = page_faults();
  std::array<char*, 4> blocks{};
  for (char*& block : blocks) {
    constexpr size_t kBytes = size_t{8} << 20;
    block = static_cast<char*>(std::malloc(kBytes));
    for (size_t i = 0; i < kBytes; i += 4096) const_cast<volatile char*>(block)[i] = 1;
  }
  for (char* const block : blocks) std::free(block);
  return page_faults() - before;
}

// Of ten steps, after the first, in a process of its own.
int faults_of_a_process(bool keeps) {
  const pid_t child = fork();
  if (child == 0) {
    if (keeps && !keep_freed_memory()) _exit(kRefused);
    faults_of_a_step();
    long faults = 0;
    for (int step = 0; step < 10; ++step) faults += faults_of_a_step();
    _exit(static_cast<int>(std::min<long>(faults, kMost)));
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST(FreedMemory, IsUsedAgain) {
  if (kHasItsOwnMalloc) GTEST_SKIP() << "the sanitizer has a malloc of its own";
  EXPECT_EQ(faults_of_a_process(false), kMost) << "malloc keeps it anyway";
  EXPECT_LT(faults_of_a_process(true), 32) << kRefused << ": malloc refused";
}

}  // namespace
}  // namespace farspan
