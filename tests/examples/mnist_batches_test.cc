// The rules under test: examples/mnist/batches.h.
#include "mnist/batches.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include <ATen/ATen.h>

#include <farspan/c10d/base/error.h>

namespace mnist {
namespace {

// Image i is filled with i, and so is its label.
Dataset numbered(int64_t size) {
  const at::Tensor numbers = at::arange(size, at::kLong);
  return {numbers.to(at::kFloat).view({size, 1, 1, 1}).expand({size, 1, 28, 28}), numbers};
}

std::vector<int64_t> labels_of(const Batches& batches, int64_t epoch) {
  std::vector<int64_t> all;
  for (const auto& [images, labels] : batches.epoch(epoch)) {
    for (int64_t i = 0; i < labels.size(0); ++i) all.push_back(labels[i].item<int64_t>());
  }
  return all;
}

TEST(MnistBatches, ImagesStayWithTheirLabels) {
  for (const auto& [images, labels] : Batches(numbered(10), {.batch_size = 3}).epoch(0)) {
    EXPECT_EQ(images.sizes(), (at::IntArrayRef{labels.size(0), 1, 28, 28}));
    EXPECT_TRUE(at::equal(images.select(3, 5).select(2, 9).squeeze(1), labels.to(at::kFloat)));
  }
}

TEST(MnistBatches, OnlyTheLastBatchIsSmaller) {
  const Batches batches(numbered(10), {.batch_size = 4});
  std::vector<int64_t> sizes;
  for (const auto& batch : batches.epoch(0)) sizes.push_back(batch.labels.size(0));
  EXPECT_EQ(sizes, (std::vector<int64_t>{4, 4, 2}));
  EXPECT_EQ(batches.size(), 3);
  EXPECT_EQ(batches.samples(), 10);
}

TEST(MnistBatches, TheShardsShareOutEveryImageOnce) {
  for (const int64_t shards : {1, 2, 3, 7, 12}) {
    std::vector<int64_t> seen(10, 0);
    for (int64_t shard = 0; shard < shards; ++shard) {
      const Batches batches(numbered(10), {.batch_size = 2, .shard = shard, .shards = shards});
      const auto mine = labels_of(batches, 3);
      EXPECT_EQ(static_cast<int64_t>(mine.size()), batches.samples());
      for (const int64_t image : mine) ++seen[static_cast<size_t>(image)];
    }
    EXPECT_EQ(seen, std::vector<int64_t>(10, 1)) << shards << " shards";
  }
}

TEST(MnistBatches, TheCountsAreKnownBeforeTheDataIs) {
  for (const int64_t images : {1, 9, 10, 11}) {
    for (const int64_t shards : {1, 2, 3, 12}) {
      for (int64_t shard = 0; shard < shards; ++shard) {
        const BatchOptions options{.batch_size = 2, .shard = shard, .shards = shards};
        const Batches batches(numbered(images), options);
        int64_t count = 0;
        for ([[maybe_unused]] const Batch& batch : batches.epoch(0)) ++count;
        EXPECT_EQ(batches_of(options, images), count) << images << " images, shard " << shard;
        EXPECT_EQ(samples_of(options, images), static_cast<int64_t>(labels_of(batches, 0).size()));
      }
    }
  }
}

TEST(MnistBatches, TheSeedDecidesTheOrder) {
  const Batches one(numbered(100), {.seed = 1}), same(numbered(100), {.seed = 1}),
      other(numbered(100), {.seed = 2});
  EXPECT_EQ(labels_of(one, 0), labels_of(same, 0));
  EXPECT_NE(labels_of(one, 0), labels_of(other, 0));
}

TEST(MnistBatches, EachEpochHasAnOrderOfItsOwn) {
  const Batches batches(numbered(100), {});
  EXPECT_NE(labels_of(batches, 0), labels_of(batches, 1));
  EXPECT_EQ(labels_of(batches, 1), labels_of(batches, 1));
}

TEST(MnistBatches, TheOrderIsTheSameOnEveryMachine) {
  // seed_seq, mt19937_64 and Fisher-Yates are all fixed by their definitions.
  EXPECT_EQ(labels_of(Batches(numbered(8), {.seed = 5}), 2),
            (std::vector<int64_t>{4, 3, 5, 7, 0, 6, 1, 2}));
}

TEST(MnistBatches, AnEpochOutlivesItsBatches) {
  const auto epoch = Batches(numbered(4), {.batch_size = 4}).epoch(0);
  EXPECT_EQ((*epoch.begin()).labels.size(0), 4);
}

TEST(MnistBatches, BadOptionsAreAnError) {
  for (const BatchOptions& bad :
       {BatchOptions{.batch_size = 0}, BatchOptions{.shard = -1}, BatchOptions{.shard = 1},
        BatchOptions{.shard = 0, .shards = 0}}) {
    EXPECT_THROW(Batches(numbered(4), bad), farspan::Error);
  }
}

}  // namespace
}  // namespace mnist
