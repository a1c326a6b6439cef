// The rules under test: c10d/net/README.md, "Threads": how a thread waits.
#include <farspan/c10d/net/reactor.h>

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <semaphore>
#include <thread>
#include <vector>

#include <farspan/c10d/net/level.h>
#include <farspan/c10d/net/spin.h>

#include "c10d/net/crowd.h"
#include "c10d/net/mailbox.h"
#include "c10d/net/tasks.h"
#include "support/process_use.h"
#include "support/processors.h"

namespace farspan::testing {
namespace {

using net::Reactor;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

// While it is there the process gets no descriptors.
class NoDescriptors {
 public:
  NoDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit none{0, before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
  }
  NoDescriptors(const NoDescriptors&) = delete;
  NoDescriptors& operator=(const NoDescriptors&) = delete;
  ~NoDescriptors() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// Once with descriptors, for what sanitizers need of them, and to compare with.
TEST(ReactorWait, WhoGetsNoDescriptorToSleepOnIsAnsweredAllTheSame) {
  for (const bool with : {true, false}) {
    Promise<void> answer, late;
    auto mailbox = std::make_shared<Mailbox>([&](uint64_t) { answer.set_value(); });
    Reactor reactor({.max_spin = microseconds(0)});
    reactor.add(mailbox);
    const auto wait = [&](const Promise<void>& promise, Deadline deadline) {
      return reactor.wait(*promise.future().state(), deadline, mailbox.get());
    };
    bool in_time = false, too_late = true;
    {
      std::optional<NoDescriptors> none;
      if (!with) none.emplace();
      std::thread caller([&] {  // which has slept nowhere yet
        too_late = wait(late, Deadline::after(milliseconds(20)));
        reactor.expect_answer(*mailbox);
        in_time = wait(answer, Deadline::after(seconds(10)));
      });
      std::this_thread::sleep_for(milliseconds(40));  // as a rule it waits by then
      mailbox->post();
      caller.join();
    }
    EXPECT_FALSE(too_late) << with;
    EXPECT_TRUE(in_time) << with;
    reactor.stop();
  }
}

// A line on which bytes pass without end, though none of them is a whole message.
class BusyLine final : public net::Source {
 public:
  BusyLine() { level_.make_readable(); }  // also for who sleeps, as all do on a crowded machine
  int descriptor() const noexcept override { return level_.descriptor(); }
  bool pump(net::Role&) noexcept override {
    ++passed_;
    return false;
  }
  uint64_t passed_bytes() const noexcept override { return passed_; }

 private:
  net::Level level_;
  std::atomic<uint64_t> passed_{0};
};

TEST(ReactorWait, ATaskThatWaitsWhileBytesPassLetsOthersRun) {
  Reactor reactor({.threads = 1});
  const auto line = std::make_shared<BusyLine>();
  reactor.add(line);
  Promise<void> answer;
  const auto waiting = run(reactor, [&] {
    reactor.wait(*answer.future().state(), Deadline::after(std::chrono::seconds(20)), line.get());
  });
  EXPECT_TRUE(eventually([&] { return line->passed_bytes() > 0; }));
  EXPECT_TRUE(ends(run(reactor, [&] { answer.set_value(); })));
  EXPECT_TRUE(ends(waiting));
  reactor.remove(*line);
}

// Waits that nothing ends but their deadline.
class VainWaits {
 public:
  explicit VainWaits(net::ReactorOptions options = {}) : reactor_(options) {
    reactor_.add(mailbox_);
  }
  ~VainWaits() { reactor_.remove(*mailbox_); }
  VainWaits(const VainWaits&) = delete;
  VainWaits& operator=(const VainWaits&) = delete;

  // As if answers had mostly come within the long limit.
  void learn() {
    for (int answer = 0; answer < 8; ++answer) mailbox_->answers().learn(microseconds(100));
  }
  // How long one has polled.
  nanoseconds polled_until(Deadline deadline, const net::WaitPlan& plan = {}) {
    EXPECT_FALSE(reactor_.wait(*never_.future().state(), deadline, mailbox_.get(), plan));
    const nanoseconds before = polled_;
    polled_ = reactor_.counters().spin_time;
    return polled_ - before;
  }

 private:
  Reactor reactor_;
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  const Promise<void> never_;
  nanoseconds polled_{0};
};

// Whether a wait has not polled, or was held up, because others want the processors.
bool others_were_there(nanoseconds polled, bool& has_crowd) {
  const bool sees_crowd = net::was_crowded();
  has_crowd |= sees_crowd;
  return polled.count() == 0 || sees_crowd;
}

// How long a wait polls for what mostly comes within the long limit, and now does not come: the
// shortest of some, for others may take the processor in any of them, and then it is not looked at.
// max(): none may, while other programs want every processor.
nanoseconds polls_for(microseconds max_spin) {
  VainWaits waits({.max_spin = max_spin});
  nanoseconds shortest = nanoseconds::max();
  bool has_crowd = false;
  const Deadline give_up = Deadline::after(seconds(5));
  for (int found = 0; found < 10 && !give_up.expired();) {
    waits.learn();
    const nanoseconds polled = waits.polled_until(Deadline::after(milliseconds(20)));
    if (others_were_there(polled, has_crowd)) continue;
    shortest = std::min(shortest, polled);
    ++found;
  }
  EXPECT_TRUE(shortest < nanoseconds::max() || has_crowd || net::is_crowded(Clock::now()));
  return shortest;
}

TEST(ReactorWait, NobodyPollsForLongerThanMaxSpin) {
  constexpr microseconds kLimit{20};
  const nanoseconds limited = polls_for(kLimit), unlimited = polls_for(net::kLongSpinLimit);
  if (std::max(limited, unlimited) == nanoseconds::max()) GTEST_SKIP() << "nobody may poll here";
  EXPECT_GE(limited, kLimit);
  EXPECT_LT(limited, net::kLongSpinLimit);
  EXPECT_GE(unlimited, net::kLongSpinLimit);
}

TEST(ReactorWait, WithMaxSpinZeroNobodyPollsWhileBytesPass) {
  Reactor reactor({.max_spin = microseconds(0)});
  const auto line = std::make_shared<BusyLine>();
  reactor.add(line);
  const Promise<void> never;
  EXPECT_FALSE(
      reactor.wait(*never.future().state(), Deadline::after(milliseconds(50)), line.get()));
  EXPECT_GT(line->passed_bytes(), 0u);
  EXPECT_EQ(reactor.counters().spin_hits + reactor.counters().spin_misses, 0u);
  reactor.remove(*line);
}

// What one wait polled, and what it took of its thread's processor time.
struct Polled {
  nanoseconds polled = nanoseconds::max(), busy = nanoseconds::max();
};

// The least of some waits for what is expected in that time, and does not come; max() as above.
Polled polls_when_expected(microseconds max_spin, microseconds from, microseconds until) {
  VainWaits waits({.max_spin = max_spin});
  Polled least;
  bool has_crowd = false;
  const Deadline give_up = Deadline::after(seconds(5));
  for (int found = 0; found < 10 && !give_up.expired();) {
    const TimePoint now = Clock::now();
    const Clock::duration busy_before = processor_time_of_thread();
    const nanoseconds polled =
        waits.polled_until(Deadline(now + until + milliseconds(2)), {{now + from, now + until}});
    const nanoseconds busy = processor_time_of_thread() - busy_before;
    if (others_were_there(polled, has_crowd)) continue;
    least.polled = std::min(least.polled, polled);
    least.busy = std::min(least.busy, busy);
    ++found;
  }
  EXPECT_TRUE(least.polled < nanoseconds::max() || has_crowd ||
              net::lacks_processors(Clock::now()));
  return least;
}

TEST(ReactorWait, SleepsUntilTheAnswerIsExpectedAndPollsThen) {
  const Polled all =
      polls_when_expected(net::kLongSpinLimit, milliseconds(20), microseconds(20'800));
  const Polled limited = polls_when_expected(microseconds(100), milliseconds(20), milliseconds(40));
  // Others want every processor, and who waits leaves them to these: there is nothing to be seen.
  if (std::max(all.polled, limited.polled) == nanoseconds::max()) {
    GTEST_SKIP() << "nobody may poll here";
  }
  EXPECT_LE(all.polled, milliseconds(1));
  EXPECT_LT(all.busy, milliseconds(5));
  // Not for longer than five times max_spin, and a look.
  EXPECT_LE(limited.polled, microseconds(600));
}

TEST(ReactorWait, NobodyPollsWhereOthersWantEveryProcessor) {
  const Crowd crowd;
  ASSERT_TRUE(eventually([] { return net::is_crowded(Clock::now()); }));
  const auto expected = [](milliseconds from, milliseconds until) {
    const TimePoint now = Clock::now();
    return net::WaitPlan{{now + from, now + until}};
  };
  for (const auto& plan : std::vector<std::function<net::WaitPlan()>>{
           [] { return net::WaitPlan(); },
           [&] { return expected(milliseconds(1), milliseconds(2)); }}) {
    VainWaits waits;
    const InCrowd seen = polls_in_crowd([&] {
      waits.learn();
      return waits.polled_until(Deadline::after(milliseconds(5)), plan()).count() > 0;
    });
    EXPECT_EQ(seen.times, 30);
    EXPECT_LE(seen.polled, 5);  // a crowd may have gone between the looks
  }
}

// How many of so many waits look once only, which begin after a pause and wake another thread of
// the same processor for the answer.
int waits_of_one_look(int waits) {
  Promise<void> answer;
  const auto mailbox = std::make_shared<Mailbox>([&](uint64_t) {
    Promise<void>(answer).set_value();  // which ends the wait, and with it this answer
  });
  Reactor reactor;
  reactor.add(mailbox);
  std::binary_semaphore asked(0);
  std::thread answering([&] {
    for (int i = 0; i < waits; ++i) {
      asked.acquire();
      mailbox->post();
    }
  });
  int once = 0;
  for (int i = 0; i < waits; ++i) {
    std::this_thread::sleep_for(milliseconds(3));  // the pause, longer than a lease
    answer = Promise<void>();
    reactor.expect_answer(*mailbox);
    const int before = mailbox->flushes();
    asked.release();
    EXPECT_TRUE(
        reactor.wait(*answer.future().state(), Deadline::after(seconds(10)), mailbox.get()));
    once += mailbox->flushes() - before <= 2;  // and at the end
  }
  answering.join();
  reactor.stop();
  return once;
}

// It most likely is behind the one that waits.
TEST(ReactorWait, AfterAPauseWhoeverIsWokenForTheAnswerGoesFirst) {
  std::thread([] {
    stay_on({processors().front()});
    EXPECT_GE(waits_of_one_look(20), 10);  // others may go first
  }).join();
}

TEST(ReactorWait, AnAnswerIsHadWheneverItComes) {
  Reactor reactor;
  const auto mailbox = std::make_shared<Mailbox>();
  reactor.add(mailbox);
  const milliseconds from(6), until(7), late(9);
  for (const milliseconds comes : {milliseconds(0), milliseconds(2), from, late}) {
    Promise<void> answer;
    const TimePoint asked = Clock::now();
    std::thread other([&] {
      std::this_thread::sleep_until(asked + comes);
      answer.set_value();
    });
    EXPECT_TRUE(reactor.wait(*answer.future().state(), Deadline::after(seconds(20)), mailbox.get(),
                             {{asked + from, asked + until}}));
    other.join();
  }
  // Nor is a thread held that waits for what is expected much later, or was long ago.
  const Promise<void> never;
  for (const auto when : {seconds(100), seconds(-100)}) {
    const TimePoint about = Clock::now() + when;
    EXPECT_FALSE(reactor.wait(*never.future().state(), Deadline::after(milliseconds(5)),
                              mailbox.get(), {{about, about + milliseconds(1)}}));
  }
  reactor.remove(*mailbox);
}

TEST(ReactorWait, WhoseSourceGoesBeforeTheAnswerIsExpectedSleepsOn) {
  Reactor reactor;
  const auto mailbox = std::make_shared<Mailbox>();
  reactor.add(mailbox);
  const Promise<void> never;
  const TimePoint from = Clock::now() + milliseconds(20);
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(10));  // as a rule the wait is asleep by then
    reactor.remove(*mailbox);
  });
  const Clock::duration busy_before = processor_time_of_thread();
  EXPECT_FALSE(reactor.wait(*never.future().state(), Deadline::after(milliseconds(300)),
                            mailbox.get(), {{from, from + milliseconds(1)}}));
  EXPECT_LT(processor_time_of_thread() - busy_before, milliseconds(100));
  other.join();
}

// A task that lies there for a thread which is at another one is no reason to look for ever.
TEST(ReactorWait, WhoCannotTakeATaskSleepsBesideIt) {
  std::atomic<bool> begun{false}, go{false};
  auto mailbox = std::make_shared<Mailbox>();
  Reactor reactor({.threads = 1});
  reactor.add(mailbox);
  const auto first = run(reactor, [&] {
    begun = true;
    while (!go) std::this_thread::sleep_for(milliseconds(1));
  });
  ASSERT_TRUE(eventually([&] { return begun.load(); }));
  const auto second = run(reactor, [] {});
  mailbox->post();
  ASSERT_TRUE(eventually([&] { return mailbox->received() == 1; }));
  const Clock::duration before = processor_time();
  std::this_thread::sleep_for(milliseconds(200));  // in which nothing is to happen
  EXPECT_LT(processor_time() - before, milliseconds(50));
  go = true;
  EXPECT_TRUE(ends(first) && ends(second));
  reactor.stop();
}

}  // namespace
}  // namespace farspan::testing
