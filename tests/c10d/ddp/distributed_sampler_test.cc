// The rules: c10d/ddp/distributed_sampler.h. That the order is PyTorch's: tests/parity.
#include <farspan/c10d/ddp/distributed_sampler.h>

#include <gmock/gmock.h>

#include <set>
#include <sstream>

#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/serialize/archive.h>

#include "support/errors.h"
#include "support/ranks.h"

namespace farspan::testing {
namespace {

using dist::DistributedSampler;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

DistributedSampler in_order(size_t examples, int replicas, int rank, bool drop_last = false) {
  return DistributedSampler(
      examples, {.replicas = replicas, .rank = rank, .shuffle = false, .drop_last = drop_last});
}

TEST(DistributedSampler, DealsTheExamplesOutInTurn) {
  EXPECT_THAT(in_order(6, 3, 0).indices(), ElementsAre(0, 3));
  EXPECT_THAT(in_order(6, 3, 1).indices(), ElementsAre(1, 4));
  EXPECT_THAT(in_order(6, 3, 2).indices(), ElementsAre(2, 5));
}

TEST(DistributedSampler, GivesTheFirstOnesTwiceOrLeavesTheLastOnesOut) {
  EXPECT_THAT(in_order(7, 3, 0).indices(), ElementsAre(0, 3, 6));
  EXPECT_THAT(in_order(7, 3, 2).indices(), ElementsAre(2, 5, 1));
  EXPECT_THAT(in_order(7, 3, 2, true).indices(), ElementsAre(2, 5));
  EXPECT_THAT(in_order(2, 5, 4).indices(), ElementsAre(0)) << "round and round";
  EXPECT_THAT(in_order(2, 5, 4, true).indices(), IsEmpty());
  EXPECT_THAT(in_order(0, 2, 1).indices(), IsEmpty());
}

TEST(DistributedSampler, AllRanksTogetherHaveEachExampleOnce) {
  std::multiset<size_t> all;
  for (int rank = 0; rank < 4; ++rank) {
    for (const size_t index :
         DistributedSampler(100, {.replicas = 4, .rank = rank, .seed = 9}).indices()) {
      all.insert(index);
    }
  }
  ASSERT_THAT(all, SizeIs(100));
  EXPECT_EQ(std::set<size_t>(all.begin(), all.end()).size(), 100u);
}

TEST(DistributedSampler, EachEpochHasAnOrderOfItsOwnAndSaysItAgain) {
  DistributedSampler sampler(50, {.replicas = 2, .rank = 0, .seed = 3});
  const auto first = sampler.indices();
  sampler.set_epoch(1);
  const auto second = sampler.indices();
  EXPECT_NE(first, second);
  sampler.set_epoch(0);
  EXPECT_EQ(sampler.indices(), first);
  // Expect: seed and epoch are added, as in PyTorch.
  EXPECT_EQ(DistributedSampler(50, {.replicas = 2, .rank = 0, .seed = 4}).indices(), second);
}

TEST(DistributedSampler, GivesBatchesUntilTheEndAndBeginsAnew) {
  DistributedSampler sampler = in_order(7, 2, 0);
  EXPECT_EQ(sampler.size(), 4u);
  EXPECT_THAT(sampler.next(3).value(), ElementsAre(0, 2, 4));
  EXPECT_THAT(sampler.next(3).value(), ElementsAre(6));
  EXPECT_FALSE(sampler.next(3).has_value());
  sampler.reset();
  EXPECT_THAT(sampler.next(1).value(), ElementsAre(0));
  sampler.reset(3);
  EXPECT_THAT(sampler.next(9).value(), ElementsAre(0, 2));
}

TEST(DistributedSampler, CopiesShareTheEpochOnly) {
  DistributedSampler sampler(20, {.replicas = 2, .rank = 1, .seed = 1});
  DistributedSampler copy = sampler;
  sampler.next(5);
  EXPECT_EQ(copy.next(10).value(), copy.indices()) << "from its own beginning";
  sampler.set_epoch(4);
  copy.reset();
  EXPECT_EQ(copy.next(10).value(), sampler.indices());
}

TEST(DistributedSampler, CanBeSavedInTheMiddleOfAnEpoch) {
  DistributedSampler sampler(20, {.replicas = 2, .rank = 1, .seed = 1});
  sampler.set_epoch(6);
  sampler.reset();
  sampler.next(3);
  torch::serialize::OutputArchive out;
  sampler.save(out);
  std::stringstream bytes;
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  DistributedSampler other(20, {.replicas = 2, .rank = 1, .seed = 1});
  other.load(in);
  EXPECT_EQ(other.epoch(), 6u);
  EXPECT_EQ(other.next(20).value(), sampler.next(20).value());
}

TEST(DistributedSampler, KnowsTheRanksOfTheDefaultGroup) {
  run_on_fake_ranks(3, [](int rank) {
    const DistributedSampler sampler(9, {.shuffle = false});
    EXPECT_EQ(sampler.indices()[0], static_cast<size_t>(rank));
    EXPECT_EQ(sampler.size(), 3u);
  });
  EXPECT_EQ(code_of([] { DistributedSampler(9); }), Code::kInvalidArgument);
  EXPECT_EQ(code_of([] { in_order(9, 2, 2); }), Code::kInvalidArgument);
}

struct Numbers : torch::data::datasets::Dataset<Numbers, int64_t> {
  int64_t get(size_t index) override { return static_cast<int64_t>(index); }
  std::optional<size_t> size() const override { return 10; }
};

TEST(DistributedSampler, WorksInADataLoaderThatHearsOfTheEpoch) {
  DistributedSampler sampler(10, {.replicas = 2, .rank = 0});
  auto loader = torch::data::make_data_loader(Numbers(), sampler, /*batch_size=*/2);
  for (const uint64_t epoch : {0u, 1u}) {
    sampler.set_epoch(epoch);
    std::vector<size_t> seen;
    for (const auto& batch : *loader) seen.insert(seen.end(), batch.begin(), batch.end());
    EXPECT_EQ(seen, sampler.indices());
  }
}

}  // namespace
}  // namespace farspan::testing
