// The rules under test: rpc/agent/heartbeat.h, with a clock and a line of the test's own.
#include <farspan/rpc/agent/heartbeat.h>

#include <gtest/gtest.h>

#include <map>

#include "support/seeded_random.h"

namespace farspan::testing {
namespace {

using agent::Heartbeat;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Millis kTimeout{1'000};

// A line on which nothing happens unless the test says so; the other end answers pings while it
// runs, `delay` later.
class Line {
 public:
  explicit Line(Millis timeout = kTimeout) : heartbeat_(timeout) {
    follow(heartbeat_.begin(now_, traffic_));
  }

  // Lets time pass; stops when the line is lost.
  void advance(Clock::duration duration) {
    const TimePoint end = now_ + duration;
    while (!lost_) {
      const TimePoint look = look_at_.value_or(TimePoint::max());
      const TimePoint answer = answers_.empty() ? TimePoint::max() : answers_.begin()->first;
      if (std::min(look, answer) > end) break;
      if (answer <= look) {
        now_ = answer;
        hear(static_cast<uint64_t>(answers_.begin()->second));
        answers_.erase(answers_.begin());
      } else {
        now_ = look;
        look_at_.reset();
        follow(heartbeat_.look(now_, traffic_, waiting));
      }
    }
    if (!lost_) now_ = end;
  }
  // This process stands still meanwhile: what it should have done, it does late, and once.
  void stand_still(Clock::duration duration) {
    now_ += duration;
    if (look_at_ && *look_at_ < now_) look_at_ = now_;
  }
  void hear(uint64_t bytes) { traffic_.received += bytes; }
  void send(uint64_t bytes, bool more) {
    traffic_.sent += bytes;
    traffic_.sending = more;
  }

  bool lost() const { return lost_; }
  bool watched() const { return look_at_.has_value(); }
  int pings() const { return pings_; }
  Clock::duration age() const { return now_ - TimePoint(); }

  bool runs = true;     // the other end
  bool waiting = true;  // a call without a deadline
  Clock::duration delay = milliseconds(1);

 private:
  void follow(const Heartbeat::Action& action) {
    lost_ = action.lost;
    look_at_ = action.look_at;
    if (!action.ping) return;
    ++pings_;
    if (!traffic_.sending) traffic_.sent += 48;  // else it waits behind the rest
    if (runs) answers_.emplace(now_ + delay, 48);
  }

  Heartbeat heartbeat_;
  Heartbeat::Traffic traffic_;
  TimePoint now_{};
  std::optional<TimePoint> look_at_;
  std::multimap<TimePoint, int> answers_;
  bool lost_ = false;
  int pings_ = 0;
};

TEST(Heartbeat, APeerThatAnswersIsNeverLost) {
  Line line;
  line.advance(std::chrono::hours(10));
  EXPECT_FALSE(line.lost());
  EXPECT_GT(line.pings(), 1000);
}

TEST(Heartbeat, APeerThatSaysNothingIsLostAfterTheTimeout) {
  Line line;
  line.runs = false;
  line.advance(kTimeout - milliseconds(1));
  EXPECT_FALSE(line.lost());
  line.advance(milliseconds(1));
  EXPECT_TRUE(line.lost());
  EXPECT_EQ(line.pings(), 3);
}

TEST(Heartbeat, WhereThereIsTrafficNothingIsAsked) {
  Line line;
  line.runs = false;
  for (int i = 0; i < 1000; ++i) {
    line.hear(1);
    line.advance(milliseconds(100));
  }
  EXPECT_EQ(line.pings(), 0);
  // Expect: the time counts from what was heard last, and half as much again at most.
  line.advance(kTimeout * 3 / 2);
  EXPECT_TRUE(line.lost());
}

TEST(Heartbeat, AnAnswerThatIsLateStillCounts) {
  Line line;
  line.delay = milliseconds(700);
  line.advance(seconds(100));
  EXPECT_FALSE(line.lost());
}

TEST(Heartbeat, WhileMuchIsBeingSentWhatLeavesIsASignOfLife) {
  Line line;
  line.runs = false;  // it reads, slowly, and the ping waits behind the rest
  for (int i = 0; i < 100; ++i) {
    line.send(1000, true);
    line.advance(milliseconds(200));
  }
  EXPECT_FALSE(line.lost());
  // Expect: when nothing leaves any more it is lost, however much waits.
  line.advance(kTimeout * 3 / 2);
  EXPECT_TRUE(line.lost());
}

TEST(Heartbeat, WhatLeavesShowsNothingWhenNobodyNeedHaveReadIt) {
  Line line;
  line.runs = false;
  for (int i = 0; i < 20 && !line.lost(); ++i) {
    line.send(100, false);  // into the system's buffers
    line.advance(milliseconds(100));
  }
  EXPECT_TRUE(line.lost());
}

TEST(Heartbeat, AProcessThatStoodStillItselfBlamesNobody) {
  Line line;
  line.advance(milliseconds(600));
  for (int i = 0; i < 10; ++i) {
    line.stand_still(std::chrono::hours(1));
    line.advance(milliseconds(300));
    EXPECT_FALSE(line.lost());
  }
}

TEST(Heartbeat, WithoutACallThatWaitsForEverNobodyLooks) {
  Line line;
  line.waiting = false;
  line.advance(seconds(1));
  EXPECT_FALSE(line.watched());
  EXPECT_EQ(line.pings(), 0);
}

TEST(Heartbeat, NoTimeoutMeansNever) {
  Line line(kNoTimeout);
  line.runs = false;
  line.advance(std::chrono::hours(1000));
  EXPECT_FALSE(line.watched());
  EXPECT_FALSE(line.lost());
}

TEST(Heartbeat, WhateverTheTrafficADeadPeerIsFoundInTimeAndALiveOneKept) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SeededRandom random(seed);
    Line line;
    line.delay = milliseconds(random.below(200));
    for (uint64_t i = random.below(100); i > 0; --i) {
      if (random.below(2) == 0) line.hear(1 + random.below(1000));
      if (random.below(2) == 0) line.send(random.below(1000), random.below(2) == 0);
      line.advance(milliseconds(random.below(1500)));
      ASSERT_FALSE(line.lost()) << "seed " << seed;
    }
    line.runs = false;
    line.send(0, false);
    const auto died = line.age();
    line.advance(seconds(10));
    ASSERT_TRUE(line.lost()) << "seed " << seed;
    // Expect: what had been asked or sent before may count once more.
    EXPECT_LE(line.age() - died, line.delay + kTimeout * 3 / 2) << "seed " << seed;
  }
}

}  // namespace
}  // namespace farspan::testing
