// The rules under test: c10d/net/spin.h.
#include <farspan/c10d/net/spin.h>

#include <gtest/gtest.h>
#include <sched.h>

#include <deque>
#include <thread>
#include <vector>

#include "c10d/net/crowd.h"
#include "support/eventually.h"
#include "support/processors.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using net::CrowdWatch;
using net::kLongSpinLimit;
using net::kSpinLimit;
using net::SpinGovernor;
using net::SpinPermit;
using net::TurnsOfOthers;

TimePoint at(Clock::duration since) { return TimePoint(1h) + since; }

// How many of so many waits it would poll for.
int granted(SpinGovernor& governor, int waits) {
  int count = 0;
  for (int i = 0; i < waits; ++i) count += governor.budget().count() > 0;
  return count;
}

TEST(SpinGovernor, WhatComesSoonIsPolledForBriefly) {
  SpinGovernor governor;
  EXPECT_EQ(governor.budget(), kSpinLimit);
  for (int i = 0; i < 100; ++i) governor.learn(i % 4 == 0 ? 5us : 10ms);
  EXPECT_EQ(governor.budget(), kSpinLimit);
}

TEST(SpinGovernor, WhatMostlyComesWithinTheLongLimitIsPolledForAsLong) {
  SpinGovernor governor;
  for (int i = 0; i < 8; ++i) governor.learn(100us);
  EXPECT_EQ(governor.budget(), kLongSpinLimit);
  for (int i = 0; i < 8; ++i) governor.learn(10ms);
  EXPECT_LT(governor.budget(), kLongSpinLimit);
}

TEST(SpinGovernor, WhatComesLateIsPolledForNowAndThenOnly) {
  SpinGovernor governor;
  for (int i = 0; i < 32; ++i) governor.learn(10ms);
  EXPECT_EQ(granted(governor, 160), 10);
}

TEST(SpinGovernor, OneThatComesSoonIsReasonToPollForTheNextFew) {
  SpinGovernor governor;
  for (int i = 0; i < 32; ++i) governor.learn(10ms);
  governor.learn(5us);
  EXPECT_EQ(granted(governor, 16), 16);
  for (int i = 0; i < 8; ++i) governor.learn(10ms);
  EXPECT_EQ(granted(governor, 16), 1);
}

TEST(SpinGovernor, AWaitMayEndElsewhere) {
  SpinGovernor apart, at_once;
  for (int i = 0; i < 32; ++i) {
    const auto took = i % 3 == 0 ? 20us : 150us;
    apart.begin(at(i * 1s));
    apart.arrived(at(i * 1s + took));
    apart.arrived(at(i * 1s + 500ms));  // nobody waits
    at_once.learn(took);
    EXPECT_EQ(apart.budget(), at_once.budget());
  }
}

// The counts that the watch looks at, one after the other.
std::deque<int> counts;
int next_count() noexcept {
  const int count = counts.front();
  counts.pop_front();
  return count;
}

// The first question comes after a pause.
void wake(CrowdWatch& watch) { EXPECT_FALSE(watch.is_crowded(at(-1ms))); }

// What it says of so many looks, one in each such time, after a pause.
std::vector<bool> crowded(CrowdWatch& watch, std::deque<int> found, Clock::duration every = 1ms) {
  static TimePoint now = at(0ms);
  counts = std::move(found);
  if (!watch.was_crowded()) watch.is_crowded(now += 1s);  // the first question after a pause
  std::vector<bool> result;
  while (!counts.empty()) result.push_back(watch.is_crowded(now += every));
  return result;
}

TEST(CrowdWatch, TwoLooksInARowMustFindTooManyThreads) {
  CrowdWatch watch(next_count, 2);
  EXPECT_EQ(crowded(watch, {3, 2, 3, 3, 4}), (std::vector<bool>{false, false, false, true, true}));
}

TEST(CrowdWatch, OneThatLastsIsNotOverWithALook) {
  CrowdWatch watch(next_count, 2);
  EXPECT_EQ(crowded(watch, {3, 3, 2}), (std::vector<bool>{false, true, false}));
  crowded(watch, {3, 3, 3, 3, 3, 3});
  EXPECT_EQ(crowded(watch, {2, 3, 2, 2, 1}), (std::vector<bool>{true, true, true, true, false}));
  EXPECT_EQ(crowded(watch, {1, 1, 1, 3, 3}), (std::vector<bool>{false, false, false, false, true}));
}

TEST(CrowdWatch, SaysWithoutALookWhatTheLastOneSaw) {
  CrowdWatch watch(next_count, 2);
  wake(watch);
  counts = {3, 3, 2};
  for (int look = 0; look < 3; ++look) {
    const bool is_crowded = watch.is_crowded(at(look * 1ms));
    EXPECT_EQ(watch.was_crowded(), is_crowded);
    EXPECT_EQ(counts.size(), static_cast<size_t>(2 - look));
  }
}

TEST(CrowdWatch, LooksOnceInAMillisecond) {
  CrowdWatch watch(next_count, 2);
  wake(watch);
  counts = {3, 3};
  for (int tenth = 0; tenth < 10; ++tenth) EXPECT_FALSE(watch.is_crowded(at(tenth * 100us)));
  for (int tenth = 10; tenth < 20; ++tenth) EXPECT_TRUE(watch.is_crowded(at(tenth * 100us)));
  EXPECT_TRUE(counts.empty());
}

TEST(CrowdWatch, DoesNotLookAfterAPause) {
  CrowdWatch watch(next_count, 2);
  wake(watch);
  counts = {3, 3, 3};
  EXPECT_FALSE(watch.is_crowded(at(0ms)));
  EXPECT_FALSE(watch.is_crowded(at(10ms)));
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_FALSE(watch.is_crowded(at(11ms)));
  EXPECT_TRUE(watch.is_crowded(at(12ms)));
}

TEST(CrowdWatch, OneLookIsEnoughForWhoWouldPollForLong) {
  CrowdWatch watch(next_count, 2);
  counts = {2, 3};
  EXPECT_FALSE(watch.lacks_processors(at(0ms)));
  EXPECT_FALSE(watch.was_crowded());
  EXPECT_TRUE(watch.lacks_processors(at(100us)));
  EXPECT_TRUE(watch.was_crowded()) << "others need not look";
}

// Whoever has no processor comes late for each look.
TEST(CrowdWatch, LooksAfterAPauseWhereItWasCrowded) {
  CrowdWatch watch(next_count, 2);
  crowded(watch, {3, 3});
  EXPECT_EQ(crowded(watch, {3, 2, 3, 2, 2}, 50ms),
            (std::vector<bool>{true, true, true, true, false}));
}

TEST(CrowdWatch, WhoGotItsProcessorBackLateHasSeenACrowd) {
  CrowdWatch watch(next_count, 2);
  wake(watch);
  counts = {3, 3, 1, 1};
  EXPECT_FALSE(watch.is_crowded(at(0ms)));
  watch.saw_crowd(at(100ms));
  EXPECT_TRUE(watch.is_crowded(at(100ms)));
  EXPECT_FALSE(watch.has_idle(at(100ms), 1));
  EXPECT_TRUE(watch.is_crowded(at(110ms)));
  EXPECT_TRUE(watch.is_crowded(at(111ms)));
  EXPECT_FALSE(watch.is_crowded(at(112ms)));
}

TEST(CrowdWatch, WhereALookCannotTellALateTurnMakesACrowdForAWhile) {
  CrowdWatch watch(
      +[]() noexcept { return -1; }, 2);
  wake(watch);
  EXPECT_FALSE(watch.is_crowded(at(0ms)));
  EXPECT_FALSE(watch.lacks_processors(at(1ms)));
  EXPECT_TRUE(watch.has_idle(at(1ms), 1));
  watch.saw_crowd(at(2ms));
  for (int ms = 2; ms < 102; ++ms) {
    ASSERT_TRUE(watch.is_crowded(at(ms * 1ms))) << ms;
    ASSERT_TRUE(watch.lacks_processors(at(ms * 1ms))) << ms;
    ASSERT_FALSE(watch.has_idle(at(ms * 1ms), 1)) << ms;
  }
  EXPECT_FALSE(watch.is_crowded(at(102ms)));
}

TEST(CrowdWatch, SeesHowManyProcessorsAreIdle) {
  CrowdWatch watch(next_count, 3);
  wake(watch);
  counts = {1, 2, 3, 1};
  std::vector<bool> one, two;
  for (int look = 0; look < 4; ++look) {
    one.push_back(watch.has_idle(at(look * 1ms), 1));
    two.push_back(watch.has_idle(at(look * 1ms), 2));
  }
  EXPECT_EQ(one, (std::vector<bool>{true, true, false, true}));
  EXPECT_EQ(two, (std::vector<bool>{true, false, false, true}));
}

std::atomic<uint64_t> questions{0};
void long_turn() noexcept { std::this_thread::sleep_for(2ms); }
void long_turn_of_a_few_questions() noexcept {
  questions += 10;
  long_turn();
}
void long_turn_of_questions() noexcept {
  questions += 1'000'000;
  long_turn();
}
void short_turn() noexcept {}

// However long the process has rested from turns that it has met by now.
TurnsOfOthers turns_at(TimePoint now, void (*yield)() noexcept) { return {now, questions, yield}; }
TurnsOfOthers later_turns(void (*yield)() noexcept) { return turns_at(Clock::now() + 1h, yield); }

TEST(TurnsOfOthers, SoManyArePassedInAWait) {
  TurnsOfOthers turns = later_turns(short_turn);
  int passed = 0;
  while (passed < 1000 && turns.pass()) ++passed;
  EXPECT_GE(passed, 2);
  EXPECT_LT(passed, 1000);
  EXPECT_TRUE(later_turns(short_turn).pass());
}

TEST(TurnsOfOthers, AfterALongOneNonePassesForTwentyTimesAsLong) {
  for (const auto yield : {long_turn, long_turn_of_a_few_questions}) {
    TurnsOfOthers turns = later_turns(yield);
    const TimePoint before = Clock::now();
    EXPECT_TRUE(turns.pass());
    const TimePoint after = Clock::now();
    EXPECT_FALSE(turns.pass());
    EXPECT_FALSE(turns_at(after, short_turn).pass());
    EXPECT_FALSE(turns_at(before + 20 * 2ms, short_turn).pass());
    std::thread([&] { EXPECT_FALSE(turns_at(after, short_turn).pass()); }).join();
    EXPECT_TRUE(turns_at(after + 20 * (after - before), short_turn).pass());
    std::this_thread::sleep_until(after + 20 * (after - before));  // for the tests that follow
  }
}

TEST(TurnsOfOthers, ALongOneOfManyQuestionsEndsOneWaitOnly) {
  ASSERT_TRUE(eventually([] { return turns_at(Clock::now(), short_turn).pass(); }));
  TurnsOfOthers turns = later_turns(long_turn_of_questions);
  const TimePoint before = Clock::now();
  EXPECT_TRUE(turns.pass());
  EXPECT_FALSE(turns.pass());
  EXPECT_TRUE(turns_at(before, short_turn).pass());
}

TEST(SpinPermit, LeavesACoreToTheOthers) {
  const int cores = available_processors();
  std::deque<SpinPermit> permits;
  int granted = 0;
  for (int i = 0; i < cores + 2; ++i) granted += static_cast<bool>(permits.emplace_back(false));
  EXPECT_EQ(granted, std::max(1, cores - 1));
  permits.clear();
  EXPECT_FALSE(SpinPermit(true));
  EXPECT_TRUE(SpinPermit(false));
}

TEST(SpinPermit, AMachineIsCrowdedWhileMoreThreadsRunThanItHasProcessors) {
  const Crowd crowd;
  EXPECT_TRUE(eventually([] { return net::is_crowded(Clock::now()); }));
}

void poll_and_yield() {
  const TimePoint end = Clock::now() + 10us;
  while (Clock::now() < end) continue;
  net::let_others_go_first();
}

TEST(SharedProcessor, IsSeenAndLeft) {
  const std::vector<int> all = processors();
  const int here = all.front();
  std::thread([&] {
    EXPECT_FALSE(net::shares_processor()) << "nobody has yielded yet";
    stay_on({here});
    std::atomic<bool> enough{false};
    std::thread other([&] {
      stay_on({here});
      while (!enough.load()) poll_and_yield();
    });
    // Expect: seen, since the other one runs at each turn for longer than a yield alone takes.
    const TimePoint give_up = Clock::now() + 20s;
    while (!net::shares_processor() && Clock::now() < give_up) {
      poll_and_yield();
    }
    enough = true;
    other.join();
    if (all.size() > 1) {
      EXPECT_TRUE(net::shares_processor());
      stay_on(all);
      bool has_moved = false;  // the kernel may move it, too, at any time
      for (int time = 0; time < 5 && !has_moved; ++time) {
        const int before = sched_getcpu();
        net::leave_processor();
        has_moved = sched_getcpu() != before;
      }
      EXPECT_TRUE(has_moved);
    }
    EXPECT_EQ(processors(), all.size() > 1 ? all : std::vector{here});
    EXPECT_FALSE(net::shares_processor()) << "it looks again from here on";
  }).join();
}

TEST(SharedProcessor, IsNotLeftByWhoMayRunNowhereElse) {
  std::thread([here = processors().front()] {
    stay_on({here});
    net::leave_processor();
    EXPECT_EQ(processors(), std::vector{here});
    EXPECT_EQ(sched_getcpu(), here);
  }).join();
}

}  // namespace
}  // namespace farspan::testing
