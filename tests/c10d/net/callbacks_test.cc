// The rules under test: c10d/net/README.md, "Callbacks": those that block, and those that compute.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <farspan/c10d/net/batch.h>
#include <farspan/c10d/net/reactor.h>

#include "c10d/net/mailbox.h"
#include "c10d/net/tasks.h"

namespace farspan::testing {
namespace {

using net::Reactor;
using std::chrono::milliseconds;

// Runs `callback` as one of a future that the calling thread makes ready.
void run_as_callback(std::function<void()> callback) {
  Promise<void> promise;
  promise.future().on_ready(std::move(callback));
  promise.set_value();
}

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
  const auto source = std::make_shared<Mailbox>([&](uint64_t) { both.promise.set_value(1); });
  source->post();
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
      run_as_callback([&] {
        ++begun;
        while (!go) std::this_thread::yield();
        ++ended;
      });
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
    run_as_callback([&] { seen.set_value(eventually([&] { return !!later_ran; })); });
  });
  reactor.timers().add(due, [&] { later_ran = true; });
  EXPECT_TRUE(seen.future().wait(Millis(20'000)));
}

// Whoever takes both from the system is the only one that hears of them.
TEST(CallbackThatComputes, DoesNotHoldUpATimerThatCameWithWhatItsSourceBrought) {
  std::atomic<int> held_up{0};
  std::atomic<bool> may_go{false}, timer_ran{false};
  const Promise<bool> seen;
  const auto mailbox = std::make_shared<Mailbox>([&](uint64_t) {
    run_as_callback([&] { seen.set_value(eventually([&] { return !!timer_ran; })); });
  });
  Reactor reactor({.threads = 2});
  reactor.add(mailbox);
  const auto hold_up = [&] {
    ++held_up;
    while (!may_go) std::this_thread::yield();
  };
  reactor.timers().add(Clock::now(), [&] {
    reactor.timers().add(Clock::now(), hold_up);  // the other thread
    hold_up();
  });
  ASSERT_TRUE(eventually([&] { return held_up == 2; }));
  mailbox->post();
  reactor.timers().add(Clock::now(), [&] { timer_ran = true; });
  may_go = true;
  EXPECT_TRUE(seen.future().wait(Millis(20'000)));
}

TEST(CallbackThatComputes, DoesNotHoldUpTasksThatItsThreadHasQueued) {
  Reactor reactor({.threads = 4});
  std::atomic<bool> first_ran{false}, second_ran{false};
  const Promise<bool> before_it, in_it;
  reactor.timers().add(Clock::now(), [&] {
    run(reactor, [&] { first_ran = true; });
    run_as_callback([&] {
      before_it.set_value(eventually([&] { return !!first_ran; }));
      run(reactor, [&] { second_ran = true; });
      in_it.set_value(eventually([&] { return !!second_ran; }));
    });
  });
  EXPECT_TRUE(before_it.future().wait(Millis(20'000)));
  EXPECT_TRUE(in_it.future().wait(Millis(20'000)));
}

// Its thread waits in a chain, but cannot run a task of it now.
TEST(CallbackThatComputes, InAWaitLeavesTasksOfItsChainToOtherThreads) {
  Reactor reactor({.threads = 2, .max_threads = 2});
  Promise<void> gate, answer;
  std::atomic<bool> computes{false}, nested_ran{false};
  const Promise<bool> seen;
  answer.future().on_ready([&] {
    computes = true;
    seen.set_value(eventually([&] { return !!nested_ran; }));
  });
  const auto source = std::make_shared<Mailbox>([&](uint64_t) { answer.set_value(); });
  reactor.add(source);
  const auto waits = run(
      reactor,
      [&] {
        reactor.wait(*gate.future().state(), Deadline::after(std::chrono::seconds(20)),
                     source.get());
      },
      7);
  ASSERT_TRUE(eventually([&] { return reactor.counters().blocked == 1; }));
  source->post();
  ASSERT_TRUE(eventually([&] { return !!computes; }));
  // Expect: this one is at the limit; when it ends, its thread takes the nested one.
  Promise<void> at_limit;
  std::atomic<bool> go{false};
  const auto other = run(reactor, [&] {
    at_limit.set_value();
    while (!go) std::this_thread::yield();
  });
  ASSERT_TRUE(ends(at_limit.future()));
  const auto nested = run(
      reactor, [&] { nested_ran = true; }, 7);
  go = true;
  EXPECT_TRUE(seen.future().wait(Millis(20'000)));
  EXPECT_TRUE(ends(nested));
  gate.set_value();
  EXPECT_TRUE(ends(waits) && ends(other));
  reactor.remove(*source);
}

// A thread of the program's waits in chain 9, and runs a callback there; all threads are blocked.
class InAChain : public ::testing::Test {
 protected:
  InAChain() {
    for (int i = 1; i <= 2; ++i) {
      blocked_.push_back(run(reactor_, [this] { gate_.future().wait(); }));
      EXPECT_TRUE(eventually([&] { return reactor_.counters().blocked == i; }));
    }
  }
  ~InAChain() override {
    gate_.set_value();
    for (const auto& one : blocked_) EXPECT_TRUE(ends(one));
    join();
  }
  void wait_and_run(std::function<void()> callback) {
    came_.future().on_ready([this, callback = std::move(callback)] {
      in_callback_ = true;
      callback();
    });
    outside_ = std::thread([this] {
      net::set_current_chain(9);
      reactor_.wait(*answer_.future().state(), Deadline::after(std::chrono::seconds(20)),
                    mailbox_.get());
      net::set_current_chain(0);
    });
    mailbox_->post();
    ASSERT_TRUE(eventually([&] { return !!in_callback_; }));
  }
  // Until the callback has ended, and that wait.
  void join() {
    if (outside_.joinable()) outside_.join();
  }

  Reactor reactor_{{.threads = 2, .max_threads = 2}};
  Promise<void> gate_, came_, answer_;
  std::atomic<bool> in_callback_{false};
  // Not added to the reactor, so that only the thread that waits reads it.
  std::shared_ptr<Mailbox> mailbox_ =
      std::make_shared<Mailbox>([this](uint64_t) { came_.set_value(); });
  std::vector<Future<void>> blocked_;
  std::thread outside_;
};

TEST_F(InAChain, ATaskThatItsThreadLeavesBehindIsTurnedAway) {
  std::atomic<bool> computes{true};
  wait_and_run([&] {
    while (computes) std::this_thread::yield();
    answer_.set_value();
  });
  const auto task = run(
      reactor_, [] {}, 9);
  // As a rule the second passes in which nothing moves, and its thread might still come for it.
  std::this_thread::sleep_for(milliseconds(1'300));
  computes = false;
  join();
  ASSERT_TRUE(ends(task));
  EXPECT_TRUE(task.has_error());
}

TEST_F(InAChain, AWaitByAnotherReactorDoesNotLoseTheCall) {
  Reactor another;
  Promise<void> gate;
  wait_and_run([&] {
    another.wait(*gate.future().state(), Deadline::after(std::chrono::seconds(20)), nullptr);
  });
  const auto task = run(
      reactor_, [this] { answer_.set_value(); }, 9);
  std::this_thread::sleep_for(milliseconds(20));  // for that wait to look, as a rule
  gate.set_value();
  join();
  ASSERT_TRUE(ends(task));
  EXPECT_FALSE(task.has_error());
}

TEST(CallbackThatComputes, IsOneOfAsManyAtOnceAsTheOptionSays) {
  Reactor reactor({.threads = 2});
  std::atomic<int> now{0}, most{0}, ended{0};
  const TimePoint due = Clock::now() + milliseconds(5);
  for (int i = 0; i < 30; ++i) {
    reactor.timers().add(due, [&] {
      run_as_callback([&] {
        const int running = ++now;
        for (int seen = most; running > seen && !most.compare_exchange_weak(seen, running);) {
        }
        std::this_thread::sleep_for(milliseconds(5));  // busy, as far as the reactor knows
        --now;
        ++ended;
      });
    });
  }
  EXPECT_TRUE(eventually([&] { return ended == 30; }));
  // Not both from the beginning: the second comes for what the first has lent.
  EXPECT_EQ(most, 2);
}

TEST(CallbackThatComputes, InAThreadOfTheProgramDoesNotHoldUpTheRestEither) {
  Reactor reactor({.threads = 2});
  std::atomic<bool> second_came{false};
  bool seen = false;
  net::Batch(
      reactor.timers(), std::vector<int>{1, 2},
      [&](int item) {
        if (item == 2) return second_came.store(true);
        run_as_callback([&] { seen = eventually([&] { return !!second_came; }); });
      },
      [] {})
      .run();
  EXPECT_TRUE(seen);
}

}  // namespace
}  // namespace farspan::testing
