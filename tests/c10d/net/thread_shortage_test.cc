// The rule under test: c10d/net/README.md, "Threads": when the system gives no more threads, that
// is the limit. This program stands in for pthread_create, so that it can refuse.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

#include "c10d/net/tasks.h"
#include "support/errors.h"

namespace {
std::atomic<bool> refuse{false};
std::atomic<int> refused{0};
}  // namespace

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*start)(void*), void* argument) noexcept {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (refuse) ++refused;
  return refuse ? EAGAIN : real(thread, attributes, start, argument);
}

namespace farspan::testing {
namespace {

class ThreadShortageTest : public ::testing::Test {
 protected:
  ~ThreadShortageTest() override { refuse = false; }
};

TEST_F(ThreadShortageTest, AReactorThatGetsNoThreadSaysSo) {
  refuse = true;
  EXPECT_EQ(code_of([] { const net::Reactor reactor; }), Code::kOverloaded);
}

TEST_F(ThreadShortageTest, WorkIsTurnedAwayWhenNoThreadIsLeftToRead) {
  Promise<void> gate;
  net::Reactor reactor;  // with two threads
  refuse = true;
  const auto first = run(reactor, [&] { gate.future().wait(); });
  ASSERT_TRUE(eventually([&] { return reactor.counters().blocked == 1; }));
  // Expect: the last thread reads on, and does not run this.
  const auto second = run(reactor, [] {});
  ASSERT_TRUE(ends(second));
  ASSERT_TRUE(second.has_error());
  EXPECT_EQ(second.error().code(), Code::kOverloaded);
  EXPECT_FALSE(first.ready());
  // Expect: a timer, which only a reading thread runs, still comes.
  Promise<void> timer;
  reactor.timers().add(Clock::now(), [&] { timer.set_value(); });
  EXPECT_TRUE(ends(timer.future()));
  gate.set_value();
  EXPECT_TRUE(ends(first));
  EXPECT_TRUE(eventually([&] { return reactor.counters().running == 0; }));
  const auto third = run(reactor, [] {});
  ASSERT_TRUE(ends(third));
  EXPECT_FALSE(third.has_error());
}

TEST_F(ThreadShortageTest, IsOverWhenTheSystemGivesThreadsAgain) {
  Promise<void> gate;
  net::Reactor reactor({.threads = 2, .max_threads = 8});
  refuse = true;
  std::vector<Future<void>> all;
  all.push_back(run(reactor, [&] { gate.future().wait(); }));
  ASSERT_TRUE(eventually([&] { return reactor.counters().blocked == 1; }));
  ASSERT_TRUE(ends(run(reactor, [] {})));  // turned away
  refuse = false;
  EXPECT_TRUE(eventually([&] {
    const auto task = run(reactor, [] {});
    return ends(task) && !task.has_error();
  }));
  for (int i = 1; i < 8; ++i) all.push_back(run(reactor, [&] { gate.future().wait(); }));
  EXPECT_TRUE(eventually([&] { return reactor.counters().blocked == 8; }));
  gate.set_value();
  for (const auto& one : all) {
    ASSERT_TRUE(ends(one));
    EXPECT_FALSE(one.has_error());
  }
}

TEST_F(ThreadShortageTest, IsNoReasonToTryAllTheTimeWhileACallbackComputes) {
  net::Reactor reactor({.threads = 2, .max_threads = 8});
  std::atomic<bool> computes{false}, go{false};
  reactor.timers().add(Clock::now(), [&] {
    Promise<void> promise;
    promise.future().on_ready([&] {
      computes = true;
      while (!go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    promise.set_value();
  });
  ASSERT_TRUE(eventually([&] { return !!computes; }));
  refuse = true;
  const int before = refused;
  const auto task = run(reactor, [] {});
  // Expect: the only thread that reads goes on reading.
  Promise<void> timer;
  reactor.timers().add(Clock::now() + std::chrono::milliseconds(300), [&] { timer.set_value(); });
  EXPECT_TRUE(ends(timer.future()));
  EXPECT_LT(refused - before, 20);
  go = true;
  EXPECT_TRUE(ends(task));
}

TEST_F(ThreadShortageTest, ATaskOfAWaitingChainStillRuns) {
  Promise<void> gate;
  net::Reactor reactor;
  refuse = true;
  const auto outer = run(
      reactor, [&] { gate.future().wait(); }, 5);
  ASSERT_TRUE(eventually([&] { return reactor.counters().blocked == 1; }));
  const auto nested = run(
      reactor, [&] { gate.set_value(); }, 5);
  ASSERT_TRUE(ends(nested));
  EXPECT_FALSE(nested.has_error());
  EXPECT_TRUE(ends(outer));
}

}  // namespace
}  // namespace farspan::testing
