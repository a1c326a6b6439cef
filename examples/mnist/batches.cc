#include "mnist/batches.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <ATen/Functions.h>

#include <farspan/c10d/base/error.h>

namespace mnist {
namespace {

// std::shuffle and the standard distributions differ between libraries; the engine does not.
std::vector<int64_t> shuffled(int64_t size, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  std::seed_seq mixed{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                      static_cast<uint32_t>(epoch)};
  std::mt19937_64 random(mixed);
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

}  // namespace

Batches::Batches(Dataset data, BatchOptions options) : data_(std::move(data)), options_(options) {
  const auto fail = [](const std::string& message) {
    throw farspan::Error(farspan::Code::kInvalidArgument, message).operation("mnist::Batches");
  };
  if (options.batch_size < 1) fail("batch_size is " + std::to_string(options.batch_size));
  if (options.shard < 0 || options.shard >= options.shards) {
    fail("shard " + std::to_string(options.shard) + " of " + std::to_string(options.shards));
  }
}

int64_t samples_of(const BatchOptions& options, int64_t images) {
  return (images - options.shard + options.shards - 1) / options.shards;
}

int64_t batches_of(const BatchOptions& options, int64_t images) {
  return (samples_of(options, images) + options.batch_size - 1) / options.batch_size;
}

int64_t Batches::samples() const { return samples_of(options_, data_.size()); }

int64_t Batches::size() const { return batches_of(options_, data_.size()); }

Batches::Epoch Batches::epoch(int64_t number) const {
  const auto order = shuffled(data_.size(), options_.seed, number);
  Epoch epoch;
  epoch.data_ = data_;
  epoch.order_ = at::empty({samples()}, at::kLong);
  auto* mine = epoch.order_.mutable_data_ptr<int64_t>();
  for (int64_t i = options_.shard; i < data_.size(); i += options_.shards) {
    *mine++ = order[static_cast<size_t>(i)];
  }
  epoch.batch_size_ = options_.batch_size;
  epoch.batches_ = size();
  return epoch;
}

Batch Batches::Epoch::batch(int64_t index) const {
  const int64_t begin = index * batch_size_;
  const int64_t end = std::min(begin + batch_size_, order_.size(0));
  const at::Tensor picked = order_.slice(0, begin, end);
  return {data_.images.index_select(0, picked), data_.labels.index_select(0, picked)};
}

}  // namespace mnist
