// The rules under test: c10d/net/forecast.h.
#include <farspan/c10d/net/forecast.h>

#include <gtest/gtest.h>

#include <chrono>
#include <initializer_list>
#include <set>

namespace farspan::testing {
namespace {

using net::Expected;
using net::Forecast;
using namespace std::chrono_literals;

const TimePoint kAsked = TimePoint() + 1h;

bool is_within(const Expected& expected, Clock::duration took) {
  return expected.from <= kAsked + took && kAsked + took < expected.until;
}

// So many answers, which take these times in turn.
void learn(Forecast& forecast, int count, std::initializer_list<Clock::duration> times) {
  for (int i = 0; i < count; ++i) {
    forecast.learn(times.begin()[static_cast<size_t>(i) % times.size()]);
  }
}

TEST(Forecast, IsNoneAtFirst) { EXPECT_TRUE(Forecast().after(kAsked).empty()); }

TEST(Forecast, WhatTakesAboutTheSameTimeIsExpectedThen) {
  Forecast forecast;
  learn(forecast, 40, {7900us, 8000us, 8100us});
  const Expected expected = forecast.after(kAsked);
  for (const auto took : {7900us, 8000us, 8100us}) EXPECT_TRUE(is_within(expected, took));
  EXPECT_LT(expected.until - expected.from, 1ms);
  EXPECT_GE(kAsked + 8ms - expected.from, 150us) << "or the thread wakes up too late";
}

TEST(Forecast, IsNoneWhereTimesAreScattered) {
  Forecast forecast;
  learn(forecast, 40, {2ms, 20ms, 9ms});
  EXPECT_TRUE(forecast.after(kAsked).empty());
}

// The thread polls all the time then, and not for long.
TEST(Forecast, OfWhatTakesLittleMayBeRough) {
  Forecast forecast;
  learn(forecast, 40, {250us, 320us, 380us});
  for (const auto took : {250us, 320us, 380us}) {
    EXPECT_TRUE(is_within(forecast.after(kAsked), took));
  }
  learn(forecast, 100, {250us, 700us});
  EXPECT_TRUE(forecast.after(kAsked).empty());
}

TEST(Forecast, IsNoneOfWhatComesSoon) {
  Forecast forecast;
  learn(forecast, 40, {3us, 200us});
  EXPECT_TRUE(forecast.after(kAsked).empty());
  learn(forecast, 40, {8ms});
  EXPECT_FALSE(forecast.after(kAsked).empty());
  learn(forecast, 100, {3us});
  EXPECT_TRUE(forecast.after(kAsked).empty());
}

TEST(Forecast, OneThatTakesMuchLongerSaysLittle) {
  Forecast forecast;
  learn(forecast, 40, {8ms});
  forecast.learn(10min);
  forecast.learn(Clock::duration::max());
  EXPECT_TRUE(is_within(forecast.after(kAsked), 8ms));
  learn(forecast, 40, {8ms});
  EXPECT_TRUE(is_within(forecast.after(kAsked), 8ms));
}

TEST(Forecast, FollowsWhenAllTakeLonger) {
  Forecast forecast;
  learn(forecast, 40, {8ms});
  learn(forecast, 100, {100ms});
  EXPECT_TRUE(is_within(forecast.after(kAsked), 100ms));
  learn(forecast, 100, {5ms});
  EXPECT_TRUE(is_within(forecast.after(kAsked), 5ms));
}

TEST(Forecasts, AreOfAPeerAndAQuestion) {
  net::Forecasts forecasts;
  std::set<Forecast*> all;
  for (int peer = 0; peer < 4; ++peer) {
    for (const uint64_t question : {0x1234u, 0x5678u, 0x9abcu}) {
      EXPECT_EQ(&forecasts.of(peer, question), &forecasts.of(peer, question));
      all.insert(&forecasts.of(peer, question));
    }
  }
  EXPECT_GE(all.size(), 10u) << "two may have one in common";
}

}  // namespace
}  // namespace farspan::testing
