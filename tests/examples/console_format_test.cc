// The rules under test: examples/console/format.h and ticks.h.
#include "console/format.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include "console/ticks.h"

namespace console {
namespace {

using Seconds = std::chrono::duration<double>;

TEST(Format, CountsHaveACommaBetweenThousands) {
  EXPECT_EQ(count(0), "0");
  EXPECT_EQ(count(999), "999");
  EXPECT_EQ(count(1000), "1,000");
  EXPECT_EQ(count(1234567), "1,234,567");
  EXPECT_EQ(count(-123), "-123");
  EXPECT_EQ(count(-1234), "-1,234");
  EXPECT_EQ(count(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Format, BytesHaveThreeDigitsAndABinaryUnit) {
  EXPECT_EQ(bytes(0), "0 B");
  EXPECT_EQ(bytes(1023), "1023 B");
  EXPECT_EQ(bytes(1024), "1.00 KiB");
  EXPECT_EQ(bytes(64.0 * 1024 * 1024), "64.0 MiB");
  EXPECT_EQ(bytes(1023.9 * 1024 * 1024), "1.00 GiB");
  EXPECT_EQ(bytes(1e21), "888178 PiB");
}

TEST(Format, DurationsHaveThreeDigitsAndAUnit) {
  EXPECT_EQ(duration(Seconds(218e-6)), "218 us");
  EXPECT_EQ(duration(Seconds(6.42e-6)), "6.42 us");
  EXPECT_EQ(duration(Seconds(999.7e-6)), "1.00 ms");
  EXPECT_EQ(duration(Seconds(12.34e-3)), "12.3 ms");
  EXPECT_EQ(duration(Seconds(4.2)), "4.20 s");
  EXPECT_EQ(duration(Seconds(1234)), "1234 s");
}

TEST(Format, ClockTimesShowMinutesAndHours) {
  EXPECT_EQ(clock_time(Seconds(0.4)), "0:00");
  EXPECT_EQ(clock_time(Seconds(42)), "0:42");
  EXPECT_EQ(clock_time(Seconds(59.6)), "1:00");
  EXPECT_EQ(clock_time(Seconds(3723)), "1:02:03");
  EXPECT_EQ(clock_time(Seconds(std::numeric_limits<double>::infinity())), "--:--");
  EXPECT_EQ(clock_time(Seconds(std::numeric_limits<double>::quiet_NaN())), "--:--");
  EXPECT_EQ(clock_time(Seconds(-1)), "--:--");
}

TEST(Format, WidthCutAndPaddingCountCharactersNotBytes) {
  EXPECT_EQ(width("a─█"), 3);
  EXPECT_EQ(pad_right("─", 3), "─  ");
  EXPECT_EQ(pad_left("─", 3), "  ─");
  EXPECT_EQ(pad_left("long", 2), "long");
  EXPECT_EQ(cut("a─█", 2), "a─");
  EXPECT_EQ(cut("a─█", 9), "a─█");
  EXPECT_EQ(cut("a", -1), "");
}

std::vector<std::string> texts(const std::vector<Tick>& ticks) {
  std::vector<std::string> all;
  for (const Tick& tick : ticks) all.push_back(tick.text);
  return all;
}

TEST(Ticks, StepsAreOneTwoOrFiveTimesAPowerOfTen) {
  EXPECT_DOUBLE_EQ(round_step(1), 1);
  EXPECT_DOUBLE_EQ(round_step(1.1), 2);
  EXPECT_DOUBLE_EQ(round_step(3), 5);
  EXPECT_DOUBLE_EQ(round_step(5.1), 10);
  EXPECT_DOUBLE_EQ(round_step(0.03), 0.05);
}

TEST(Ticks, LinearMarksAreRoundAndInside) {
  EXPECT_EQ(texts(linear_ticks(0, 938, 5)),
            (std::vector<std::string>{"0", "200", "400", "600", "800"}));
  EXPECT_EQ(texts(linear_ticks(-0.1, 0.32, 4)), (std::vector<std::string>{"0", "0.2"}));
  EXPECT_EQ(texts(linear_ticks(0, 12000, 3)), (std::vector<std::string>{"0", "5,000", "10,000"}));
}

TEST(Ticks, RoundingErrorsNeitherLoseTheLastMarkNorShow) {
  EXPECT_EQ(texts(linear_ticks(0, 0.3, 3)), (std::vector<std::string>{"0", "0.1", "0.2", "0.3"}));
}

TEST(Ticks, LogarithmicMarksAreOneTwoFiveOrPowersAlone) {
  EXPECT_EQ(texts(log_ticks(0.04, 2.5)),
            (std::vector<std::string>{"0.05", "0.1", "0.2", "0.5", "1", "2"}));
  EXPECT_EQ(texts(log_ticks(1e-4, 2)),
            (std::vector<std::string>{"0.0001", "0.001", "0.01", "0.1", "1"}));
}

}  // namespace
}  // namespace console
