// The rules under test: c10d/net/README.md, "Threads": who reads a source, and that nothing stays
// unread.
#include <farspan/c10d/net/source.h>

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <farspan/c10d/net/spin.h>

#include "c10d/net/crowd.h"
#include "c10d/net/mailbox.h"
#include "c10d/net/sleeps.h"
#include "c10d/net/tasks.h"

namespace farspan::testing {
namespace {

using net::Reactor;
using net::ReactorOptions;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

// A reactor is stopped before the sources and what they refer to go.
struct Stopped {
  Reactor reactor;
  explicit Stopped(ReactorOptions options = {}) : reactor(std::move(options)) {}
  ~Stopped() { reactor.stop(); }
};

TEST(Source, IsReadByAnIdleThread) {
  auto mailbox = std::make_shared<Mailbox>();
  Stopped stopped;
  stopped.reactor.add(mailbox);
  for (uint64_t i = 1; i <= 100; ++i) {
    mailbox->post();
    ASSERT_TRUE(eventually([&] { return mailbox->received() == i; }));
  }
}

TEST(Source, IsReadByTheThreadThatWaitsForIt) {
  std::atomic<int> by_waiter{0};
  std::atomic<Promise<void>*> next{nullptr};
  const auto waiter = std::this_thread::get_id();
  auto mailbox = std::make_shared<Mailbox>([&](uint64_t) {
    by_waiter += std::this_thread::get_id() == waiter;
    Promise<void>(*next.load()).set_value();  // which ends the wait, and with it *next
  });
  Stopped stopped;
  stopped.reactor.add(mailbox);
  std::thread writer;
  for (int i = 0; i < 20; ++i) {
    Promise<void> promise;
    next = &promise;
    writer = std::thread([&] {
      std::this_thread::sleep_for(milliseconds(2));  // so that the waiter is there first
      mailbox->post();
    });
    ASSERT_TRUE(stopped.reactor.wait(*promise.future().state(), Deadline::after(seconds(10)),
                                     mailbox.get()));
    writer.join();
  }
  EXPECT_GT(by_waiter, 10);
}

TEST(Source, ARemovedOneIsNotRead) {
  auto mailbox = std::make_shared<Mailbox>();
  Stopped stopped;
  stopped.reactor.add(mailbox);
  stopped.reactor.remove(*mailbox);
  stopped.reactor.remove(*mailbox);
  EXPECT_TRUE(mailbox->removed());
  mailbox->post();
  auto other = std::make_shared<Mailbox>();
  stopped.reactor.add(other);
  other->post();
  ASSERT_TRUE(eventually([&] { return other->received() == 1; }));
  EXPECT_EQ(mailbox->received(), 0u);
}

TEST(Source, OneThatWasRemovedBeforeItIsAddedIsNotKept) {
  auto mailbox = std::make_shared<Mailbox>();
  Stopped stopped;
  stopped.reactor.remove(*mailbox);
  stopped.reactor.add(mailbox);
  EXPECT_EQ(mailbox.use_count(), 1);
}

TEST(Source, IsFlushedWhenThereIsRoom) {
  auto mailbox = std::make_shared<Mailbox>();
  Stopped stopped;
  stopped.reactor.add(mailbox);
  EXPECT_EQ(mailbox->flushes(), 0);
  stopped.reactor.flush_when_writable(*mailbox);
  EXPECT_TRUE(eventually([&] { return mailbox->flushes() == 1; }));
}

TEST(Source, IsFlushedByAWaitThatIsOverAtOnce) {
  auto mailbox = std::make_shared<Mailbox>();
  Stopped stopped;
  stopped.reactor.add(mailbox);
  const auto ready = make_ready_future();
  EXPECT_TRUE(stopped.reactor.wait(*ready.state(), Deadline::never(), mailbox.get()));
  EXPECT_EQ(mailbox->flushes(), 1);
}

// Something is there to be read: as soon as the source is armed an idle thread hears of it, finds
// it held, and goes away.
TEST(Source, WhoGivesTheTurnBackArmsOnce) {
  auto mailbox = std::make_shared<Mailbox>();
  Stopped stopped;
  stopped.reactor.add(mailbox);
  int most = 0;
  for (uint64_t i = 1; i <= 3000; ++i) {
    net::Role role;
    while (!role.take(stopped.reactor, *mailbox, false)) std::this_thread::yield();
    mailbox->post();
    const int before = Mailbox::armed_here();
    role.release();
    most = std::max(most, Mailbox::armed_here() - before);
    ASSERT_TRUE(eventually([&] { return mailbox->received() == i; }));
  }
  EXPECT_LE(most, 1) << "at one release";
}

// Each wait gives the turn back on a lease, which keeps the source disarmed for a while; messages
// that nobody waits for come at every moment of that while.
TEST(Source, NothingStaysUnreadAroundALease) {
  std::mutex mutex;
  std::deque<Promise<void>> waiting;
  auto mailbox = std::make_shared<Mailbox>([&](uint64_t) {
    std::deque<Promise<void>> all;
    {
      const std::lock_guard lock(mutex);
      all.swap(waiting);
    }
    for (auto& promise : all) promise.set_value();
  });
  Stopped stopped;
  stopped.reactor.add(mailbox);
  std::mt19937 random(5);
  uint64_t sent = 0;
  const TimePoint end = Clock::now() + milliseconds(1'500);
  while (Clock::now() < end) {
    for (auto waits = random() % 4; waits > 0; --waits) {
      Promise<void> promise;
      {
        const std::lock_guard lock(mutex);
        waiting.push_back(promise);
      }
      mailbox->post();
      ++sent;
      ASSERT_TRUE(stopped.reactor.wait(*promise.future().state(), Deadline::after(seconds(10)),
                                       mailbox.get()));
    }
    const TimePoint until = Clock::now() + microseconds(random() % 2'500);
    while (Clock::now() < until) std::this_thread::yield();
    mailbox->post();
    ++sent;
    ASSERT_TRUE(eventually([&] { return mailbox->received() == sent; })) << "after " << sent;
  }
}

// The one's users put off the look at leases; what came for the other meanwhile is read all the
// same.
TEST(Source, ALeaseEndsWhileAnotherOneIsInUse) {
  std::atomic<Promise<void>*> next{nullptr};
  auto busy = std::make_shared<Mailbox>([&](uint64_t) { Promise<void>(*next.load()).set_value(); });
  auto other = std::make_shared<Mailbox>();
  Stopped stopped;
  stopped.reactor.add(busy);
  stopped.reactor.add(other);
  const auto use = [&] {
    Promise<void> promise;
    next = &promise;
    busy->post();
    ASSERT_TRUE(
        stopped.reactor.wait(*promise.future().state(), Deadline::after(seconds(10)), busy.get()));
  };
  uint64_t sent = 0;
  const TimePoint end = Clock::now() + milliseconds(1'000);
  while (Clock::now() < end) {
    for (int i = 0; i < 300; ++i) use();
    const Promise<void> never;
    EXPECT_FALSE(
        stopped.reactor.wait(*never.future().state(), Deadline::after(seconds(0)), other.get()));
    stopped.reactor.expect_answer(*other);  // nobody waits for it
    other->post();
    ++sent;
    const TimePoint latest = Clock::now() + seconds(5);
    while (other->received() < sent && Clock::now() < latest) use();
    ASSERT_EQ(other->received(), sent);
  }
  EXPECT_GT(sent, 3u);
}

// In the last 20 of so many calls, each after a pause and answered after some time.
int64_t sleeps_of_others_in_calls(int calls, microseconds pause, microseconds answer_after) {
  std::atomic<Promise<void>*> next{nullptr};
  auto mailbox = std::make_shared<Mailbox>([&](uint64_t) {
    Promise<void>(*next.load()).set_value();  // which ends the wait, and with it *next
  });
  Stopped stopped;  // a new one, which has not learned from a lease that did harm
  stopped.reactor.add(mailbox);
  std::atomic<int> called = 0;
  std::thread answering([&] {  // without a sleep of its own
    for (int i = 1; i <= calls; ++i) {
      while (called.load() < i) std::this_thread::yield();
      const TimePoint when = Clock::now() + answer_after;
      while (Clock::now() < when) net::cpu_relax();
      mailbox->post();
    }
  });
  int64_t before = 0;
  for (int i = 0; i < calls; ++i) {
    if (i == calls - 20) before = sleeps_of_others();
    std::this_thread::sleep_for(pause);
    Promise<void> answer;
    next = &answer;
    stopped.reactor.expect_answer(*mailbox);
    ++called;
    EXPECT_TRUE(stopped.reactor.wait(*answer.future().state(), Deadline::after(seconds(10)),
                                     mailbox.get()));
  }
  std::this_thread::sleep_for(milliseconds(5));  // until a lease of the last call would be over
  const int64_t sleeps = sleeps_of_others() - before;
  answering.join();
  return sleeps;
}

// The end of a lease that nobody has come back to wakes a thread. Seldom while other programs
// compute.
TEST(Source, WhoCallsAfterAPauseLeavesNoLease) {
  EXPECT_TRUE(eventually(
      [] { return sleeps_of_others_in_calls(20, milliseconds(5), microseconds(30)) < 10; }));
}

TEST(Source, WhoCallsWhatTakesLongLeavesNoLease) {
  constexpr int kUntilLearned = 30;
  EXPECT_TRUE(eventually([] {
    return sleeps_of_others_in_calls(kUntilLearned + 20, microseconds(0), milliseconds(3)) < 10;
  }));
}

// Who uses a lease puts its end off before a timer wakes a thread for it, which would take the
// processor of the one that uses it.
TEST(Source, ALeaseInUseWakesNobody) {
  std::atomic<Promise<void>*> next{nullptr};
  auto mailbox =
      std::make_shared<Mailbox>([&](uint64_t) { Promise<void>(*next.load()).set_value(); });
  Stopped stopped;
  stopped.reactor.add(mailbox);
  // One time of several: on a busy machine the user itself is put aside now and again.
  const auto sleeps_in_fifty_leases = [&] {
    const int64_t before = sleeps_of_others();
    const TimePoint end = Clock::now() + milliseconds(50);
    while (Clock::now() < end) {
      Promise<void> promise;
      next = &promise;
      mailbox->post();
      EXPECT_TRUE(stopped.reactor.wait(*promise.future().state(), Deadline::after(seconds(10)),
                                       mailbox.get()));
    }
    return sleeps_of_others() - before;
  };
  EXPECT_TRUE(eventually([&] { return sleeps_in_fifty_leases() < 10; }));
}

// While this is done over and over; seldom, or not at all, while other programs compute.
void expect_looks_between_turns(const Reactor& reactor, const std::function<void()>& one) {
  bool has_crowd = false;
  const bool has_looked = eventually([&] {
    for (int i = 0; i < 500; ++i) one();
    has_crowd |= net::was_crowded();
    return reactor.counters().spin_hits > 0;
  });
  EXPECT_EQ(reactor.counters().spin_time.count(), 0);
  if (!has_looked && has_crowd) GTEST_SKIP() << "others compute all the time";
  EXPECT_TRUE(has_looked);
}

TEST(Source, WhoMayNotPollForAnAnswerLooksBetweenTheTurnsOfOthers) {
  std::atomic<Promise<void>*> next{nullptr};
  auto mailbox = std::make_shared<Mailbox>([&](uint64_t) {
    Promise<void>(*next.load()).set_value();  // which ends the wait, and with it *next
  });
  Stopped stopped;
  stopped.reactor.add(mailbox);
  const NoPermits none;
  expect_looks_between_turns(stopped.reactor, [&] {
    Promise<void> answer;
    next = &answer;
    stopped.reactor.expect_answer(*mailbox);
    mailbox->post();
    EXPECT_TRUE(stopped.reactor.wait(*answer.future().state(), Deadline::after(seconds(10)),
                                     mailbox.get()));
  });
}

TEST(Source, WhoMayNotPollForRequestsLooksBetweenTheTurnsOfOthers) {
  auto mailbox = std::make_shared<Mailbox>();
  Stopped stopped;
  stopped.reactor.add(mailbox);
  const NoPermits none;
  uint64_t posted = 0;
  expect_looks_between_turns(stopped.reactor, [&] {
    mailbox->post();
    ++posted;
    const Deadline deadline = Deadline::after(seconds(10));
    while (mailbox->received() != posted && !deadline.expired()) std::this_thread::yield();
    EXPECT_EQ(mailbox->received(), posted);
  });
}

TEST(Source, NobodyPollsForRequestsWhereOthersWantEveryProcessor) {
  const Crowd crowd;
  ASSERT_TRUE(eventually([] { return net::is_crowded(Clock::now()); }));
  auto mailbox = std::make_shared<Mailbox>();
  Stopped stopped;
  stopped.reactor.add(mailbox);
  uint64_t posted = 0;
  const InCrowd seen = polls_in_crowd([&] {
    // As if requests had mostly come within the long limit.
    for (int request = 0; request < 8; ++request) mailbox->reads().learn(microseconds(100));
    const auto before = stopped.reactor.counters().spin_time;
    mailbox->post();
    ++posted;
    EXPECT_TRUE(eventually([&] { return mailbox->received() == posted; }));
    std::this_thread::sleep_for(milliseconds(2));  // the reader polls no longer, if it did
    return stopped.reactor.counters().spin_time > before;
  });
  EXPECT_EQ(seen.times, 30);
  EXPECT_LE(seen.polled, 5);  // a crowd may have gone between the looks
}

// Many threads wait on one source, each for a message of its own; whoever reads must not leave the
// others asleep.
TEST(Source, WhoFollowsIsNotForgotten) {
  constexpr size_t kWaiters = 6;
  std::mutex mutex;
  std::deque<Promise<void>> waiting;
  auto mailbox = std::make_shared<Mailbox>([&](uint64_t messages) {
    for (; messages > 0; --messages) {
      Promise<void> first;
      {
        const std::lock_guard lock(mutex);
        first = waiting.front();
        waiting.pop_front();
      }
      first.set_value();
    }
  });
  Stopped stopped;
  stopped.reactor.add(mailbox);
  std::vector<std::thread> threads;
  std::atomic<int> late{0};
  for (size_t thread = 0; thread < kWaiters; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 300; ++i) {
        Promise<void> promise;
        {
          const std::lock_guard lock(mutex);
          waiting.push_back(promise);
        }
        std::thread delayed;
        if (i % 50 == 0) {
          delayed = std::thread([&] {
            std::this_thread::sleep_for(milliseconds(3));
            mailbox->post();
          });
        } else {
          mailbox->post();
        }
        late += !stopped.reactor.wait(*promise.future().state(), Deadline::after(seconds(10)),
                                      mailbox.get());
        if (delayed.joinable()) delayed.join();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(late, 0);
}

class Asleep final : public net::Follower {
 public:
  void expect_wake() noexcept override { woken_ = true; }
  void wake() noexcept override { ++wakes; }
  bool is_woken() const noexcept override { return woken_; }

  int wakes = 0;

 private:
  bool woken_ = false;
};

TEST(Source, HandsOverToOneThatSleepsWhileNobodyReads) {
  auto mailbox = std::make_shared<Mailbox>();
  Stopped stopped;
  stopped.reactor.add(mailbox);
  Asleep first, second;
  mailbox->follow(first);
  mailbox->follow(second);
  {
    net::Role role;
    ASSERT_TRUE(role.take(stopped.reactor, *mailbox, false));
    mailbox->hand_over();  // there is a reader, who will do that
    EXPECT_EQ(first.wakes + second.wakes, 0);
  }
  mailbox->hand_over();
  EXPECT_EQ(first.wakes, 1);
  EXPECT_EQ(second.wakes, 0);
  mailbox->hand_over();  // the first one wakes up already
  EXPECT_EQ(first.wakes, 1);
  EXPECT_EQ(second.wakes, 1);
  mailbox->hand_over();
  EXPECT_EQ(first.wakes + second.wakes, 2);
  mailbox->unfollow(first);
  mailbox->unfollow(second);
}

// The reader of the first source blocks in user code, until the second one, whose event came along
// with the first one's, has been read.
TEST(Source, ABlockedReaderGivesBackTheEventsItHolds) {
  ReactorOptions options;
  options.threads = 2;
  Promise<void> second_read;
  bool in_time = false;
  auto second = std::make_shared<Mailbox>([&](uint64_t) { second_read.set_value(); });
  Promise<void> first_done;
  auto first = std::make_shared<Mailbox>([&](uint64_t) {
    in_time = second_read.future().wait_for(seconds(10));
    first_done.set_value();
  });
  Stopped stopped(options);
  stopped.reactor.add(first);
  stopped.reactor.add(second);
  // One of the two idle threads runs a task, the other a timer; so both events wait for the latter.
  std::atomic<bool> task_begun{false}, timer_begun{false}, end_task{false}, end_timer{false};
  const auto task = run(stopped.reactor, [&] {
    task_begun = true;
    while (!end_task) std::this_thread::yield();
  });
  ASSERT_TRUE(eventually([&] { return task_begun.load(); }));
  stopped.reactor.timers().add(Clock::now(), [&] {
    timer_begun = true;
    while (!end_timer) std::this_thread::yield();
  });
  ASSERT_TRUE(eventually([&] { return timer_begun.load(); }));
  first->post();
  second->post();
  end_timer = true;
  EXPECT_TRUE(ends(first_done.future()));
  EXPECT_TRUE(in_time);
  end_task = true;
  EXPECT_TRUE(ends(task));
}

// A mailbox whose callback changes: a reader keeps the one that he has begun with.
class Errands {
 public:
  void set(std::function<void()> next) {
    const std::lock_guard lock(mutex_);
    next_ = std::move(next);
  }
  std::shared_ptr<Mailbox> mailbox() {
    return std::make_shared<Mailbox>([this](uint64_t) {
      std::unique_lock lock(mutex_);
      const auto errand = next_;
      lock.unlock();
      errand();
    });
  }

 private:
  std::mutex mutex_;
  std::function<void()> next_;
};

// Reads a message; after that the mailbox is on a lease.
void lease(Reactor& reactor, Mailbox& mailbox, Errands& errands) {
  const Promise<void> promise;
  errands.set([promise] { promise.set_value(); });
  mailbox.post();
  ASSERT_TRUE(reactor.wait(*promise.future().state(), Deadline::after(seconds(10)), &mailbox));
}

// What comes to two sources on leases is read by one thread; for the first it blocks in user code
// until the second has been read.
TEST(Source, ABlockedReaderLeavesTheOtherLeasesToOthers) {
  Errands errands[2];
  const std::shared_ptr<Mailbox> mailboxes[2] = {errands[0].mailbox(), errands[1].mailbox()};
  Stopped stopped;
  for (const auto& mailbox : mailboxes) stopped.reactor.add(mailbox);
  for (int round = 0; round < 30; ++round) {
    for (const size_t i : {0, 1}) lease(stopped.reactor, *mailboxes[i], errands[i]);
    const auto readers = std::make_shared<std::atomic<int>>(0);
    const Promise<void> second;
    const Promise<bool> in_time;
    for (auto& errand : errands) {
      errand.set([readers, second, in_time] {
        if (++*readers == 2) return (void)second.set_value();
        in_time.set_value(second.future().wait_for(seconds(10)));
      });
    }
    for (const auto& mailbox : mailboxes) mailbox->post();
    ASSERT_TRUE(in_time.future().wait_for(seconds(20)));
    ASSERT_TRUE(in_time.future().value()) << "round " << round;
  }
}

// The thread that looks after leases runs timers, too, and blocks in one of them.
TEST(Source, ABlockedTimerLeavesLeasesToOthers) {
  Errands errands;
  const auto mailbox = errands.mailbox();
  std::atomic<bool> end_task{false}, begun{false}, busy{false}, go{false};
  ReactorOptions options;
  options.threads = 2;
  Stopped stopped(options);
  stopped.reactor.add(mailbox);
  const auto task = run(stopped.reactor, [&] {
    begun = true;
    while (!end_task) std::this_thread::yield();
  });
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  for (int round = 0; round < 10; ++round) {
    lease(stopped.reactor, *mailbox, errands);
    busy = go = false;
    const Promise<void> has_read;
    const Promise<bool> in_time;
    errands.set([has_read] { has_read.set_value(); });
    stopped.reactor.timers().add(Clock::now(), [&] {
      busy = true;
      while (!go) std::this_thread::yield();
    });
    EXPECT_TRUE(eventually([&] { return busy.load(); }));
    // The only thread that reads is busy until both the lease and the next timer are over.
    stopped.reactor.timers().add(Clock::now(), [has_read, in_time] {
      in_time.set_value(has_read.future().wait_for(seconds(10)));
    });
    mailbox->post();
    std::this_thread::sleep_for(milliseconds(2));
    go = true;
    EXPECT_TRUE(in_time.future().wait_for(seconds(20)));
    EXPECT_TRUE(in_time.future().ready() && in_time.future().value()) << "round " << round;
  }
  end_task = true;
  EXPECT_TRUE(ends(task));
}

// A task waits with the source as its hint, reads for somebody else, and blocks in what that one
// does with it.
TEST(Source, AThreadThatBlocksTwiceCountsOnce) {
  Promise<void> inner, outer, reader_blocks;
  auto mailbox = std::make_shared<Mailbox>([&](uint64_t) {
    reader_blocks.set_value();
    inner.future().wait();
    outer.set_value();
  });
  Stopped stopped;
  stopped.reactor.add(mailbox);
  const auto task = run(stopped.reactor, [&] {
    EXPECT_TRUE(
        stopped.reactor.wait(*outer.future().state(), Deadline::after(seconds(10)), mailbox.get()));
  });
  ASSERT_TRUE(eventually([&] { return stopped.reactor.counters().blocked == 1; }));
  mailbox->post();
  ASSERT_TRUE(ends(reader_blocks.future()));
  // Expect: a thread that waits inside a wait is one blocked thread, and none that runs.
  for (int i = 0; i < 50; ++i) {
    EXPECT_LE(stopped.reactor.counters().blocked, 2);  // the reader may have been an idle thread
    EXPECT_GE(stopped.reactor.counters().running, 0);
    std::this_thread::sleep_for(microseconds(200));
  }
  inner.set_value();
  ASSERT_TRUE(ends(task));
  EXPECT_TRUE(eventually([&] {  // the task has ended for us before it has for its thread
    const auto now = stopped.reactor.counters();
    return now.blocked == 0 && now.running == 0;
  }));
}

}  // namespace
}  // namespace farspan::testing
