// The rules under test: c10d/base/time.h.
#include <farspan/c10d/base/time.h>

#include <gtest/gtest.h>

#include <limits>

namespace farspan::testing {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

TEST(Deadline, NeverIsTheDefault) {
  EXPECT_TRUE(Deadline().is_never());
  EXPECT_FALSE(Deadline::never().expired());
  EXPECT_EQ(Deadline::never().remaining(), Clock::duration::max());
  EXPECT_EQ(Deadline::never().poll_ms(), -1);
}

TEST(Deadline, AZeroTimeoutMeansNever) {
  EXPECT_TRUE(Deadline::in(kNoTimeout).is_never());
  EXPECT_TRUE(Deadline::in(milliseconds(-5)).is_never());
  EXPECT_FALSE(Deadline::in(milliseconds(5)).is_never());
}

TEST(Deadline, AZeroDelayHasExpired) {
  EXPECT_TRUE(Deadline::after(milliseconds(0)).expired());
  EXPECT_TRUE(Deadline::after(milliseconds(-1)).expired());
  EXPECT_TRUE(Deadline::after(hours::min()).expired());
  EXPECT_FALSE(Deadline::after(hours(1)).expired());
}

TEST(Deadline, ADelayTooLongForTheClockIsNever) {
  EXPECT_TRUE(Deadline::after(nanoseconds::max()).is_never());
  EXPECT_TRUE(Deadline::after(milliseconds::max()).is_never());
  EXPECT_TRUE(Deadline::after(seconds::max()).is_never());
  EXPECT_TRUE(Deadline::in(hours::max()).is_never());
  // Expect: a hundred years still count.
  EXPECT_FALSE(Deadline::in(hours(24 * 365 * 100)).is_never());
  EXPECT_FALSE(Deadline::in(hours(24 * 365 * 100)).expired());
}

TEST(Deadline, RemainingIsNeverNegative) {
  const TimePoint now = Clock::now();
  const Deadline deadline(now + seconds(2));
  EXPECT_EQ(deadline.remaining(now), seconds(2));
  EXPECT_EQ(deadline.remaining(now + seconds(3)), Clock::duration::zero());
}

TEST(Deadline, PollRoundsUpSoThatItDoesNotWakeEarly) {
  const TimePoint now = Clock::now();
  EXPECT_EQ(Deadline(now + nanoseconds(1)).poll_ms(now), 1);
  EXPECT_EQ(Deadline(now + milliseconds(7)).poll_ms(now), 7);
  EXPECT_EQ(Deadline(now).poll_ms(now), 0);
  // Expect: a long one fits into poll's int.
  EXPECT_EQ(Deadline(now + hours(24 * 365)).poll_ms(now), 1'000'000'000);
}

TEST(Deadline, TheEarlierOfTwoWins) {
  const TimePoint now = Clock::now();
  const Deadline soon(now + seconds(1)), late(now + seconds(2));
  EXPECT_EQ(earlier(soon, late), soon);
  EXPECT_EQ(earlier(Deadline::never(), late), late);
}

TEST(Describe, ChoosesTheUnit) {
  EXPECT_EQ(describe(std::chrono::microseconds(850)), "850 us");
  EXPECT_EQ(describe(std::chrono::microseconds(12'300)), "12.3 ms");
  EXPECT_EQ(describe(milliseconds(4'200)), "4.20 s");
}

}  // namespace
}  // namespace farspan::testing
