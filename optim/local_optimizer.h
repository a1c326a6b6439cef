// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// LocalOptimizer: what a DistributedOptimizer keeps on each owner of parameters.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <farspan/c10d/base/mutex.h>
#include <farspan/optim/optimizer_spec.h>
#include <farspan/rref/rref.h>

namespace farspan::optim {

// Steps on tensors that share the parameters' memory, but neither their version counters nor their
// .grad: a step between another trainer's forward and backward pass makes nothing throw. That
// trainer's gradient then mixes versions, as in every parameter server without locks ("hogwild").
//
// Threading: every method from any thread; steps of one optimizer take turns.
class LocalOptimizer {
 public:
  LocalOptimizer(std::vector<at::Tensor> parameters, const OptimizerSpec& spec);

  // Applies the gradients that a context has for these parameters here; those without are skipped.
  //   throws  Error kNotFound: this worker does not know the context
  void step(uint64_t context);

 private:
  Mutex mutex_;
  const std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> twins_ FARSPAN_GUARDED_BY(mutex_);  // the same memory
  std::unique_ptr<torch::optim::Optimizer> optimizer_ FARSPAN_GUARDED_BY(mutex_);
};

using LocalOptimizerRef = RRef<std::shared_ptr<LocalOptimizer>>;

// Runs on the owner; `parameters` live there.
std::shared_ptr<LocalOptimizer> make_local_optimizer(
    const std::vector<RRef<std::vector<at::Tensor>>>& parameters, const OptimizerSpec& spec);

}  // namespace farspan::optim
