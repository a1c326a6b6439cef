// The rules under test: c10d/net/README.md, "Spares": callbacks of futures that block or take long.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <farspan/c10d/net/reactor.h>

#include "c10d/net/tasks.h"

namespace farspan::testing {
namespace {

using net::Reactor;
using std::chrono::milliseconds;

// Two callbacks of one future; the first waits for what the second makes.
struct WaitsForTheNext {
  WaitsForTheNext() {
    promise.future().on_ready([this] { in_time = later.wait_for(std::chrono::seconds(10)); });
    later = promise.future().then([](int value) { return value + 1; });
  }
  Promise<int> promise;
  Future<int> later;
  bool in_time = false;
};

TEST(CallbackThatBlocks, ACallbackMayWaitForWhatALaterOneMakes) {
  Reactor reactor;
  WaitsForTheNext both;
  ASSERT_TRUE(ends(run(reactor, [&] { both.promise.set_value(1); })));
  EXPECT_TRUE(both.in_time);
  EXPECT_EQ(both.later.value(), 2);
}

TEST(CallbackThatBlocks, ALaterCallbackMayWaitForAnEarlierOne) {
  Reactor reactor;
  Promise<int> promise, slow;
  const auto first = promise.future().then([slow](int) { return slow.future().wait() + 1; });
  const auto second = promise.future().then([first](int) { return first.wait() + 1; });
  const auto done = run(reactor, [&] { promise.set_value(1); });
  ASSERT_TRUE(eventually([&] { return reactor.counters().blocked == 2; }));
  slow.set_value(5);
  ASSERT_TRUE(second.wait_for(std::chrono::seconds(10)));
  EXPECT_EQ(second.value(), 7);
  EXPECT_TRUE(ends(done));
}

TEST(CallbackThatBlocks, CallbacksThatAWaitingThreadOfTheProgramRunsMayWaitForEachOther) {
  Reactor reactor;
  WaitsForTheNext both;
  // Makes the future ready in the thread that waits, as a connection does that it reads.
  struct Reads final : net::Source {
    explicit Reads(Promise<int>& p) : promise(p) {}
    int descriptor() const noexcept override { return -1; }
    bool pump(net::Role& role) noexcept override {
      role.release();
      return promise.set_value(1);
    }
    Promise<int>& promise;
  };
  const auto source = std::make_shared<Reads>(both.promise);
  EXPECT_TRUE(reactor.wait(*both.promise.future().state(),
                           Deadline::after(std::chrono::seconds(10)), source.get()));
  EXPECT_TRUE(both.in_time);
  EXPECT_EQ(both.later.wait(), 2);
}

TEST(CallbackThatBlocks, ManyCallbacksThatWaitNeedFewThreadsAndNoDeepStack) {
  Reactor reactor({.threads = 2, .max_threads = 4});
  Promise<int> promise, slow;
  std::vector<Future<int>> all;
  for (int i = 0; i < 50'000; ++i) {
    all.push_back(promise.future().then([slow](int) { return slow.future().wait(); }));
  }
  const auto done = run(reactor, [&] { promise.set_value(1); });
  ASSERT_TRUE(eventually([&] { return reactor.counters().blocked > 4; }));
  EXPECT_LT(reactor.counters().threads, 40);
  slow.set_value(5);
  EXPECT_TRUE(ends(done));
  for (const auto& one : all) EXPECT_EQ(one.wait(), 5);
}

TEST(CallbackThatComputes, LeavesAReaderHoweverManyThereAre) {
  Reactor reactor({.threads = 2, .max_threads = 8});
  std::atomic<bool> go{false};
  std::atomic<int> begun{0}, ended{0};
  for (int i = 0; i < 5; ++i) {
    // Whoever reads runs the timer, and with it the callback.
    reactor.timers().add(Clock::now(), [&] {
      Promise<void> promise;
      promise.future().on_ready([&] {
        ++begun;
        while (!go) std::this_thread::yield();
        ++ended;
      });
      promise.set_value();
    });
    ASSERT_TRUE(eventually([&] { return begun == i + 1; }));
  }
  go = true;
  EXPECT_TRUE(eventually([&] { return ended == 5 && reactor.counters().threads == 2; }));
}

TEST(CallbackThatComputes, DoesNotHoldUpTimersThatWereDueWithIt) {
  Reactor reactor({.threads = 2});
  std::atomic<bool> later_ran{false};
  const Promise<bool> seen;
  const TimePoint due = Clock::now() + milliseconds(2);
  reactor.timers().add(due, [&] {
    Promise<void> promise;
    promise.future().on_ready([&] { seen.set_value(eventually([&] { return !!later_ran; })); });
    promise.set_value();
  });
  reactor.timers().add(due, [&] { later_ran = true; });
  EXPECT_TRUE(seen.future().wait(Millis(20'000)));
}

TEST(CallbackThatComputes, DoesNotHoldUpTasksThatItsThreadHasQueued) {
  Reactor reactor({.threads = 4});
  std::atomic<bool> first_ran{false}, second_ran{false};
  const Promise<bool> before_it, in_it;
  reactor.timers().add(Clock::now(), [&] {
    run(reactor, [&] { first_ran = true; });
    Promise<void> promise;
    promise.future().on_ready([&] {
      before_it.set_value(eventually([&] { return !!first_ran; }));
      run(reactor, [&] { second_ran = true; });
      in_it.set_value(eventually([&] { return !!second_ran; }));
    });
    promise.set_value();
  });
  EXPECT_TRUE(before_it.future().wait(Millis(20'000)));
  EXPECT_TRUE(in_it.future().wait(Millis(20'000)));
}

}  // namespace
}  // namespace farspan::testing
