// The rules under test: rpc/call_times.h.
#include <farspan/rpc/call_times.h>

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

namespace farspan {
namespace {

using std::chrono::nanoseconds;
using namespace std::chrono_literals;

CallTimes times_of(std::initializer_list<Clock::duration> all) {
  CallTimesRecorder recorder;
  for (const Clock::duration each : all) recorder.add(each);
  return recorder.read();
}

TEST(CallTimes, AreRightToFourPercent) {
  for (double ns = 1; ns < 1e18; ns *= 1.013) {
    const auto exact = nanoseconds(std::llround(ns));
    const auto told = times_of({exact}).quantile(0.5);
    EXPECT_LE(std::abs(double((told - exact).count())), 0.04 * double(exact.count())) << ns;
  }
}

TEST(CallTimes, AreOrderedAsTheTimesAre) {
  Clock::duration last{-1};
  for (int64_t ns = 0; ns < 5000; ++ns) {
    const auto told = times_of({nanoseconds(ns)}).quantile(1);
    EXPECT_GE(told, last);
    last = told;
  }
}

TEST(CallTimes, TakeTheShortestAndTheLongestThatThereAre) {
  EXPECT_EQ(times_of({0ns}).quantile(0.5), 0ns);
  EXPECT_EQ(times_of({-5ns}).quantile(0.5), 0ns);  // a clock of a World that has ended
  EXPECT_GT(times_of({Clock::duration::max()}).quantile(0.5), std::chrono::hours(200 * 365 * 24));
}

TEST(CallTimes, QuantilesCountCalls) {
  CallTimesRecorder recorder;
  for (int i = 1; i <= 100; ++i) recorder.add(nanoseconds(i <= 98 ? 10 : i == 99 ? 20 : 30));
  const CallTimes times = recorder.read();
  EXPECT_EQ(times.count(), 100u);
  EXPECT_EQ(times.quantile(0), 10ns);
  EXPECT_EQ(times.quantile(0.5), 10ns);
  EXPECT_EQ(times.quantile(0.98), 10ns);
  EXPECT_EQ(times.quantile(0.99), 20ns);
  EXPECT_EQ(times.quantile(1), 30ns);
}

TEST(CallTimes, OfNoCallsAreZero) {
  EXPECT_EQ(CallTimes().count(), 0u);
  EXPECT_EQ(CallTimes().quantile(0.5), 0ns);
}

TEST(CallTimes, OfSeveralWorkersAddUp) {
  CallTimes times = times_of({1ns, 1ms});
  times += times_of({2ns});
  EXPECT_EQ(times.count(), 3u);
  EXPECT_EQ(times.quantile(0.5), 2ns);
  CallTimes other = times_of({2ns});
  other += times_of({1ns, 1ms});
  EXPECT_EQ(other.counts, times.counts);
}

}  // namespace
}  // namespace farspan
