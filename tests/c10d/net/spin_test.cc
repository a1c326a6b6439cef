// The rules under test: c10d/net/spin.h.
#include <farspan/c10d/net/spin.h>

#include <gtest/gtest.h>

#include <deque>

namespace farspan::testing {
namespace {

using net::kSpinLimit;
using net::SpinGovernor;
using net::SpinPermit;

TEST(SpinGovernor, MissesSwitchItOffButForAProbe) {
  SpinGovernor governor;
  EXPECT_EQ(governor.budget(), kSpinLimit);
  for (int i = 0; i < 8; ++i) governor.miss();
  int granted = 0;
  for (int i = 0; i < 160; ++i) granted += governor.budget().count() > 0;
  EXPECT_EQ(granted, 10);
}

TEST(SpinGovernor, AHitSwitchesItOn) {
  SpinGovernor governor;
  for (int i = 0; i < 100; ++i) governor.miss();
  governor.hit();
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(governor.budget(), kSpinLimit);
    governor.miss();
  }
}

TEST(SpinPermit, LeavesACoreToTheOthers) {
  const auto cores = std::max(1u, std::thread::hardware_concurrency());
  std::deque<SpinPermit> permits;
  unsigned granted = 0;
  for (unsigned i = 0; i < cores + 2; ++i) granted += static_cast<bool>(permits.emplace_back());
  EXPECT_EQ(granted, std::max(1u, cores - 1));
  permits.clear();
  EXPECT_TRUE(static_cast<bool>(SpinPermit()));
}

}  // namespace
}  // namespace farspan::testing
