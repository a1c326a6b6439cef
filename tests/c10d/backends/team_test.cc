// The rule under test: c10d/backends/README.md, "cpu".
#include <farspan/c10d/backends/cpu/host/collectives.h>
#include <farspan/c10d/backends/cpu/team.h>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "support/errors.h"

namespace farspan::dist::cpu {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using testing::error_of;
using ::testing::HasSubstr;

// Ranks on threads over one segment.
class TeamTest : public ::testing::Test {
 protected:
  std::vector<std::unique_ptr<Team>> make(int ranks,
                                          std::function<void(int)> on_long_wait = nullptr) {
    auto segment =
        std::make_shared<Segment>(net::SharedMemory::create(Segment::bytes_for(ranks)), ranks);
    Team::World world;
    world.on_long_wait = std::move(on_long_wait);
    for (int rank = 0; rank < ranks; ++rank) {
      world.ranks.push_back(rank);
      world.names.push_back("rank " + std::to_string(rank));
    }
    std::vector<std::unique_ptr<Team>> teams;
    for (int rank = 0; rank < ranks; ++rank) {
      teams.push_back(std::make_unique<Team>(segment, kSmallBytes, rank, world));
    }
    return teams;
  }

  static void on_each(const std::vector<std::unique_ptr<Team>>& teams,
                      const std::function<void(Team&)>& body) {
    std::vector<std::thread> threads;
    for (const auto& team : teams) threads.emplace_back([&, one = team.get()] { body(*one); });
    for (auto& thread : threads) thread.join();
  }

  static Call all_reduce_call(uint64_t count, Deadline deadline = Deadline::after(60s)) {
    Call call;
    call.signature.op = Op::kAllReduce;
    call.type = DType::INT32;
    call.signature.type = static_cast<uint8_t>(call.type);
    call.signature.count = count;
    call.deadline = deadline;
    return call;
  }
};

TEST_F(TeamTest, CallsOfAllSizesFollowEachOther) {
  for (const int ranks : {2, 3, 5}) {
    const auto teams = make(ranks);
    on_each(teams, [ranks](Team& team) {
      for (int round = 0; round < 60; ++round) {
        const size_t count = std::vector<size_t>{1, 2048, 2049, 40'000, 300'001}[round % 5];
        std::vector<int32_t> data(count);
        for (size_t i = 0; i < count; ++i) {
          data[i] = static_cast<int32_t>(i + static_cast<size_t>(team.rank() + round));
        }
        host::all_reduce(team, all_reduce_call(count),
                         {reinterpret_cast<std::byte*>(data.data()), count});
        const int offset = ranks * (ranks - 1) / 2 + ranks * round;
        for (size_t i = 0; i < count; i += 97) {
          ASSERT_EQ(data[i], static_cast<int32_t>(i) * ranks + offset) << count << " at " << i;
        }
      }
    });
  }
}

TEST_F(TeamTest, AFailureIsToldToAllOnce) {
  const auto teams = make(3);
  on_each(teams, [](Team& team) {
    if (team.rank() == 1) {
      std::this_thread::sleep_for(20ms);  // so that the others sleep; any other order is right, too
      team.fail_call(Error(Code::kCancelled, "stop"));
    }
    const Error error = error_of([&] { team.enter({}, Deadline::after(60s)); });
    EXPECT_EQ(error.code(), Code::kCancelled);
    EXPECT_EQ(error.message(), "stop");
    team.fail_call(Error(Code::kTimeout, "later"));
    EXPECT_EQ(team.failure().message(), "stop");
  });
}

// A root that still waits for one rank, while the others have gone on.
TEST_F(TeamTest, AFailureEndsNoCallThatWasBefore) {
  const auto teams = make(3);
  const auto numbered = [](uint64_t sequence) {
    Signature signature;
    signature.sequence = sequence;
    return signature;
  };
  std::atomic<bool> failed{false};
  on_each(teams, [&](Team& team) {
    const Deadline deadline = Deadline::after(60s);
    team.enter(numbered(1), deadline);
    if (team.rank() == 1) {
      team.fail(Error(Code::kCancelled, "stop"), 2);
      team.fail(Error(Code::kTimeout, "later"), 3);
      failed = true;
    }
    if (team.rank() == 2) {
      while (!failed) std::this_thread::yield();
      std::this_thread::sleep_for(20ms);  // so that the root sleeps; any other order is right, too
      team.raise(Team::Stage::kPut, 1);
    }
    if (team.rank() == 0) team.await(2, Team::Stage::kPut, 1);
    EXPECT_EQ(error_of([&] { team.enter(numbered(2), deadline); }).message(), "stop");
  });
  EXPECT_FALSE(teams[0]->has_failed(1));
  teams[0]->fail(Error(Code::kDisconnected, "the rank is gone"), 1);
  EXPECT_TRUE(teams[2]->has_failed(1));
  EXPECT_EQ(teams[2]->failure().message(), "the rank is gone");
}

TEST_F(TeamTest, WhoIsGoneEndsTheWaitOfThoseThatNeedHim) {
  const auto teams = make(3);
  on_each(teams, [](Team& team) {
    if (team.rank() == 2) return team.lose(2);
    const Error error = error_of([&] { team.enter({}, Deadline::after(60s)); });
    EXPECT_EQ(error.code(), Code::kDisconnected);
    EXPECT_EQ(error.message(), "rank 2 is gone");
  });
}

TEST_F(TeamTest, WhoHasDoneHisPartMayGo) {
  for (int round = 0; round < 50; ++round) {
    const auto teams = make(3);
    on_each(teams, [](Team& team) {
      std::vector<int32_t> data(30'000, 1);
      host::all_reduce(team, all_reduce_call(data.size()),
                       {reinterpret_cast<std::byte*>(data.data()), data.size()});
      team.lose(team.rank());
      EXPECT_EQ(data.back(), 3);
    });
    EXPECT_FALSE(teams[0]->has_failed(0));
  }
}

TEST_F(TeamTest, ALongWaitIsToldWithTheRankThatIsWaitedFor) {
  std::atomic<int> asked{-1};
  std::vector<std::unique_ptr<Team>> teams;
  teams = make(2, [&](int rank) {
    asked = rank;
    teams[0]->lose(rank);
  });
  const Error error = error_of([&] { teams[0]->enter({}, Deadline::after(60s)); });
  EXPECT_EQ(error.code(), Code::kDisconnected);
  EXPECT_EQ(asked, 1);
}

TEST_F(TeamTest, WhoeverFailsSecondFindsTheFirstFailure) {
  for (int round = 0; round < 200; ++round) {
    const auto teams = make(2);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        teams[0]->fail_call(Error(Code::kCancelled, "stop"));
        EXPECT_EQ(teams[0]->failure().message(), "stop");
      });
    }
    for (auto& thread : threads) thread.join();
  }
}

TEST_F(TeamTest, WhoLeavesIsNamedSo) {
  const auto teams = make(2);
  teams[1]->leave();
  teams[1]->lose(1);  // its end is noticed later
  const Error error = error_of([&] { teams[0]->enter({}, Deadline::after(60s)); });
  EXPECT_EQ(error.message(), "rank 1 has left the group");
  EXPECT_EQ(error_of([&] { teams[1]->enter({}, Deadline::after(60s)); }).code(),
            Code::kDisconnected);
}

TEST_F(TeamTest, TheDeadlineNamesWhoIsWaitedFor) {
  const auto teams = make(3);
  const Error error = error_of([&] { teams[0]->enter({}, Deadline::after(50ms)); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_THAT(error.message(),
              ContainsRegex("^rank 0 gave up after .*: rank 1 had not called it$"));
  // Expect: the others are told when they come, and by whom.
  const Error told = error_of([&] { teams[2]->enter({}, Deadline::after(60s)); });
  EXPECT_EQ(told.message(), error.message());
  EXPECT_EQ(told.worker(), "rank 1");
  EXPECT_EQ(told.advice(), error.advice());
}

TEST(Segment, LeavesNothingAndCannotShrink) {
  const auto memory = net::SharedMemory::create(8192);
  EXPECT_NE(ftruncate(memory.descriptor(), 0), 0);
  const int other = fcntl(memory.descriptor(), F_DUPFD_CLOEXEC, 0);
  memory.data()[8000] = std::byte{7};
  const auto again = net::SharedMemory::open(net::OwnedDescriptor(other), 8192);
  EXPECT_EQ(again.data()[8000], std::byte{7});
  const int wrong = fcntl(memory.descriptor(), F_DUPFD_CLOEXEC, 0);
  EXPECT_EQ(error_of([&] { net::SharedMemory::open(net::OwnedDescriptor(wrong), 4096); }).code(),
            Code::kCorrupt);
}

}  // namespace
}  // namespace farspan::dist::cpu
