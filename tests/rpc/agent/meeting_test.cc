// The rules under test: rpc/wire/WIRE.md, "Shutdown", and rpc/agent/meeting.h.
#include <farspan/rpc/agent/meeting.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <memory>

#include "support/seeded_random.h"

namespace farspan::testing {
namespace {

using agent::Meeting;
using agent::MeetingMessage;
using Type = MeetingMessage::Type;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

MeetingMessage message(Type type, uint64_t round, uint64_t sent = 0, uint64_t received = 0) {
  return {type, 1, round, sent, received};
}

TEST(Meeting, TheLeaderAsksAllWhenItComes) {
  Meeting leader(0, 3);
  const auto action = leader.enter(1);
  ASSERT_EQ(action.sends.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(action.sends[static_cast<size_t>(i)].to, i + 1);
    EXPECT_EQ(action.sends[static_cast<size_t>(i)].message.type, Type::kAsk);
    EXPECT_EQ(action.sends[static_cast<size_t>(i)].message.round, 1u);
  }
  EXPECT_TRUE(action.report_when_quiet);
  EXPECT_THAT(leader.missing(), ElementsAre(0, 1, 2));
}

TEST(Meeting, AMemberReportsOnceForEachRound) {
  Meeting member(1, 2);
  EXPECT_TRUE(member.enter(1).report_when_quiet);
  const auto report = member.quiet(5, 6);
  ASSERT_EQ(report.sends.size(), 1u);
  EXPECT_EQ(report.sends[0].to, 0);
  EXPECT_EQ(report.sends[0].message.type, Type::kReport);
  EXPECT_EQ(report.sends[0].message.sent, 5u);
  EXPECT_EQ(report.sends[0].message.received, 6u);
  EXPECT_THAT(member.quiet(5, 6).sends, IsEmpty());
  // An ask for the round that it has come to by itself changes nothing; one for the next does.
  EXPECT_FALSE(member.on_message(0, message(Type::kAsk, 1)).report_when_quiet);
  EXPECT_TRUE(member.on_message(0, message(Type::kAsk, 2)).report_when_quiet);
  EXPECT_EQ(member.quiet(5, 6).sends.size(), 1u);
}

TEST(Meeting, RoundsThatDoNotAgreeDoNotFollowEachOtherWithoutAPause) {
  Meeting alone(0, 1);
  EXPECT_FALSE(alone.enter(1).pause);
  EXPECT_FALSE(alone.quiet(1, 0).pause) << "two rounds are needed in any case";
  for (int round = 0; round < 5; ++round) {
    const auto again = alone.quiet(1, 0);
    EXPECT_TRUE(again.report_when_quiet);
    EXPECT_TRUE(again.pause);
  }
  alone.quiet(1, 1);
  EXPECT_TRUE(alone.quiet(1, 1).done);
}

TEST(Meeting, EndsWhenTwoRoundsSayTheSameAndTheSumsAgree) {
  Meeting leader(0, 2);
  leader.enter(1);
  leader.quiet(3, 1);
  auto action = leader.on_message(1, message(Type::kReport, 1, 1, 3));
  // Expect: one round proves nothing, though the sums agree.
  ASSERT_EQ(action.sends.size(), 1u);
  EXPECT_EQ(action.sends[0].message.type, Type::kAsk);
  EXPECT_EQ(action.sends[0].message.round, 2u);
  EXPECT_FALSE(action.done);
  leader.on_message(1, message(Type::kReport, 2, 1, 3));
  action = leader.quiet(3, 1);
  EXPECT_TRUE(action.done);
  ASSERT_EQ(action.sends.size(), 1u);
  EXPECT_EQ(action.sends[0].message.type, Type::kDone);
}

TEST(Meeting, GoesOnWhileSumsDifferOrChange) {
  Meeting leader(0, 2);
  leader.enter(1);
  struct Round {
    uint64_t sent, received, sent_1, received_1;
    bool done;
  };
  const Round rounds[] = {{3, 1, 1, 2, false},  // one of the leader's is under way
                          {3, 1, 1, 2, false},  // still
                          {3, 1, 1, 3, false},  // arrived: another sum than before
                          {3, 2, 2, 3, false},  // and it has caused one more
                          {3, 2, 2, 3, true}};
  uint64_t number = 0;
  for (const Round& round : rounds) {
    ++number;
    leader.quiet(round.sent, round.received);
    const auto action =
        leader.on_message(1, message(Type::kReport, number, round.sent_1, round.received_1));
    EXPECT_EQ(action.done, round.done) << "round " << number;
  }
}

TEST(Meeting, AReportOfAnEarlierRoundOrMeetingDoesNotCount) {
  Meeting leader(0, 2);
  leader.enter(1);
  leader.quiet(0, 0);
  leader.on_message(1, message(Type::kReport, 1));
  leader.quiet(0, 0);  // round 2
  EXPECT_FALSE(leader.on_message(1, message(Type::kReport, 1)).done);
  EXPECT_THAT(leader.missing(), ElementsAre(1));
  EXPECT_TRUE(leader.on_message(1, message(Type::kReport, 2)).done);
  leader.enter(2);
  leader.quiet(0, 0);
  EXPECT_FALSE(leader.on_message(1, message(Type::kReport, 1)).done);
  EXPECT_THAT(leader.missing(), ElementsAre(1));
}

TEST(Meeting, AMemberTakesNoDoneOfAnotherMeeting) {
  Meeting member(1, 2);
  member.enter(2);
  EXPECT_FALSE(member.on_message(0, message(Type::kDone, 1)).done);
  EXPECT_FALSE(member.on_message(0, message(Type::kAsk, 9)).report_when_quiet);
  MeetingMessage mine = message(Type::kDone, 1);
  mine.phase = 2;
  EXPECT_TRUE(member.on_message(0, mine).done);
}

TEST(Meeting, TheLostAreNotWaitedForAndTheirShareIsForgiven) {
  Meeting leader(0, 3);
  leader.enter(1);
  leader.quiet(5, 0);
  leader.on_message(1, message(Type::kReport, 1, 0, 2));
  EXPECT_THAT(leader.missing(), ElementsAre(2));
  auto action = leader.on_lost(2);
  ASSERT_EQ(action.sends.size(), 1u) << "the lost one is not asked";
  EXPECT_EQ(action.sends[0].to, 1);
  leader.quiet(5, 0);
  EXPECT_TRUE(leader.on_message(1, message(Type::kReport, 2, 0, 2)).done);
}

TEST(Meeting, WhoWasOutOfReachBeforeIsAskedAllTheSame) {
  Meeting leader(0, 3);
  leader.on_lost(1);
  leader.on_lost(2);
  EXPECT_EQ(leader.enter(1).sends.size(), 2u);
  leader.on_lost(2);  // could not be told
  EXPECT_THAT(leader.missing(), ElementsAre(0, 1));
  Meeting member(1, 3);
  member.on_lost(0);
  EXPECT_FALSE(member.enter(1).failure);
  EXPECT_EQ(member.quiet(0, 0).sends.size(), 1u);
}

TEST(Meeting, TheLeadersLossFailsItAtOnceAndLater) {
  Meeting member(2, 3);
  member.enter(1);
  EXPECT_FALSE(member.on_lost(1).failure);
  const auto action = member.on_lost(0);
  ASSERT_TRUE(action.failure);
  EXPECT_EQ(action.failure->code(), Code::kDisconnected);
  EXPECT_TRUE(member.enter(2).failure);
}

TEST(Meeting, OfOneEndsByItself) {
  Meeting alone(0, 1);
  alone.enter(1);
  EXPECT_FALSE(alone.quiet(4, 4).done);
  EXPECT_TRUE(alone.quiet(4, 4).done);
}

TEST(Meeting, WhatAStrangerSaysIsIgnored) {
  Meeting leader(0, 2), member(1, 2);
  leader.enter(1);
  member.enter(1);
  for (const int from : {-1, 2, 99}) leader.on_message(from, message(Type::kReport, 1));
  EXPECT_THAT(leader.missing(), ElementsAre(0, 1));
  EXPECT_THAT(member.on_message(0, message(Type::kReport, 1)).sends, IsEmpty());
  EXPECT_THAT(member.on_message(0, message(static_cast<Type>(77), 1)).sends, IsEmpty());
}

// Workers that pass messages around while they meet: whoever ends must find nothing under way.
class Party {
 public:
  Party(int size, uint64_t seed) : random_(seed), members_(static_cast<size_t>(size)) {
    for (int rank = 0; rank < size; ++rank) at(rank).meeting.emplace(rank, size);
  }

  void run(int meetings) {
    for (int step = 0; step < 100'000; ++step) {
      const int rank = static_cast<int>(random_.below(members_.size()));
      switch (random_.below(3)) {
        case 0:
          arrive();
          break;
        case 1:
          work(rank);
          break;
        default:
          talk(rank, meetings);
      }
      if (over(meetings)) return;
    }
    FAIL() << "it does not end";
  }

 private:
  struct Member {
    std::optional<Meeting> meeting;
    uint64_t sent = 0, received = 0;
    int phase = 0;  // entered
    int over = 0;
    bool reports = false;
    int chatter = 6;  // messages it will still send by itself
  };
  struct Flying {
    int from, to;
    std::optional<MeetingMessage> message;  // none: chatter
  };

  Member& at(int rank) { return members_[static_cast<size_t>(rank)]; }
  bool over(int meetings) const {
    for (const Member& member : members_) {
      if (member.over < meetings) return false;
    }
    return true;
  }

  // One of the frames under way, those of one line in order.
  void arrive() {
    if (flying_.empty()) return;
    size_t index = random_.below(flying_.size());
    for (size_t i = 0; i < index; ++i) {
      if (flying_[i].from == flying_[index].from && flying_[i].to == flying_[index].to) index = i;
    }
    const Flying frame = flying_[index];
    flying_.erase(flying_.begin() + static_cast<ptrdiff_t>(index));
    if (frame.message)
      return perform(frame.to, at(frame.to).meeting->on_message(frame.from, *frame.message));
    EXPECT_TRUE(at(frame.to).over == 0) << "something arrived after the meeting";
    ++at(frame.to).received;
    if (random_.below(3) == 0) chat(frame.to);
  }
  void chat(int from) {
    ++at(from).sent;
    flying_.push_back({from, static_cast<int>(random_.below(members_.size())), std::nullopt});
  }
  void work(int rank) {  // before it enters, only
    if (at(rank).phase == 0 && at(rank).chatter > 0) {
      --at(rank).chatter;
      chat(rank);
    }
  }
  void talk(int rank, int meetings) {
    Member& member = at(rank);
    if (member.over == member.phase && member.phase < meetings && random_.below(4) == 0) {
      perform(rank, member.meeting->enter(static_cast<uint64_t>(++member.phase)));
    } else if (std::exchange(member.reports, false)) {
      perform(rank, member.meeting->quiet(member.sent, member.received));
    }
  }
  void perform(int rank, const Meeting::Action& action) {
    EXPECT_FALSE(action.failure);
    for (const auto& send : action.sends) flying_.push_back({rank, send.to, send.message});
    at(rank).reports = at(rank).reports || action.report_when_quiet;
    if (!action.done) return;
    if (++at(rank).over == 1) {
      for (const Flying& frame : flying_) EXPECT_TRUE(frame.message) << "ended with one under way";
    }
  }

  SeededRandom random_;
  std::vector<Member> members_;
  std::deque<Flying> flying_;
};

TEST(Meeting, EndsWithNothingUnderWayWhateverTheOrder) {
  for (uint64_t seed = 1; seed <= 2000; ++seed) {
    Party party(1 + static_cast<int>(seed % 5), seed);
    party.run(2);
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace farspan::testing
