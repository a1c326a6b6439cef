// How workers that share a store with the dead find each other. The rules: c10d/store/generation.h.
#include <farspan/c10d/store/generation.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <set>
#include <thread>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/store/file_store.h>
#include <farspan/c10d/store/hash_store.h>
#include <farspan/c10d/store/prefix_store.h>
#include <farspan/c10d/store/tcp_store.h>

#include "c10d/store/temporary_folder.h"

namespace farspan::dist {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

std::future<std::string> come(std::shared_ptr<Store> store, int rank, int world_size,
                              Millis timeout = 30s) {
  return std::async(std::launch::async, [=] {
    return agree_on_generation(*store, rank, world_size, Deadline::after(timeout));
  });
}

Error error_of(std::future<std::string>& coming) {
  try {
    coming.get();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(Code::kOk, "nothing was thrown");
}

// All ranks come; returns the name that they agree on.
std::string all_come(const std::shared_ptr<Store>& store, int world_size) {
  std::vector<std::future<std::string>> coming;
  for (int rank = 0; rank < world_size; ++rank) {
    coming.push_back(come(store->clone(), rank, world_size));
  }
  std::set<std::string> names;
  for (auto& one : coming) names.insert(one.get());
  EXPECT_EQ(names.size(), 1u);
  return *names.begin();
}

// Waits until a rank has written its nonce.
void has_knocked(Store& store, int rank) {
  store.wait({"generation/nonce/" + std::to_string(rank)}, 20s);
}

class GenerationTest : public ::testing::Test {
 protected:
  const std::shared_ptr<Store> store_ = std::make_shared<HashStore>();
};

TEST_F(GenerationTest, AllRanksGetOneNameAndEveryStartANewOne) {
  std::set<std::string> names;
  for (int start = 0; start < 5; ++start) names.insert(all_come(store_, 4));
  EXPECT_EQ(names.size(), 5u);
}

TEST_F(GenerationTest, WorksOverEveryStore) {
  const testing::TemporaryFolder folder;
  TcpStoreOptions tcp;
  tcp.is_server = true;
  for (const std::shared_ptr<Store>& store :
       {std::shared_ptr<Store>(std::make_shared<FileStore>(folder.file("store"))),
        std::shared_ptr<Store>(std::make_shared<TcpStore>(tcp))}) {
    EXPECT_NE(all_come(store, 3), all_come(store, 3));
  }
}

TEST_F(GenerationTest, OneWorkerAloneAgreesWithItself) {
  EXPECT_NE(all_come(store_, 1), all_come(store_, 1));
}

TEST_F(GenerationTest, TheWorldMayGrowAndShrinkBetweenStarts) {
  for (const int size : {3, 1, 5, 2}) all_come(store_, size);
}

TEST_F(GenerationTest, LeavesLittleBehind) {
  for (int start = 0; start < 3; ++start) all_come(store_, 3);
  // A nonce for each follower, the leader, and a "go" for each start.
  EXPECT_LE(store_->num_keys(), 2 + 1 + 3);
}

TEST_F(GenerationTest, TwoUsersOfOneStoreDoNotMeet) {
  const auto rpc = std::make_shared<PrefixStore>("rpc", store_);
  const auto dist = std::make_shared<PrefixStore>("dist", store_);
  auto rpc_one = come(rpc, 1, 2), dist_one = come(dist, 1, 2);
  auto dist_zero = come(dist, 0, 2), rpc_zero = come(rpc, 0, 2);
  const std::string name = rpc_zero.get();
  EXPECT_EQ(rpc_one.get(), name);
  EXPECT_EQ(dist_one.get(), dist_zero.get());
}

TEST_F(GenerationTest, AStartThatOnlySomeRanksMadeDoesNotDisturbTheNext) {
  // Ranks 1 and 2 came, rank 0 never did.
  auto one = come(store_, 1, 3, 50ms), two = come(store_, 2, 3, 50ms);
  EXPECT_EQ(error_of(one).code(), Code::kTimeout);
  EXPECT_EQ(error_of(two).code(), Code::kTimeout);
  all_come(store_, 3);
  // Ranks 0 and 1 came, and answered each other; rank 2 never did.
  auto zero = come(store_, 0, 3, 100ms);
  one = come(store_, 1, 3, 100ms);
  EXPECT_EQ(error_of(zero).code(), Code::kTimeout);
  EXPECT_EQ(error_of(one).code(), Code::kTimeout);
  all_come(store_, 3);
}

TEST_F(GenerationTest, AFollowerThatADeadLeaderAnsweredJoinsTheNextLeader) {
  // This leader will not see rank 2, and dies; rank 1 was answered by it and goes on waiting.
  auto dead = come(store_, 0, 3, 200ms);
  auto one = come(store_, 1, 3);
  EXPECT_EQ(error_of(dead).code(), Code::kTimeout);
  auto zero = come(store_, 0, 3), two = come(store_, 2, 3);
  const std::string name = zero.get();
  EXPECT_EQ(one.get(), name);
  EXPECT_EQ(two.get(), name);
}

// It came to the store of an earlier start, in the moment before that ended.
TEST_F(GenerationTest, AFollowerTellsAStoreThatHasTakenThePlaceOfItsFirst) {
  auto follower = come(store_->clone(), 1, 2);
  has_knocked(*store_, 1);
  store_->delete_key("generation/nonce/1");
  auto leader = come(store_->clone(), 0, 2);
  EXPECT_EQ(follower.get(), leader.get());
}

TEST_F(GenerationTest, AFollowerThatDiedMayComeAgainDuringOneStart) {
  auto zero = come(store_, 0, 3);
  auto dead = come(store_, 1, 3, 100ms);
  EXPECT_EQ(error_of(dead).code(), Code::kTimeout);
  auto one = come(store_, 1, 3), two = come(store_, 2, 3);
  const std::string name = zero.get();
  EXPECT_EQ(one.get(), name);
  EXPECT_EQ(two.get(), name);
}

TEST_F(GenerationTest, RankZeroNamesThoseThatAreMissing) {
  auto zero = come(store_, 0, 4, 300ms), two = come(store_, 2, 4, 300ms);
  const Error error = error_of(zero);
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_EQ(error.message(), "ranks 1, 3 of 4 did not come");
  EXPECT_THAT(error.what(), HasSubstr("at memory"));
  EXPECT_EQ(error_of(two).code(), Code::kTimeout);
}

TEST_F(GenerationTest, OfTwoWorkersWithOneRankTheEarlierIsTold) {
  auto first = come(store_, 1, 2);
  has_knocked(*store_, 1);
  auto second = come(store_, 1, 2);
  const Error error = error_of(first);
  EXPECT_EQ(error.code(), Code::kAlreadyExists);
  EXPECT_THAT(error.message(), HasSubstr("rank 1, too: "));
  EXPECT_THAT(error.message(), HasSubstr(":" + std::to_string(getpid())));
  auto zero = come(store_, 0, 2);
  EXPECT_EQ(second.get(), zero.get());
}

TEST_F(GenerationTest, OfTwoWorkersWithRankZeroTheEarlierIsTold) {
  auto first = come(store_, 0, 2);
  store_->wait({"generation/leader"}, 20s);
  const std::string leader = store_->get("generation/leader");
  auto second = come(store_, 0, 2);
  while (store_->get("generation/leader") == leader) std::this_thread::yield();
  auto one = come(store_, 1, 2);
  EXPECT_EQ(error_of(first).code(), Code::kAlreadyExists);
  EXPECT_EQ(one.get(), second.get());
}

void expect_told_of_world_size(std::future<std::string>& coming, int odd_rank = 2) {
  const Error error = error_of(coming);
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_EQ(error.message(),
            "rank " + std::to_string(odd_rank) + " has a WORLD_SIZE of 4, and rank 0 one of 3");
}

TEST_F(GenerationTest, WorkersThatDisagreeOnTheWorldSizeAreAllTold) {
  auto one = come(store_, 1, 3);
  has_knocked(*store_, 1);
  auto zero = come(store_, 0, 3), two = come(store_, 2, 4);
  for (auto* coming : {&zero, &one, &two}) expect_told_of_world_size(*coming);
}

TEST_F(GenerationTest, AWorkerThatComesAfterADisagreementIsToldToo) {
  auto zero = come(store_, 0, 3), two = come(store_, 2, 4);
  expect_told_of_world_size(two);
  auto one = come(store_, 1, 3);
  expect_told_of_world_size(one);
  expect_told_of_world_size(zero);
}

TEST(Generation, ADisagreementIsToldBeforeRankZeroTakesItsStoreAway) {
  for (int round = 0; round < 20; ++round) {
    const int odd = round % 2 + 1;
    auto server = TcpStoreServer::start();
    TcpStoreOptions options;
    options.port = server->port();
    const auto connect = [&] { return std::make_shared<TcpStore>(options); };
    auto other = come(connect(), 3 - odd, 3);
    auto zero = come(connect(), 0, 3), refusing = come(connect(), odd, 4);
    expect_told_of_world_size(zero, odd);
    server->close();
    expect_told_of_world_size(other, odd);
    expect_told_of_world_size(refusing, odd);
  }
}

TEST_F(GenerationTest, ADisagreementIsNotKeptBackForAWorkerThatNeverComes) {
  const TimePoint start = Clock::now();
  auto zero = come(store_, 0, 3, 60s), two = come(store_, 2, 4);
  expect_told_of_world_size(two);
  expect_told_of_world_size(zero);
  EXPECT_LT(Clock::now() - start, 30s);
}

TEST_F(GenerationTest, ARankOutsideTheWorldIsRefused) {
  for (const auto& [rank, size] : {std::pair{2, 2}, {-1, 2}, {0, 0}}) {
    auto coming = come(store_, rank, size);
    EXPECT_EQ(error_of(coming).code(), Code::kInvalidArgument);
  }
}

TEST(Generation, AStoreThatGoesAwayFailsAllAtOnce) {
  const auto server = TcpStoreServer::start();
  TcpStoreOptions options;
  options.port = server->port();
  const auto store = std::make_shared<TcpStore>(options);
  auto one = come(store, 1, 2, 60s);
  has_knocked(*store, 1);
  server->close();
  const Error error = error_of(one);
  EXPECT_TRUE(error.code() == Code::kDisconnected || error.code() == Code::kUnavailable);
  EXPECT_LT(error.elapsed(), 20s);
  EXPECT_THAT(error.what(), HasSubstr(store->address()));
}

}  // namespace
}  // namespace farspan::dist
