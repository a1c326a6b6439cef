// The rules under test: c10d/base/future.h, one future at a time.
#include <farspan/c10d/base/future.h>

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "support/errors.h"

namespace farspan::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Error boom() { return Error(Code::kRemote, "boom"); }

TEST(Future, DeliversAValue) {
  Promise<int> promise;
  const Future<int> future = promise.future();
  EXPECT_TRUE(future.valid());
  EXPECT_FALSE(future.ready());
  EXPECT_TRUE(promise.set_value(7));
  EXPECT_TRUE(future.ready());
  EXPECT_FALSE(future.has_error());
  EXPECT_EQ(future.wait(), 7);
  EXPECT_EQ(future.value(), 7);
}

TEST(Future, DeliversAnError) {
  Promise<void> promise;
  const Future<void> future = promise.future();
  EXPECT_TRUE(promise.set_error(boom()));
  EXPECT_TRUE(future.has_error());
  EXPECT_EQ(future.error().code(), Code::kRemote);
  EXPECT_EQ(code_of([&] { future.wait(); }), Code::kRemote);
}

TEST(Future, TheFirstResultStays) {
  Promise<int> promise;
  EXPECT_TRUE(promise.set_value(1));
  EXPECT_FALSE(promise.set_value(2));
  EXPECT_FALSE(promise.set_error(boom()));
  EXPECT_EQ(promise.future().wait(), 1);
}

TEST(Future, ABrokenPromiseIsCancelled) {
  Future<int> future;
  {
    const Promise<int> promise;
    const Promise<int> copy = promise;
    future = promise.future();
  }
  ASSERT_TRUE(future.ready());
  EXPECT_EQ(future.error().code(), Code::kCancelled);
}

TEST(Future, AnEmptyOneSaysSo) {
  const Future<int> none;
  EXPECT_FALSE(none.valid());
  EXPECT_FALSE(none.ready());
  EXPECT_FALSE(none.has_error());
  EXPECT_EQ(code_of([&] { none.wait(); }), Code::kInvalidArgument);
  EXPECT_EQ(code_of([&] { none.value(); }), Code::kInvalidArgument);
  EXPECT_EQ(code_of([&] { none.wait_for(milliseconds(1)); }), Code::kInvalidArgument);
  EXPECT_EQ(code_of([&] { none.then([](int) {}); }), Code::kInvalidArgument);
}

TEST(Future, TheValueOfAnUnfinishedOneIsAnError) {
  const Promise<int> promise;
  EXPECT_EQ(code_of([&] { promise.future().value(); }), Code::kInvalidArgument);
}

TEST(Future, WaitGivesUpInTimeAndTheOperationGoesOn) {
  const Promise<int> promise;
  const Future<int> future = promise.future();
  const TimePoint begun = Clock::now();
  EXPECT_EQ(code_of([&] { future.wait(milliseconds(20)); }), Code::kTimeout);
  EXPECT_FALSE(future.wait_for(milliseconds(10)));
  EXPECT_GE(Clock::now() - begun, milliseconds(30));
  promise.set_value(1);
  EXPECT_EQ(future.wait(milliseconds(1)), 1);
}

// Memory that is touched after it is gone is what the sanitizers see.
TEST(Future, WhoeverWaitsMayDestroyThePromise) {
  for (int round = 0; round < 2000; ++round) {
    auto promise = std::make_unique<Promise<int>>();
    std::thread delivering([&delivers = *promise, round] {
      if (round % 2 == 0) {
        delivers.set_value(round);
      } else {
        delivers.set_error(boom());
      }
    });
    while (!promise->future().ready()) {
    }  // sees it at once, unlike a thread that is woken
    promise.reset();
    delivering.join();
  }
}

TEST(Future, WakesEveryThreadThatWaits) {
  const Promise<int> promise;
  std::atomic<int> sum{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, future = promise.future()] { sum += future.wait(); });
  }
  promise.set_value(5);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(sum, 40);
}

// Or the first thing that a woken thread does would be to wait for the one that woke it.
TEST(Future, ASleeperIsWokenWithoutTheLock) {
  struct Asks final : Sleeper {
    explicit Asks(FutureCore& of) : future(of) {}
    void wake() noexcept override { was_there = future.remove_sleeper(*this); }
    FutureCore& future;
    bool was_there = true;
  };
  Promise<int> promise;
  const Future<int> future = promise.future();
  Asks woken(*future.state()), removed(*future.state());
  ASSERT_TRUE(future.state()->add_sleeper(woken));
  ASSERT_TRUE(future.state()->add_sleeper(removed));
  EXPECT_TRUE(future.state()->remove_sleeper(removed));
  promise.set_value(7);
  EXPECT_FALSE(woken.was_there);
  EXPECT_TRUE(removed.was_there) << "woken, though it was removed";
  EXPECT_FALSE(future.state()->add_sleeper(removed));
}

TEST(Future, OneOfManyThreadsDelivers) {
  for (int round = 0; round < 50; ++round) {
    const Promise<int> promise;
    std::atomic<int> accepted{0}, called{0};
    promise.future().on_ready([&] { ++called; });
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&, i] { accepted += promise.set_value(i); });
    }
    promise.future().wait();
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(accepted, 1);
    EXPECT_EQ(called, 1);
  }
}

TEST(Future, ATemporaryGivesItsValueAway) {
  Promise<std::unique_ptr<int>> promise;
  promise.set_value(std::make_unique<int>(3));
  auto future = promise.future();
  promise = {};
  const std::unique_ptr<int> value = std::move(future).wait();
  EXPECT_EQ(*value, 3);
}

// ThreadSanitizer is the judge, as the flag orders nothing.
TEST(Future, ATemporaryMayOutliveTheCopyOfAnotherThread) {
  for (int round = 0; round < 100; ++round) {
    auto future = make_ready_future(std::string("a text that is longer than sixteen"));
    std::atomic<bool> dropped{false};
    std::string seen;
    std::thread other([copy = future, &dropped, &seen]() mutable {
      seen = copy.wait();
      copy = {};
      dropped.store(true, std::memory_order_relaxed);
    });
    while (!dropped.load(std::memory_order_relaxed)) std::this_thread::yield();
    std::string mine = std::move(future).wait();
    mine[0] = 'A';
    other.join();
    EXPECT_EQ(seen[0], 'a');
  }
}

TEST(Future, ThenTakesTheValue) {
  Promise<int> promise;
  auto text = promise.future().then([](int value) { return std::to_string(value); });
  promise.set_value(12);
  EXPECT_EQ(text.wait(), "12");
}

TEST(Future, ThenOnAReadyOneRunsAtOnce) {
  bool ran = false;
  make_ready_future(1).then([&](int) { ran = true; });
  EXPECT_TRUE(ran);
}

TEST(Future, ThenPassesErrorsBy) {
  bool ran = false;
  auto next = make_error_future<int>(boom()).then([&](int) { ran = true; });
  EXPECT_FALSE(ran);
  EXPECT_EQ(next.error().message(), "boom");
  auto after = make_error_future<void>(boom()).then([&] { ran = true; });
  EXPECT_FALSE(ran);
  EXPECT_EQ(after.error().message(), "boom");
}

TEST(Future, ThenMaySeeTheError) {
  auto next = make_error_future<int>(boom()).then(
      [](const Future<int>& done) { return done.has_error() ? -1 : done.value(); });
  EXPECT_EQ(next.wait(), -1);
}

// As a call's.
struct GivenUp : detail::FutureState<int> {
  bool cancel() override { return set_error(Error(Code::kCancelled, "given up")); }
};

TEST(Future, CancelGivesUpWhatItComesOf) {
  const Future<int> source(std::make_shared<GivenUp>());
  const auto second = source.then([](int x) { return x + 1; });
  const auto third = second.then([](int x) { return x + 1; });
  const auto instead = third.on_error([](const Error&) { return 7; });
  EXPECT_TRUE(third.cancel());
  for (const auto& ended : {source, second, third}) {
    EXPECT_EQ(ended.error().code(), Code::kCancelled);
    EXPECT_FALSE(ended.cancel());
  }
  EXPECT_EQ(instead.value(), 7);
}

TEST(Future, CancelGivesUpWhatAContinuationHasBegun) {
  const Promise<int> promise;
  const Future<int> begun(std::make_shared<GivenUp>());
  const auto second = promise.future().then([&](int) { return begun; });
  const auto third = second.then([](int x) { return x + 1; });
  EXPECT_FALSE(third.cancel());
  promise.set_value(1);
  EXPECT_TRUE(third.cancel());
  for (const auto& ended : {begun, second, third}) {
    EXPECT_EQ(ended.error().code(), Code::kCancelled);
  }
}

TEST(Future, CancelLeavesAPromiseAlone) {
  const Promise<int> promise;
  const auto next = promise.future().then([](int x) { return x + 1; });
  EXPECT_FALSE(promise.future().cancel());
  EXPECT_FALSE(next.cancel());
  promise.set_value(1);
  EXPECT_EQ(next.value(), 2);
  EXPECT_FALSE(next.cancel());
  EXPECT_EQ(code_of([] { Future<int>().cancel(); }), Code::kInvalidArgument);
}

TEST(Future, WhatAContinuationThrowsBecomesTheError) {
  auto next = make_ready_future(1).then([](int) -> int { throw std::out_of_range("nine"); });
  ASSERT_TRUE(next.has_error());
  EXPECT_EQ(next.error().code(), Code::kRemote);
  EXPECT_EQ(next.error().remote_type(), "std::out_of_range");
}

TEST(Future, AContinuationMayReturnAFuture) {
  Promise<int> outer, inner;
  auto next = outer.future().then([&](int) { return inner.future(); });
  outer.set_value(1);
  EXPECT_FALSE(next.ready());
  inner.set_value(9);
  EXPECT_EQ(next.wait(), 9);
}

TEST(Future, TheErrorOfAnInnerFutureIsPassedOn) {
  Promise<void> inner;
  auto next = make_ready_future().then([&] { return inner.future(); });
  inner.set_error(boom());
  EXPECT_EQ(next.error().message(), "boom");
}

TEST(Future, OnErrorStandsIn) {
  EXPECT_EQ(make_error_future<int>(boom()).on_error([](const Error&) { return 5; }).wait(), 5);
  EXPECT_EQ(make_ready_future(4).on_error([](const Error&) { return 5; }).wait(), 4);
  bool told = false;
  make_error_future<void>(boom()).on_error([&](const Error&) { told = true; }).wait();
  EXPECT_TRUE(told);
}

TEST(Future, ACallbackMayWaitForWhatAnotherThreadDelivers) {
  Promise<int> first, second;
  auto sum = first.future().then([&](int a) { return a + second.future().wait(); });
  std::thread other([&] {
    while (!first.future().ready()) std::this_thread::yield();
    second.set_value(2);
  });
  first.set_value(1);
  EXPECT_EQ(sum.wait(), 3);
  other.join();
}

TEST(Future, ALaterCallbackMayWaitForAnEarlierOne) {
  Promise<int> promise, slow;
  const auto first = promise.future().then([slow](int) { return slow.future().wait() + 1; });
  const auto second = promise.future().then([first](int) { return first.wait() + 1; });
  std::thread other([&] { slow.set_value(5); });
  promise.set_value(1);
  other.join();
  EXPECT_EQ(second.value(), 7);
}

// 200,000 continuations that make each other ready, one inside the other, would need far more stack
// than a thread has.
TEST(Future, ALongChainNeedsNoDeepStack) {
  constexpr int kLinks = 200'000;
  for (const bool fails : {false, true}) {
    Promise<int> promise;
    Future<int> last = promise.future();
    for (int i = 0; i < kLinks; ++i) last = last.then([](int value) { return value + 1; });
    EXPECT_EQ(code_of([&] { last.wait(Millis(1)); }), Code::kTimeout);
    EXPECT_FALSE(last.cancel());
    fails ? promise.set_error(boom()) : promise.set_value(0);
    ASSERT_TRUE(last.ready());
    EXPECT_EQ(last.has_error(), fails);
    if (!fails) {
      EXPECT_EQ(last.value(), kLinks);
    }
  }
}

// The second callback of a link deep in the chain waits for the end of the chain, which the depth
// has put into the row.
TEST(Future, ACallbackDeepInAChainMayWaitForItsEnd) {
  Promise<int> promise;
  std::vector<Future<int>> links{promise.future()};
  for (int i = 0; i < 100; ++i) links.push_back(links.back().then([](int v) { return v + 1; }));
  int seen = 0;
  links[50].on_ready([&, last = links.back()] {
    if (last.wait_for(seconds(10))) seen = last.value();
  });
  promise.set_value(0);
  EXPECT_EQ(seen, 100);
}

}  // namespace
}  // namespace farspan::testing
