// The rule under test: c10d/base/freed_memory.h.
#include <farspan/c10d/base/freed_memory.h>

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace farspan {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kHasItsOwnMalloc = true;
#else
constexpr bool kHasItsOwnMalloc = false;
#endif

long page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

// Of one step that allocates, writes and frees two blocks of 8 MiB. Huge pages take fewer faults.
long faults_of_a_step() {
  const long before = page_faults();
  for (int block = 0; block < 2; ++block) {
    constexpr size_t kBytes = size_t{8} << 20;
    volatile char* const bytes = static_cast<char*>(std::malloc(kBytes));
    for (size_t i = 0; i < kBytes; i += 4096) bytes[i] = 1;
    std::free(const_cast<char*>(bytes));
  }
  return page_faults() - before;
}

// In a process of its own, since it is for good.
TEST(FreedMemory, IsUsedAgain) {
  if (kHasItsOwnMalloc) GTEST_SKIP() << "the sanitizer has a malloc of its own";
  const pid_t child = fork();
  if (child == 0) {
    const bool is_kept = keep_freed_memory();
    faults_of_a_step();
    _exit(is_kept ? static_cast<int>(std::min(faults_of_a_step(), 100L)) : 101);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "page faults, or 101: malloc refused";
}

}  // namespace
}  // namespace farspan
