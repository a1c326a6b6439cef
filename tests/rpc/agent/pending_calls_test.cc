// The rules under test: rpc/agent/pending_calls.h.
#include <farspan/rpc/agent/pending_calls.h>

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <thread>

#include "support/seeded_random.h"

namespace farspan::testing {
namespace {

using agent::PendingCalls;
using std::chrono::milliseconds;

class Nobody final : public agent::ReplyHandler {
 public:
  void on_reply(wire::InFrame&&) noexcept override {}
  void on_error(const Error&) noexcept override {}
};

std::shared_ptr<agent::ReplyHandler> handler() { return std::make_shared<Nobody>(); }

const TimePoint kStart = TimePoint() + std::chrono::hours(1);
Deadline at(int ms) { return Deadline(kStart + milliseconds(ms)); }

TEST(PendingCalls, AnAnswerFindsItsCallOnce) {
  PendingCalls calls;
  const auto a = handler(), b = handler();
  const uint64_t id_a = calls.add(a, Deadline::never(), 1);
  const uint64_t id_b = calls.add(b, Deadline::never(), 2);
  EXPECT_NE(id_a, 0u);
  EXPECT_NE(id_a, id_b);
  EXPECT_EQ(calls.take(id_b).handler, b);
  EXPECT_EQ(calls.take(id_b).handler, nullptr);
  EXPECT_EQ(calls.take(id_a).handler, a);
}

TEST(PendingCalls, AnIdThatWasNeverGivenFindsNothing) {
  PendingCalls calls;
  const uint64_t id = calls.add(handler(), Deadline::never(), 0);
  for (const uint64_t other : {uint64_t{0}, ~uint64_t{0}, id + 1, id ^ uint64_t{1} << 32,
                               id & 0xffffffff, uint64_t{0xffffffff}, id ^ uint64_t{1} << 63}) {
    EXPECT_EQ(calls.take(other).handler, nullptr) << other;
  }
  EXPECT_EQ(calls.count(), 1);
}

TEST(PendingCalls, ALateAnswerDoesNotFindTheNextCallInItsPlace) {
  PendingCalls calls;
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t id = calls.add(handler(), Deadline::never(), 0);
    EXPECT_TRUE(seen.insert(id).second) << "given twice";
    EXPECT_NE(calls.take(id).handler, nullptr);
    const auto next = handler();
    const uint64_t next_id = calls.add(next, Deadline::never(), 0);
    seen.insert(next_id);
    EXPECT_EQ(calls.take(id).handler, nullptr);
    EXPECT_EQ(calls.take(next_id).handler, next);
  }
}

TEST(PendingCalls, CountsCallsAndTheirBytes) {
  PendingCalls calls;
  const uint64_t a = calls.add(handler(), Deadline::never(), 100);
  const uint64_t b = calls.add(handler(), at(5), 20);
  calls.add(handler(), Deadline::never(), 3);
  EXPECT_EQ(calls.count(), 3);
  EXPECT_EQ(calls.bytes(), 123u);
  EXPECT_EQ(calls.take(a).bytes, 100u);
  EXPECT_EQ(calls.count(), 2);
  EXPECT_EQ(calls.bytes(), 23u);
  EXPECT_TRUE(calls.is_earliest(at(5)));
  Deadline next;
  const auto expired = calls.expire(at(5).at(), at(5).at(), next);
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0].bytes, 20u);
  EXPECT_EQ(calls.take(b).handler, nullptr);
  EXPECT_EQ(calls.close().size(), 1u);
  EXPECT_EQ(calls.count(), 0);
  EXPECT_EQ(calls.bytes(), 0u);
}

TEST(PendingCalls, ExpireTakesWhatIsDueAndSaysWhenTheNextIs) {
  PendingCalls calls;
  const auto due = handler();
  calls.add(handler(), Deadline::never(), 0);
  calls.add(due, at(10), 0);
  const uint64_t later = calls.add(handler(), at(30), 0);
  calls.add(handler(), at(50), 0);
  EXPECT_TRUE(calls.is_earliest(at(10)));
  Deadline next;
  const auto expired = calls.expire(at(10).at(), at(10).at(), next);
  ASSERT_EQ(expired.size(), 1u);
  EXPECT_EQ(expired[0].handler, due);
  EXPECT_EQ(next, at(30));
  // Expect: one that was answered meanwhile does not expire, and the timer moves on.
  calls.take(later);
  EXPECT_TRUE(calls.expire(at(30).at(), at(31).at(), next).empty());
  EXPECT_EQ(next, at(50));
  EXPECT_EQ(calls.expire(at(50).at(), at(50).at(), next).size(), 1u);
  EXPECT_TRUE(next.is_never()) << "the one that is left has no deadline";
}

TEST(PendingCalls, ATimerIsAskedForOnlyWhenNoneIsSetAsEarly) {
  PendingCalls calls;
  EXPECT_FALSE(calls.is_earliest(Deadline::never()));
  EXPECT_TRUE(calls.is_earliest(at(30)));
  EXPECT_FALSE(calls.is_earliest(at(30)));
  EXPECT_FALSE(calls.is_earliest(at(40)));
  EXPECT_TRUE(calls.is_earliest(at(20)));
  EXPECT_FALSE(calls.is_earliest(at(30)));
}

TEST(PendingCalls, TimersDoNotBecomeMoreAndMore) {
  PendingCalls calls;
  std::multiset<TimePoint> timers;
  size_t most = 0;
  const auto call = [&](Deadline deadline) {
    const uint64_t id = calls.add(handler(), deadline, 0);
    if (calls.is_earliest(deadline)) timers.insert(deadline.at());
    return id;
  };
  // A long call is always under way; each second a short one begins, and is answered at once.
  for (int second = 0; second < 1000; ++second) {
    const int now = 1000 * second;
    call(at(now + 60'000));
    calls.take(call(at(now + 500)));
    while (!timers.empty() && *timers.begin() <= at(now + 999).at()) {
      const TimePoint fired = *timers.begin();
      timers.erase(timers.begin());
      Deadline next;
      calls.expire(fired, fired, next);
      if (!next.is_never()) timers.insert(next.at());
    }
    most = std::max(most, timers.size());
    // Expect: there is a timer for the earliest call, always.
    ASSERT_FALSE(timers.empty());
    ASSERT_LE(*timers.begin(), at(now + 60'000).at());
  }
  EXPECT_LE(calls.count(), 61);
  EXPECT_LE(most, 2u);
}

TEST(PendingCalls, AfterCloseNoneIsTaken) {
  PendingCalls calls;
  const auto a = handler(), b = handler();
  calls.add(a, at(5), 1);
  calls.take(calls.add(handler(), at(5), 1));
  const uint64_t id = calls.add(b, Deadline::never(), 1);
  EXPECT_EQ(calls.close().size(), 2u);
  EXPECT_EQ(calls.add(handler(), at(9), 1), 0u);
  EXPECT_EQ(calls.take(id).handler, nullptr);
  EXPECT_TRUE(calls.close().empty());
  Deadline next;
  EXPECT_TRUE(calls.expire(at(5).at(), at(99).at(), next).empty());
}

TEST(PendingCalls, ACallEndsOnceThoughAnswerExpiryAndCloseMeet) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    PendingCalls calls;
    constexpr size_t kCalls = 200;
    std::array<std::atomic<int>, kCalls> ended{};
    std::array<std::shared_ptr<agent::ReplyHandler>, kCalls> handlers;
    std::array<uint64_t, kCalls> ids;
    for (size_t i = 0; i < kCalls; ++i) {
      handlers[i] = handler();
      ids[i] = calls.add(handlers[i], at(static_cast<int>(i)), 1);
    }
    calls.is_earliest(at(0));
    const auto note = [&](const PendingCalls::Taken& taken) {
      for (size_t i = 0; i < kCalls; ++i) ended[i] += taken.handler && handlers[i] == taken.handler;
    };
    std::thread answering([&] {
      SeededRandom random(seed);
      for (size_t i = 0; i < kCalls; ++i) note(calls.take(ids[random.below(kCalls)]));
    });
    std::thread expiring([&] {
      Deadline next = at(0);
      for (size_t i = 0; i < kCalls / 2 && !next.is_never(); ++i) {
        const TimePoint timer = next.at();
        for (const auto& taken : calls.expire(timer, timer, next)) note(taken);
      }
    });
    std::thread closing([&] {
      std::this_thread::yield();
      for (const auto& taken : calls.close()) note(taken);
    });
    answering.join();
    expiring.join();
    closing.join();
    for (size_t i = 0; i < kCalls; ++i) EXPECT_EQ(ended[i], 1) << "call " << i;
    EXPECT_EQ(calls.count(), 0);
    EXPECT_EQ(calls.bytes(), 0u);
  }
}

}  // namespace
}  // namespace farspan::testing
