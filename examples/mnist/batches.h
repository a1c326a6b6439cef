// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Batches: a dataset in shuffled batches, shared out among trainers.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "mnist/dataset.h"

namespace mnist {

struct Batch {
  at::Tensor images;  // [batch, 1, 28, 28] float32
  at::Tensor labels;  // [batch] int64
};

struct BatchOptions {
  int64_t batch_size = 64;
  uint64_t seed = 1;   // the same for all trainers
  int64_t shard = 0;   // which trainer this is, 0 to shards - 1
  int64_t shards = 1;  // how many trainers there are
};

// Of that trainer, for `images` images: how many of them are its own, and in how many batches.
int64_t samples_of(const BatchOptions& options, int64_t images);
int64_t batches_of(const BatchOptions& options, int64_t images);

// Every epoch has an order of its own, which follows from the seed alone, on any machine. Each
// image goes to exactly one trainer; the shards differ by at most one image.
//
//   for (const auto& [images, labels] : batches.epoch(0)) ...
//
// Threading: const methods may be called from any thread.
class Batches {
 public:
  class Epoch;

  //   throws  farspan::Error kInvalidArgument: no such shard, or a batch size below 1
  Batches(Dataset data, BatchOptions options);

  // Batches and images per epoch in this shard; the last batch may be smaller than the others.
  int64_t size() const;
  int64_t samples() const;

  // Epoch `number`, 0 onwards.
  Epoch epoch(int64_t number) const;

 private:
  Dataset data_;
  BatchOptions options_;
};

// A range of Batch values for one loop. Lifetime: keeps the dataset alive by itself.
class Batches::Epoch {
 public:
  class Iterator {
   public:
    Iterator(const Epoch* epoch, int64_t batch) : epoch_(epoch), batch_(batch) {}
    Batch operator*() const { return epoch_->batch(batch_); }
    Iterator& operator++() { return ++batch_, *this; }
    friend bool operator==(const Iterator& a, const Iterator& b) { return a.batch_ == b.batch_; }

   private:
    const Epoch* epoch_;
    int64_t batch_;
  };

  Iterator begin() const { return {this, 0}; }
  Iterator end() const { return {this, batches_}; }

 private:
  friend class Batches;
  Epoch() = default;
  Batch batch(int64_t index) const;

  Dataset data_;
  at::Tensor order_;  // [samples] int64, the images of this shard
  int64_t batch_size_ = 0, batches_ = 0;
};

}  // namespace mnist
