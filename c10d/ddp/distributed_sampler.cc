#include <farspan/c10d/ddp/distributed_sampler.h>

#include <algorithm>
#include <numeric>
#include <string>

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/serialize/archive.h>

namespace farspan::dist {

DistributedSampler::DistributedSampler(size_t examples, const DistributedSamplerOptions& options)
    : options_(options), examples_(examples), epoch_(std::make_shared<std::atomic<uint64_t>>(0)) {
  if (options_.replicas < 0) options_.replicas = get_world_size(options_.group);
  if (options_.rank < 0) options_.rank = get_rank(options_.group);
  if (options_.replicas < 1 || options_.rank < 0 || options_.rank >= options_.replicas) {
    throw Error(Code::kInvalidArgument, "rank " + std::to_string(options_.rank) + " of " +
                                            std::to_string(options_.replicas) + " replicas")
        .operation("DistributedSampler")
        .advice("ranks are from 0 up to one less than the number of replicas");
  }
  options_.group.reset();
  count();
  reset();
}

void DistributedSampler::count() {
  const auto replicas = static_cast<size_t>(options_.replicas);
  samples_ = options_.drop_last ? examples_ / replicas : (examples_ + replicas - 1) / replicas;
}

void DistributedSampler::set_epoch(uint64_t epoch) noexcept { *epoch_ = epoch; }
uint64_t DistributedSampler::epoch() const noexcept { return *epoch_; }

std::vector<size_t> DistributedSampler::indices() const {
  std::vector<size_t> order(examples_);
  if (options_.shuffle) {
    const at::Generator generator = at::detail::createCPUGenerator(options_.seed + epoch());
    const at::Tensor shuffled = at::randperm(static_cast<int64_t>(examples_), generator, at::kLong);
    const auto* const first = shuffled.const_data_ptr<int64_t>();
    std::transform(first, first + examples_, order.begin(),
                   [](int64_t index) { return static_cast<size_t>(index); });
  } else {
    std::iota(order.begin(), order.end(), size_t{0});
  }
  std::vector<size_t> own;
  own.reserve(samples_);
  for (size_t turn = 0; turn < samples_; ++turn) {
    const size_t place =
        turn * static_cast<size_t>(options_.replicas) + static_cast<size_t>(options_.rank);
    own.push_back(order[place % examples_]);  // beyond its end the order begins anew
  }
  return own;
}

void DistributedSampler::reset(std::optional<size_t> examples) {
  if (examples) {
    examples_ = *examples;
    count();
  }
  indices_ = indices();
  next_ = 0;
}

std::optional<std::vector<size_t>> DistributedSampler::next(size_t batch_size) {
  if (next_ == indices_.size()) return std::nullopt;
  const size_t end = std::min(indices_.size(), next_ + batch_size);
  const auto first = indices_.begin();
  std::vector<size_t> batch(first + static_cast<std::ptrdiff_t>(next_),
                            first + static_cast<std::ptrdiff_t>(end));
  next_ = end;
  return batch;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", at::scalar_tensor(static_cast<int64_t>(epoch()), at::kLong), true);
  archive.write("next", at::scalar_tensor(static_cast<int64_t>(next_), at::kLong), true);
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  at::Tensor epoch, place;
  archive.read("epoch", epoch, true);
  archive.read("next", place, true);
  set_epoch(static_cast<uint64_t>(epoch.item<int64_t>()));
  reset();
  next_ = std::min(static_cast<size_t>(place.item<int64_t>()), indices_.size());
}

}  // namespace farspan::dist
