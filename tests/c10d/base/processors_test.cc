#include <farspan/c10d/base/processors.h>

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

namespace farspan::testing {
namespace {

// The calling thread runs on the first of its processors from now on.
void stay_on_one() {
  cpu_set_t allowed, one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) std::abort();
  CPU_ZERO(&one);
  for (int number = 0; CPU_COUNT(&one) == 0; ++number) {
    if (CPU_ISSET(number, &allowed)) CPU_SET(number, &one);
  }
  if (sched_setaffinity(0, sizeof one, &one) != 0) std::abort();
}

TEST(Processors, AreThoseThatTheProcessMayUse) {
  const int all = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_GE(available_processors(), 1);
  EXPECT_LE(available_processors(), all);
  EXPECT_EQ(has_all_processors(), available_processors() == all);
  const auto says_so = [all] {
    stay_on_one();
    std::_Exit(available_processors() == 1 && has_all_processors() == (all == 1) ? 0 : 1);
  };
  EXPECT_EXIT(says_so(), ::testing::ExitedWithCode(0), "");
}

TEST(Processors, AThreadThatPinsItselfLeavesTheProcessAllOfThem) {
  const int before = available_processors();
  std::thread([&] {
    stay_on_one();
    EXPECT_EQ(available_processors(), before);
  }).join();
}

}  // namespace
}  // namespace farspan::testing
