#include <farspan/c10d/base/processors.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "support/processors.h"

namespace farspan::testing {
namespace {

TEST(Processors, AreThoseThatTheProcessMayUse) {
  const int all = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  EXPECT_GE(available_processors(), 1);
  EXPECT_LE(available_processors(), all);
  EXPECT_EQ(has_all_processors(), available_processors() == all);
  const auto says_so = [all] {
    stay_on({processors().front()});
    std::_Exit(available_processors() == 1 && has_all_processors() == (all == 1) ? 0 : 1);
  };
  EXPECT_EXIT(says_so(), ::testing::ExitedWithCode(0), "");
}

TEST(Processors, AThreadThatPinsItselfLeavesTheProcessAllOfThem) {
  const int before = available_processors();
  std::thread([&] {
    stay_on({processors().front()});
    EXPECT_EQ(available_processors(), before);
  }).join();
}

}  // namespace
}  // namespace farspan::testing
