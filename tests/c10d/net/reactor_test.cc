// The rules under test: c10d/net/README.md, "Threads": tasks, waits, the limit and the end.
#include <farspan/c10d/net/reactor.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <farspan/c10d/base/log.h>

#include "c10d/net/sleeps.h"
#include "c10d/net/tasks.h"
#include "support/sanitizers.h"

namespace farspan::testing {
namespace {

using net::Reactor;
using net::ReactorOptions;
using std::chrono::milliseconds;

ReactorOptions few(int threads, int max_threads) {
  ReactorOptions options;
  options.threads = threads;
  options.max_threads = max_threads;
  return options;
}

TEST(ReactorTasks, RunOnAThreadOfTheReactor) {
  Reactor reactor;
  std::thread::id where;
  const auto done = run(reactor, [&] {
    where = std::this_thread::get_id();
    EXPECT_TRUE(net::on_reactor_thread());
  });
  ASSERT_TRUE(ends(done));
  EXPECT_NE(where, std::this_thread::get_id());
  EXPECT_FALSE(net::on_reactor_thread());
}

TEST(ReactorTasks, AllRunHoweverMany) {
  Reactor reactor(few(2, 8));
  std::atomic<int> ran{0};
  std::vector<Future<void>> all;
  for (int i = 0; i < 2'000; ++i) all.push_back(run(reactor, [&] { ++ran; }));
  ASSERT_TRUE(ends(collect_all(all)));
  EXPECT_EQ(ran, 2'000);
}

// Others would only take the processor of the one that runs it. Seldom while other programs
// compute.
TEST(ReactorTasks, ATaskWakesOneThread) {
  Reactor reactor;
  EXPECT_TRUE(eventually([&] {
    constexpr int kTasks = 50;
    const int64_t before = sleeps_of_others();
    for (int i = 0; i < kTasks; ++i) {
      EXPECT_TRUE(ends(run(reactor, [] {})));
      std::this_thread::sleep_for(milliseconds(1));  // so that all are asleep for the next one
    }
    return sleeps_of_others() - before < kTasks * 3 / 2;
  }));
}

TEST(ReactorTasks, NoMoreRunAtOnceThanTheOptionSays) {
  Reactor reactor(few(2, 8));
  std::atomic<int> now{0}, most{0};
  std::vector<Future<void>> all;
  for (int i = 0; i < 20; ++i) {
    all.push_back(run(reactor, [&] {
      const int running = ++now;
      for (int seen = most; running > seen && !most.compare_exchange_weak(seen, running);) {
      }
      std::this_thread::sleep_for(milliseconds(1));  // busy, as far as the reactor knows
      --now;
    }));
  }
  ASSERT_TRUE(ends(collect_all(all)));
  EXPECT_EQ(most, 2);
}

TEST(ReactorTasks, MayStartOthers) {
  Reactor reactor;
  Promise<void> last;
  std::function<void(int)> step = [&](int left) {
    if (left == 0) {
      last.set_value();
    } else {
      run(reactor, [&step, left] { step(left - 1); });
    }
  };
  run(reactor, [&] { step(500); });
  EXPECT_TRUE(ends(last.future()));
}

TEST(ReactorTasks, AThreadStartsWhenTheLastRunnableOneBlocks) {
  Reactor reactor(few(2, 64));
  Promise<void> gate;
  std::vector<Future<void>> all;
  for (int i = 0; i < 40; ++i) all.push_back(run(reactor, [&] { gate.future().wait(); }));
  // Expect: those that are blocked do not count, so all forty have begun.
  EXPECT_TRUE(eventually([&] { return reactor.counters().blocked == 40; }));
  EXPECT_EQ(reactor.counters().running, 0);
  // Expect: and another one still gets a thread.
  EXPECT_TRUE(ends(run(reactor, [] {})));
  gate.set_value();
  EXPECT_TRUE(ends(collect_all(all)));
  EXPECT_TRUE(eventually([&] { return reactor.counters().blocked == 0; }));
}

// Threads that wait, up to the limit.
class ReactorLimitTest : public ::testing::Test {
 protected:
  static constexpr int kMax = 4;
  void block_all(uint64_t chain = 0) {
    for (int i = 0; i < kMax; ++i) {
      blocked_.push_back(run(
          reactor_,
          [this] {
            threads_.set_value(std::this_thread::get_id());
            gate_.future().wait();
          },
          chain));
      ASSERT_TRUE(eventually([&] { return reactor_.counters().blocked == i + 1; }));
      if (chain != 0) return fill_up(i + 1);
    }
  }
  void fill_up(int from) {
    for (int i = from; i < kMax; ++i) {
      blocked_.push_back(run(reactor_, [this] { gate_.future().wait(); }));
      ASSERT_TRUE(eventually([&] { return reactor_.counters().blocked == i + 1; }));
    }
  }
  void block_all_but_one(uint64_t chain) {
    for (int i = 1; i < kMax; ++i) {
      blocked_.push_back(run(
          reactor_, [this] { gate_.future().wait(); }, chain));
      ASSERT_TRUE(eventually([&] { return reactor_.counters().blocked == i; }));
    }
  }
  // A thread that is none of the reactor's waits in this chain.
  std::thread wait_outside(const Future<void>& answer, uint64_t chain) {
    return std::thread([this, answer, chain] {
      net::set_current_chain(chain);
      EXPECT_TRUE(
          reactor_.wait(*answer.state(), Deadline::after(std::chrono::seconds(10)), nullptr));
      net::set_current_chain(0);
    });
  }
  void TearDown() override {
    gate_.set_value();
    EXPECT_TRUE(ends(collect_all(blocked_)));
  }

  Promise<void> gate_;
  Promise<std::thread::id> threads_;  // the first one's
  std::vector<Future<void>> blocked_;
  Reactor reactor_{few(2, kMax)};
};

TEST_F(ReactorLimitTest, BeyondItWorkIsTurnedAway) {
  block_all();
  const auto more = run(reactor_, [] {});
  ASSERT_TRUE(ends(more));
  ASSERT_TRUE(more.has_error());
  EXPECT_EQ(more.error().code(), Code::kOverloaded);
  // Expect: one thread beside the limit, which reads.
  EXPECT_EQ(reactor_.counters().threads, kMax + 1);
}

TEST_F(ReactorLimitTest, WorkWaitsForAThreadThatComesBack) {
  block_all();
  const auto more = run(reactor_, [] {});
  gate_.set_value();
  ASSERT_TRUE(ends(more));
  EXPECT_FALSE(more.has_error());
}

TEST_F(ReactorLimitTest, NothingIsTurnedAwayWhileThreadsMove) {
  std::atomic<bool> moves{true};
  const auto moving = run(reactor_, [&] {
    while (moves) Promise<void>().future().wait_for(milliseconds(50));
  });
  fill_up(1);
  const auto more = run(reactor_, [] {});
  EXPECT_FALSE(more.wait_for(milliseconds(1'500)));
  moves = false;
  ASSERT_TRUE(ends(more));
  EXPECT_FALSE(more.has_error());
  EXPECT_TRUE(ends(moving));
}

TEST_F(ReactorLimitTest, PatientWorkPassesOtherWorkThatWaits) {
  block_all();
  const auto more = run(reactor_, [] {});
  const auto patient = run_patient(reactor_, [this] { gate_.set_value(); });
  ASSERT_TRUE(ends(patient));
  ASSERT_TRUE(ends(more));
  EXPECT_FALSE(more.has_error()) << "it was turned away before the other one was run";
}

TEST_F(ReactorLimitTest, PatientWorkIsDoneAllTheSame) {
  block_all();
  // It may even be what the others wait for.
  const auto patient = run_patient(reactor_, [] {});
  ASSERT_TRUE(ends(patient));
  EXPECT_FALSE(patient.has_error());
  // Expect: that it was done makes no room for other work.
  const auto more = run(reactor_, [] {});
  ASSERT_TRUE(ends(more));
  EXPECT_TRUE(more.has_error());
}

TEST_F(ReactorLimitTest, PatientWorkThatBlocksIsWorkedOffLater) {
  block_all();
  std::vector<Future<void>> patient;
  for (int i = 0; i < 100; ++i) {
    patient.push_back(run_patient(reactor_, [this] { gate_.future().wait(); }));
  }
  EXPECT_TRUE(eventually([&] { return reactor_.counters().blocked > kMax; }));
  // Expect: other work is turned away, not stuck behind it.
  const auto more = run(reactor_, [] {});
  ASSERT_TRUE(ends(more));
  EXPECT_TRUE(more.has_error());
  EXPECT_LT(reactor_.counters().threads, 50);
  gate_.set_value();
  EXPECT_TRUE(ends(collect_all(patient)));
  for (const auto& task : patient) EXPECT_FALSE(task.has_error());
}

TEST_F(ReactorLimitTest, PatientWorkThatCannotBeDoneIsSpokenOf) {
  std::mutex mutex;
  std::string said;
  set_log_sink([&](LogLevel, std::string_view, std::string_view text) {
    const std::lock_guard lock(mutex);
    said += text;
  });
  block_all();
  std::vector<Future<void>> all;
  for (int i = 0; i < 17; ++i) {  // one more than there are threads for such
    all.push_back(run_patient(reactor_, [this] { gate_.future().wait(); }));
  }
  EXPECT_TRUE(eventually([&] {
    const std::lock_guard lock(mutex);
    return said.find("raise WorkerOptions::max_threads") != std::string::npos;
  }));
  set_log_sink(nullptr);
  gate_.set_value();
  EXPECT_TRUE(ends(collect_all(all)));
}

TEST_F(ReactorLimitTest, WorkBehindPatientWorkThatRunsIsTurnedAwayAfterIt) {
  block_all();
  std::atomic<bool> go{false}, begun{false};
  const auto patient = run_patient(reactor_, [&] {
    begun = true;
    while (!go) std::this_thread::yield();
  });
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  const auto more = run(reactor_, [] {});
  go = true;
  ASSERT_TRUE(ends(more));
  EXPECT_TRUE(more.has_error());
  EXPECT_TRUE(ends(patient));
}

TEST_F(ReactorLimitTest, PatientWorkThatComesNowAndAgainDoesNotPutOffThatOtherWorkIsTurnedAway) {
  block_all();
  const auto more = run(reactor_, [] {});
  for (int i = 0; i < 50 && !more.wait_for(milliseconds(200)); ++i) {
    EXPECT_TRUE(ends(run_patient(reactor_, [] {})));
  }
  EXPECT_TRUE(more.has_error());
}

TEST_F(ReactorLimitTest, WorkHasItsSecondHoweverLongThreadsHaveBeenBlocked) {
  block_all();
  ASSERT_TRUE(ends(run(reactor_, [] {})));  // turned away: a second has passed
  const TimePoint begun = Clock::now();
  const auto more = run(reactor_, [] {});
  ASSERT_TRUE(ends(more));
  EXPECT_TRUE(more.has_error());
  EXPECT_GE(Clock::now() - begun, milliseconds(900));
}

TEST_F(ReactorLimitTest, ATaskOfAWaitingChainRunsOnItsThread) {
  block_all(7);
  std::thread::id where;
  const auto nested = run(
      reactor_, [&] { where = std::this_thread::get_id(); }, 7);
  ASSERT_TRUE(ends(nested));
  EXPECT_FALSE(nested.has_error());
  EXPECT_EQ(where, threads_.future().wait());
  // Expect: that thread waits again.
  EXPECT_TRUE(eventually([&] { return reactor_.counters().blocked == kMax; }));
}

TEST_F(ReactorLimitTest, ATaskOfAWaitingChainDoesNotWaitForOtherTasksThatCompute) {
  std::atomic<bool> nested_ran{false};
  block_all_but_one(7);
  const auto computes =
      run(reactor_, [&] { EXPECT_TRUE(eventually([&] { return !!nested_ran; })); });
  ASSERT_TRUE(eventually([&] { return reactor_.counters().running == 1; }));
  EXPECT_TRUE(ends(run(
      reactor_, [&] { nested_ran = true; }, 7)));
  EXPECT_TRUE(ends(computes));
}

// A stranger and a nested task come together, and the stranger takes the last place.
TEST_F(ReactorLimitTest, ATaskOfAWaitingChainIsNotForgottenBehindTheLastThatGotAThread) {
  std::atomic<bool> nested_ran{false};
  block_all_but_one(7);
  // What tasks take decides how the queue is shared.
  ASSERT_TRUE(ends(run(reactor_, [] { std::this_thread::sleep_for(milliseconds(20)); })));
  Promise<bool> seen;
  Promise<Future<void>> nested;
  reactor_.timers().add(Clock::now(), [&] {  // as a line that brings two requests
    run(reactor_, [&] { seen.set_value(eventually([&] { return !!nested_ran; })); });
    nested.set_value(run(
        reactor_, [&] { nested_ran = true; }, 7));
  });
  EXPECT_TRUE(seen.future().wait(Millis(20'000)));
  EXPECT_TRUE(ends(nested.future().wait(Millis(20'000))));
}

TEST_F(ReactorLimitTest, AThreadFromOutsideRunsTasksOfItsChain) {
  block_all();
  std::thread::id where;
  Promise<void> nested_done;
  std::thread outside = wait_outside(nested_done.future(), 9);
  const auto id = outside.get_id();
  // Whether that thread waits already or begins to: it is found.
  const auto nested = run(
      reactor_,
      [&] {
        where = std::this_thread::get_id();
        nested_done.set_value();
      },
      9);
  ASSERT_TRUE(ends(nested));
  EXPECT_FALSE(nested.has_error());
  outside.join();
  EXPECT_EQ(where, id);
}

TEST_F(ReactorLimitTest, WhatAThreadFromOutsideLeavesIsNotForgotten) {
  block_all();
  for (int round = 0; round < 3; ++round) {
    Promise<void> answer;
    std::thread outside = wait_outside(answer.future(), 9);
    std::this_thread::sleep_for(milliseconds(20));  // for it to wait, as a rule
    const auto nested = run(
        reactor_, [] {}, 9);
    answer.set_value();
    outside.join();
    EXPECT_TRUE(ends(nested)) << "neither run nor turned away";
  }
}

TEST_F(ReactorLimitTest, ATaskThatItsChainsThreadIsAboutToRunIsNotTurnedAway) {
  block_all();
  Promise<void> answer;
  std::thread outside = wait_outside(answer.future(), 9);
  const auto first = run(  // for longer than work waits for a thread
      reactor_, [] { std::this_thread::sleep_for(milliseconds(1'300)); }, 9);
  const auto second = run(
      reactor_, [] {}, 9);
  EXPECT_TRUE(ends(first));
  EXPECT_TRUE(ends(second));
  EXPECT_FALSE(first.has_error());
  EXPECT_FALSE(second.has_error());
  answer.set_value();
  outside.join();
}

// What threads do at the limit must not cost more the longer the queue is.
TEST_F(ReactorLimitTest, ALongQueueIsWorkedOffQuickly) {
  block_all_but_one(7);
  const auto time_for = [&](int tasks) {
    std::vector<Future<void>> all;
    Promise<void> begin;
    all.push_back(run(reactor_, [&] {
      while (!begin.future().ready()) std::this_thread::yield();
    }));
    for (int i = 1; i < tasks; ++i)
      all.push_back(run(
          reactor_, [] {}, 100 + uint64_t(i)));
    const TimePoint begun = Clock::now();
    begin.set_value();
    EXPECT_TRUE(collect_all(all).wait_for(std::chrono::seconds(60)));
    return Clock::now() - begun;
  };
  time_for(1'000);
  EXPECT_LT(time_for(40'000), 100 * time_for(4'000) + milliseconds(100));
}

TEST_F(ReactorLimitTest, ARecursionThatIsTooDeepForAThreadIsTurnedAway) {
  if (kThreadSanitizer) {
    GTEST_SKIP() << "ThreadSanitizer's own stack of calls ends before the thread's";
  }
  int depth = 0;
  std::optional<Error> end;
  Promise<void> begin;
  const std::function<void()> recurse = [&] {
    if (++depth == 1) begin.future().wait();
    const auto nested = run(reactor_, recurse, 7);
    nested.wait_for(std::chrono::seconds(60));
    if (nested.has_error() && !end) end = nested.error();
  };
  const auto all = run(reactor_, recurse, 7);
  fill_up(1);
  begin.set_value();
  ASSERT_TRUE(all.wait_for(std::chrono::seconds(60)));
  ASSERT_TRUE(end);
  EXPECT_EQ(end->code(), Code::kOverloaded) << end->what();
  EXPECT_GT(depth, 200);
}

TEST_F(ReactorLimitTest, WorkIsTakenAgainWhenAThreadIsFree) {
  block_all();
  EXPECT_TRUE(run(reactor_, [] {}).wait_for(milliseconds(10'000)));
  gate_.set_value();
  EXPECT_TRUE(eventually([&] { return reactor_.counters().blocked == 0; }));
  const auto more = run(reactor_, [] {});
  ASSERT_TRUE(ends(more));
  EXPECT_FALSE(more.has_error());
}

TEST(ReactorWait, GivesUpAtItsDeadline) {
  Reactor reactor;
  const Promise<void> never;
  const TimePoint begun = Clock::now();
  EXPECT_FALSE(reactor.wait(*never.future().state(), Deadline::after(milliseconds(20)), nullptr));
  EXPECT_GE(Clock::now() - begun, milliseconds(20));
  EXPECT_FALSE(reactor.wait(*never.future().state(), Deadline::after(milliseconds(0)), nullptr));
}

// Objects that a user keeps for each thread end with it, and may take their time.
struct Farewell {
  std::function<void()> say;
  ~Farewell() {
    if (say) say();
  }
};
thread_local Farewell farewell;

TEST(ReactorThreads, OneThatTakesLeaveSlowlyKeepsNobodyWaiting) {
  Promise<void> gate, answer, leaving;
  Reactor reactor(few(8, 16));
  std::vector<Future<void>> all;
  for (int i = 0; i < 8; ++i) {
    all.push_back(run(reactor, [&] {
      farewell.say = [&] {
        leaving.set_value();
        answer.future().wait();
      };
      gate.future().wait();
    }));
  }
  ASSERT_TRUE(eventually([&] { return reactor.counters().blocked == 8; }));
  gate.set_value();
  ASSERT_TRUE(ends(collect_all(all)));
  ASSERT_TRUE(ends(leaving.future()));
  // Expect: threads are started, and end, all the same.
  Promise<void> again;
  std::vector<Future<void>> more;
  for (int i = 0; i < 12; ++i) more.push_back(run(reactor, [&] { again.future().wait(); }));
  EXPECT_TRUE(eventually([&] { return reactor.counters().blocked >= 8; }));
  again.set_value();
  EXPECT_TRUE(ends(collect_all(more)));
  answer.set_value();
}

// A timer's callback runs on a reading thread, and should not block. When it does all the same,
// others read and run what it has queued.
TEST(ReactorWait, ABlockedReaderLeavesItsTasksToOthers) {
  Reactor reactor(few(2, 8));
  Promise<bool> woken;
  reactor.timers().add(Clock::now(), [&] {
    const auto task = run(reactor, [] {});
    woken.set_value(ends(task));
  });
  EXPECT_TRUE(woken.future().wait());
}

TEST(ReactorStop, RejectsWhatHasNotBegun) {
  auto reactor = std::make_unique<Reactor>(few(2, 8));
  std::atomic<bool> go{false};
  std::atomic<int> begun{0};
  std::vector<Future<void>> running;
  for (int i = 0; i < 2; ++i) {
    running.push_back(run(*reactor, [&] {
      ++begun;
      while (!go) std::this_thread::yield();
    }));
  }
  ASSERT_TRUE(eventually([&] { return begun == 2; }));
  const auto queued = run(*reactor, [] {});
  std::thread stopping([&] { reactor->stop(); });
  // Expect: told at once, although those that run still do.
  EXPECT_TRUE(ends(queued));
  EXPECT_FALSE(running[0].ready());
  go = true;
  stopping.join();
  EXPECT_EQ(queued.error().code(), Code::kShutdown);
  for (const auto& task : running) EXPECT_FALSE(task.has_error());
  const auto late = run(*reactor, [] {});
  ASSERT_TRUE(late.ready());
  EXPECT_EQ(late.error().code(), Code::kShutdown);
  EXPECT_EQ(reactor->counters().threads, 0);
}

TEST(ReactorStop, IsNotHeldUpByATaskThatWaitsForAQueuedOne) {
  Reactor reactor(few(2, 8));
  std::atomic<bool> go{false};
  Promise<void> queued_ran;
  const auto waiting = run(reactor, [&] { queued_ran.future().wait_for(milliseconds(60'000)); });
  ASSERT_TRUE(eventually([&] { return reactor.counters().blocked == 1; }));
  std::atomic<int> begun{0};
  for (int i = 0; i < 2; ++i) {
    run(reactor, [&] {
      ++begun;
      while (!go) std::this_thread::yield();
    });
  }
  ASSERT_TRUE(eventually([&] { return begun == 2; }));
  run(reactor, [promise = std::exchange(queued_ran, Promise<void>())] { promise.set_value(); });
  std::thread stopping([&] { reactor.stop(); });
  EXPECT_TRUE(ends(waiting));
  go = true;
  stopping.join();
}

TEST(ReactorStop, IsQuickAndRepeatable) {
  for (int round = 0; round < 20; ++round) {
    Reactor reactor;
    run(reactor, [] {});
    const TimePoint begun = Clock::now();
    reactor.stop();
    reactor.stop();
    EXPECT_LT(Clock::now() - begun, std::chrono::seconds(5));
  }
}

}  // namespace
}  // namespace farspan::testing
