// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// DistributedSampler: which examples of a data set this rank takes.
// Source: PyTorch's torch.utils.data.DistributedSampler: the same indices for the same arguments.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <torch/data/samplers/base.h>

#include <farspan/c10d/group/process_group.h>

namespace farspan::dist {

struct DistributedSamplerOptions {
  int replicas = -1;  // -1: as many as the group has ranks
  int rank = -1;      // -1: this rank
  bool shuffle = true;
  uint64_t seed = 0;       // the same on all ranks
  bool drop_last = false;  // the last examples, rather than giving some twice
  Group group = nullptr;   // null: the default group; not looked at where both numbers are given
};

// Deals the examples out to the ranks in turn, in an order that depends on seed and epoch. Each
// rank gets as many: where the number does not fit, the first examples of the order are added at
// its end, or the last ones left out.
//
//   torch::data::make_data_loader(data_set, sampler, 64);
//   for (int epoch = 0; epoch < epochs; ++epoch) {
//     sampler.set_epoch(epoch);
//     for (auto& batch : *loader) ...
//
// Threading: one thread at a time, but for set_epoch(). Copies have places of their own, and the
//            epoch in common, so that one's loader hears of it.
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  //   throws  Error kInvalidArgument: a rank that is not below the number of replicas, no group
  explicit DistributedSampler(size_t examples, const DistributedSamplerOptions& options = {});

  // The order of this epoch from the next reset() on.
  void set_epoch(uint64_t epoch) noexcept;
  uint64_t epoch() const noexcept;

  // How many examples this rank gets in each epoch.
  size_t size() const noexcept { return samples_; }
  // All of them, in order, of the present epoch.
  std::vector<size_t> indices() const;

  // To the beginning of the epoch.
  //   examples  absent: as many as before
  void reset(std::optional<size_t> examples = std::nullopt) override;
  // At most this many; nothing at the end.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;
  // The epoch, and the place in it.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void count();

  DistributedSamplerOptions options_;
  size_t examples_;
  size_t samples_ = 0;
  std::shared_ptr<std::atomic<uint64_t>> epoch_;  // shared with copies
  std::vector<size_t> indices_;
  size_t next_ = 0;
};

}  // namespace farspan::dist
