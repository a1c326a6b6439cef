// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// DistributedSampler: which examples of a data set this rank takes.
// Source: PyTorch's torch.utils.data.DistributedSampler: the same indices for the same arguments;
//         state() is torchdata's StatefulDistributedSampler, but for a number of ranks that
//         changes.
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

// Where all ranks together are in an epoch.
struct DistributedSamplerState {
  uint64_t epoch = 0;
  // Of its order: so many from the beginning have been dealt out, the rest has not.
  uint64_t taken = 0;
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
// A job that is started anew, with as many ranks or others, takes up an epoch where it was left:
// each rank loads what any rank has saved, and what was not dealt out then is dealt out to the
// ranks that there are now. Each example comes once, but for those that are added, or left out, at
// the end.
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
  size_t size() const noexcept { return share_of(examples_); }
  // How many next() has yet to give it in this one.
  size_t left() const noexcept { return indices_.size() - next_; }
  // All that it gets, in order, in the present epoch; where that was taken up, in the rest of it.
  std::vector<size_t> indices() const;

  // To the beginning of the epoch; of one that was taken up, and whose rest has not been gone
  // through, to the place where it was.
  //   examples  absent: as many as before; or else nothing is taken up
  void reset(std::optional<size_t> examples = std::nullopt) override;
  // At most this many; nothing at the end.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;

  // What next() has given, to this rank and in the same batches to the others: right when all ranks
  // have called it equally often. Who uses a loader, which has a copy and may read ahead of the
  // training, counts what it has trained on instead.
  DistributedSamplerState state() const noexcept;
  // Goes on from there: next() gives this rank's share of the rest, and so do copies made later.
  //   throws  Error kInvalidArgument: more are taken than there are
  void load_state(const DistributedSamplerState& state);

  // The state, and what the order depends on.
  void save(torch::serialize::OutputArchive& archive) const override;
  //   throws  Error kInvalidArgument: the one that was saved deals out other examples, or in
  //           another order
  void load(torch::serialize::InputArchive& archive) override;

 private:
  // Of so many examples, those that each rank gets.
  size_t share_of(size_t examples) const noexcept;
  // How much of the present epoch was taken before this sampler took it up.
  size_t begin() const noexcept;

  DistributedSamplerOptions options_;
  size_t examples_;
  std::shared_ptr<std::atomic<uint64_t>> epoch_;         // shared with copies
  std::optional<DistributedSamplerState> resumed_ = {};  // until its rest has been gone through
  DistributedSamplerState began_;                        // what indices_ are the rest of
  std::vector<size_t> indices_;
  size_t next_ = 0;
};

}  // namespace farspan::dist
