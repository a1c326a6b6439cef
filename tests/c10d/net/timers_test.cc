// The rules under test: c10d/net/timers.h.
#include <farspan/c10d/net/timers.h>

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <random>
#include <thread>

#include <farspan/c10d/base/unfinished.h>

namespace farspan::testing {
namespace {

using net::TimerId;
using net::Timers;
using std::chrono::hours;
using std::chrono::milliseconds;

bool readable(const Timers& timers, int wait_ms) {
  pollfd fd{timers.descriptor(), POLLIN, 0};
  return poll(&fd, 1, wait_ms) == 1;
}

// Runs what is due until nothing more comes for a while.
void run_all(Timers& timers) {
  while (readable(timers, 100)) timers.run_due();
}

TEST(Timers, RunInTheOrderOfTime) {
  Timers timers;
  const TimePoint now = Clock::now();
  std::vector<int> delays(50);
  for (size_t i = 0; i < delays.size(); ++i) delays[i] = static_cast<int>(i);
  std::shuffle(delays.begin(), delays.end(), std::mt19937(7));
  std::vector<int> ran;
  for (const int delay : delays) {
    timers.add(now + milliseconds(delay), [&ran, delay] { ran.push_back(delay); });
  }
  run_all(timers);
  EXPECT_TRUE(std::is_sorted(ran.begin(), ran.end()));
  EXPECT_EQ(ran.size(), delays.size());
}

TEST(Timers, NeverRunEarly) {
  Timers timers;
  const TimePoint at = Clock::now() + milliseconds(30);
  TimePoint ran{};
  timers.add(at, [&] { ran = Clock::now(); });
  timers.run_due();
  EXPECT_TRUE(ran == TimePoint{} || ran >= at);
  run_all(timers);
  EXPECT_GE(ran, at);
}

TEST(Timers, AnEarlierOneIsNotDelayedByALaterOne) {
  Timers timers;
  int ran = 0;
  timers.add(Clock::now() + hours(1), [&] { ran += 100; });
  timers.add(Clock::now() + milliseconds(5), [&] { ++ran; });
  ASSERT_TRUE(readable(timers, 5'000));
  timers.run_due();
  EXPECT_EQ(ran, 1);
}

TEST(Timers, ACancelledOneDoesNotRun) {
  Timers timers;
  bool ran = false;
  const TimerId id = timers.add(Clock::now() + milliseconds(5), [&] { ran = true; });
  EXPECT_TRUE(timers.cancel(id));
  EXPECT_FALSE(timers.cancel(id));
  run_all(timers);
  EXPECT_FALSE(ran);
}

TEST(Timers, OneThatHasRunCannotBeCancelled) {
  Timers timers;
  const TimerId id = timers.add(Clock::now(), [] {});
  run_all(timers);
  EXPECT_FALSE(timers.cancel(id));
}

TEST(Timers, CallbacksMayAddAndCancel) {
  Timers timers;
  bool last_ran = false, other_ran = false;
  const TimerId other = timers.add(Clock::now() + milliseconds(50), [&] { other_ran = true; });
  timers.add(Clock::now(), [&] {
    timers.cancel(other);
    timers.add(Clock::now() + milliseconds(5), [&] { last_ran = true; });
  });
  run_all(timers);
  EXPECT_TRUE(last_ran);
  EXPECT_FALSE(other_ran);
}

TEST(Timers, ANudgeMakesTheDescriptorReadableOnce) {
  Timers timers;
  timers.nudge(Clock::now() + milliseconds(5));
  EXPECT_TRUE(readable(timers, 5'000));
  timers.run_due();
  EXPECT_FALSE(readable(timers, 20));
}

TEST(Timers, AWatchIsMovedEarlierAndLater) {
  Timers timers;
  timers.watch(Clock::now() + hours(1));
  EXPECT_FALSE(readable(timers, 10));
  timers.watch(Clock::now() + milliseconds(1));
  EXPECT_TRUE(readable(timers, 10'000));
  timers.run_due();
  EXPECT_FALSE(readable(timers, 10)) << "it is over";
  timers.watch(Clock::now() + milliseconds(50));
  timers.watch(Clock::now() + hours(1));
  EXPECT_FALSE(readable(timers, 200));
  timers.nudge(Clock::now() + milliseconds(1));
  EXPECT_TRUE(readable(timers, 10'000)) << "a nudge is another matter";
}

TEST(Timers, FarAwayTimesAreKept) {
  Timers timers;
  timers.add(TimePoint::max(), [] { FAIL(); });
  timers.add(Clock::now() + hours(24 * 365 * 100), [] { FAIL(); });
  bool ran = false;
  timers.add(Clock::now() + milliseconds(5), [&] { ran = true; });
  run_all(timers);
  EXPECT_TRUE(ran);
}

// A callback that blocks waits for one that was due at the same time.
TEST(Timers, ACallbackThatBlocksLeavesTheOthersToAnotherThread) {
  Timers timers;
  std::atomic<bool> second_ran{false};
  const TimePoint due = Clock::now();
  timers.add(due, [&] {
    Unfinished::hand_over_all();  // as a wait does
    std::thread other([&] {
      ASSERT_TRUE(readable(timers, 5'000));
      timers.run_due();
    });
    other.join();
    EXPECT_TRUE(second_ran);
  });
  timers.add(due, [&] { second_ran = true; });
  run_all(timers);
}

TEST(Timers, AreUsedByManyThreads) {
  Timers timers;
  std::atomic<int> ran{0}, cancelled{0};
  std::atomic<bool> done{false};
  std::thread runner([&] {
    while (!done || readable(timers, 100)) {
      if (readable(timers, 10)) timers.run_due();
    }
  });
  std::vector<std::thread> adders;
  for (int thread = 0; thread < 3; ++thread) {
    adders.emplace_back([&] {
      for (int i = 0; i < 300; ++i) {
        const TimerId id =
            timers.add(Clock::now() + std::chrono::microseconds(i % 7 * 100), [&] { ++ran; });
        if (i % 3 == 0) cancelled += timers.cancel(id);
      }
    });
  }
  for (auto& adder : adders) adder.join();
  done = true;
  runner.join();
  EXPECT_EQ(ran + cancelled, 900);
}

}  // namespace
}  // namespace farspan::testing
