// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// LocalOptimizer: what a DistributedOptimizer keeps on each owner of parameters.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <farspan/c10d/base/mutex.h>
#include <farspan/optim/optimizer_spec.h>
#include <farspan/optim/room.h>
#include <farspan/rref/rref.h>

namespace farspan::optim {

// Steps on tensors that share the parameters' memory, but neither their version counters nor their
// .grad: a step between another trainer's forward and backward pass makes nothing throw. That
// trainer's gradient then mixes versions, as in every parameter server without locks ("hogwild").
// A consistent one guards its worker's parameters while it lives, and counts its steps in the
// parameters' versions: a backward pass that met a step all the same is refused by LibTorch.
//
// Threading: every method from any thread; steps of one optimizer take turns.
class LocalOptimizer {
 public:
  //   guard   where consistent steps are agreed upon; null: hogwild
  //   throws  Error kInvalidArgument: see make_optimizer(); a parameter that is given twice
  LocalOptimizer(const OptimizerSpec& defaults, const std::vector<LocalGroup>& groups,
                 std::shared_ptr<OptimRoom> guard = nullptr);
  ~LocalOptimizer();
  LocalOptimizer(const LocalOptimizer&) = delete;
  LocalOptimizer& operator=(const LocalOptimizer&) = delete;

  // Applies the gradients that a context has for these parameters here. Parameters without are
  // left alone: all of them, when the context has not been here.
  //   number   of the step, of those that are consistent
  //   returns  how many parameters had a gradient
  //   throws   Error kInvalidArgument: a gradient that LibTorch cannot apply; kCancelled: the step
  //            is over already
  int64_t step(uint64_t context, uint64_t number = 0);

  // How many tensors it optimizes.
  int64_t size() const { return static_cast<int64_t>(parameters_.size()); }

 private:
  const std::shared_ptr<OptimRoom> guard_;
  Mutex mutex_;
  std::vector<at::Tensor> parameters_;                        // constant after construction
  std::vector<at::Tensor> twins_ FARSPAN_GUARDED_BY(mutex_);  // the same memory
  std::unique_ptr<torch::optim::Optimizer> optimizer_ FARSPAN_GUARDED_BY(mutex_);
};

using LocalOptimizerRef = RRef<std::shared_ptr<LocalOptimizer>>;

// A LocalGroup as it travels to the owner of its parameters.
struct OwnedGroup {
  std::vector<RRef<std::vector<at::Tensor>>> parameters;
  std::optional<OptimizerSpec> options;
};
FARSPAN_STRUCT(OwnedGroup, parameters, options);

// Runs on the owner.
std::shared_ptr<LocalOptimizer> make_local_optimizer(const OptimizerSpec& defaults,
                                                     const std::vector<OwnedGroup>& groups,
                                                     bool consistent);

}  // namespace farspan::optim
