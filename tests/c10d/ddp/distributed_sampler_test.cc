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
using ::testing::HasSubstr;
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

// What one sampler has saved, for another to load.
torch::serialize::InputArchive saved(const DistributedSampler& sampler) {
  torch::serialize::OutputArchive out;
  sampler.save(out);
  std::stringstream bytes;
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  return in;
}

TEST(DistributedSampler, CanBeSavedInTheMiddleOfAnEpoch) {
  DistributedSampler sampler(20, {.replicas = 2, .rank = 1, .seed = 1});
  sampler.set_epoch(6);
  sampler.reset();
  sampler.next(3);
  auto archive = saved(sampler);
  DistributedSampler other(20, {.replicas = 2, .rank = 1, .seed = 1});
  other.load(archive);
  EXPECT_EQ(other.epoch(), 6u);
  EXPECT_EQ(other.left(), 7u);
  EXPECT_EQ(other.next(20).value(), sampler.next(20).value());
}

TEST(DistributedSampler, GoesOnFromItsEpochOnlyOnce) {
  for (const bool counts_epochs : {false, true}) {
    DistributedSampler sampler = in_order(8, 2, 0);
    sampler.load_state({.epoch = 3, .taken = 4});
    EXPECT_EQ(sampler.size(), 4u) << "of a whole epoch";
    EXPECT_THAT(sampler.indices(), ElementsAre(4, 6));
    sampler.reset();  // as a loader does before it begins
    EXPECT_THAT(sampler.next(1).value(), ElementsAre(4));
    if (counts_epochs) {
      sampler.set_epoch(4);
    } else {
      EXPECT_THAT(sampler.next(9).value(), ElementsAre(6));
      EXPECT_FALSE(sampler.next(9).has_value());
    }
    sampler.reset();
    EXPECT_THAT(sampler.next(9).value(), ElementsAre(0, 2, 4, 6));
  }
}

TEST(DistributedSampler, SaysWhereAllRanksAre) {
  DistributedSampler sampler = in_order(7, 2, 1);
  sampler.next(3);
  EXPECT_EQ(sampler.state().taken, 6u);
  sampler.next(3);
  EXPECT_EQ(sampler.state().taken, 7u) << "the one that was added does not count";
  sampler.set_epoch(1);
  EXPECT_EQ(sampler.state().epoch, 0u) << "of that one nothing is taken yet";
  sampler.reset();
  EXPECT_EQ(sampler.state().epoch, 1u);
  EXPECT_EQ(sampler.state().taken, 0u);
  // Expect: an epoch that has been gone through is so for those who go on, too.
  DistributedSampler other = in_order(7, 3, 0);
  other.load_state({.epoch = 0, .taken = 7});
  EXPECT_EQ(other.left(), 0u);
  EXPECT_FALSE(other.next(1).has_value());
}

// All that `replicas` ranks get in so many batches each, and where they are then.
std::vector<size_t> take(size_t examples, int replicas, std::optional<size_t> batches,
                         dist::DistributedSamplerState& state) {
  std::vector<size_t> all;
  const auto before = state;
  for (int rank = 0; rank < replicas; ++rank) {
    DistributedSampler sampler(examples, {.replicas = replicas, .rank = rank, .seed = 5});
    sampler.load_state(before);
    for (size_t turn = 0; turn < batches.value_or(examples); ++turn) {
      const auto batch = sampler.next(4);
      if (!batch) break;
      all.insert(all.end(), batch->begin(), batch->end());
    }
    state = sampler.state();
  }
  return all;
}

TEST(DistributedSampler, DealsTheRestOutToOtherNumbersOfRanks) {
  constexpr size_t kExamples = 101;
  dist::DistributedSamplerState state{.epoch = 2};
  std::multiset<size_t> all;
  for (const int replicas : {3, 2, 5}) {  // 24, 16 and 40 examples
    const auto taken = take(kExamples, replicas, 2, state);
    all.insert(taken.begin(), taken.end());
  }
  EXPECT_EQ(state.taken, 80u);
  EXPECT_EQ(std::set<size_t>(all.begin(), all.end()).size(), 80u) << "none twice";
  const auto rest = take(kExamples, 4, std::nullopt, state);
  all.insert(rest.begin(), rest.end());
  // Expect: each once, and of the first ones so many again that each of the four has equally many.
  EXPECT_THAT(rest, SizeIs(24));
  EXPECT_EQ(std::set<size_t>(all.begin(), all.end()).size(), kExamples);
  EXPECT_THAT(all, SizeIs(104));
}

TEST(DistributedSampler, GoesOnInTheSameOrderOnly) {
  const DistributedSampler sampler(20, {.replicas = 2, .rank = 0, .seed = 1});
  const auto refused = [&](size_t examples, const dist::DistributedSamplerOptions& options) {
    auto archive = saved(sampler);
    return error_of([&] { DistributedSampler(examples, options).load(archive); });
  };
  const Error other_seed = refused(20, {.replicas = 2, .rank = 0, .seed = 4});
  EXPECT_EQ(other_seed.code(), Code::kInvalidArgument);
  EXPECT_THAT(other_seed.what(), HasSubstr("saved with seed 1, and this one has 4"));
  EXPECT_THAT(refused(21, {.replicas = 2, .rank = 0, .seed = 1}).what(),
              HasSubstr("saved with examples 20, and this one has 21"));
  EXPECT_THAT(refused(20, {.replicas = 2, .rank = 0, .shuffle = false, .seed = 1}).what(),
              HasSubstr("saved with shuffle 1"));
  EXPECT_EQ(code_of([] { in_order(7, 2, 1).load_state({.taken = 8}); }), Code::kInvalidArgument);
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

TEST(DistributedSampler, ADataLoaderGoesOnWhereAnEpochWasLeft) {
  DistributedSampler sampler(10, {.replicas = 2, .rank = 0, .shuffle = false});
  sampler.load_state({.epoch = 0, .taken = 4});
  auto loader = torch::data::make_data_loader(Numbers(), sampler, /*batch_size=*/2);
  std::vector<int64_t> seen;
  for (const uint64_t epoch : {0u, 1u}) {
    sampler.set_epoch(epoch);
    for (const auto& batch : *loader) seen.insert(seen.end(), batch.begin(), batch.end());
  }
  EXPECT_THAT(seen, ElementsAre(4, 6, 8, 0, 2, 4, 6, 8));
}

}  // namespace
}  // namespace farspan::testing
