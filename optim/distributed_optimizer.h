// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// DistributedOptimizer: one optimizer step on all workers that own parameters.
// Source: torch.distributed.optim.DistributedOptimizer.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <farspan/autograd/context.h>
#include <farspan/optim/local_optimizer.h>
#include <farspan/rref/remote.h>

namespace farspan {

// The parameters of a module that lives elsewhere, as a reference to its owner's own tensors. The
// module's class must have registered its inherited method:
//   FARSPAN_REGISTER_METHODS(Net, forward, parameters);
template <class T>
RRef<std::vector<at::Tensor>> parameter_rrefs(const RRef<T>& module) {
  return module.remote(&pointee_t<T>::parameters, true);
}

namespace optim {

// The part of DistributedOptimizer that does not depend on the kind of optimizer.
class OwnerOptimizers {
 public:
  OwnerOptimizers(Worker& worker, const std::vector<RRef<std::vector<at::Tensor>>>& parameters,
                  const OptimizerSpec& spec);
  void step(dist_autograd::ContextId context, const CallOptions& options);

 private:
  std::vector<LocalOptimizerRef> locals_;  // one for each owner
};

}  // namespace optim

// Keeps one local optimizer of type Opt on each owner: torch::optim's SGD, Adam, AdamW, Adagrad or
// RMSprop. Several trainers may have optimizers over the same parameters, and step at any time: see
// LocalOptimizer for what their gradients are of then.
//
// Threading: step() from any thread.
template <class Opt>
class DistributedOptimizer {
 public:
  static_assert(optim::Distributable<Opt>,
                "this optimizer cannot be distributed: use SGD, Adam, AdamW, Adagrad or RMSprop "
                "(LBFGS evaluates the model many times within one step)");
  using Options = typename optim::OptionsOf<Opt>::type;

  // `parameters`: references to lists of tensors; a list lies on one worker.
  //   throws  Error: what making a local optimizer threw
  DistributedOptimizer(std::vector<RRef<std::vector<at::Tensor>>> parameters,
                       const Options& options)
      : DistributedOptimizer(current_worker(), std::move(parameters), options) {}
  DistributedOptimizer(RRef<std::vector<at::Tensor>> parameters, const Options& options)
      : DistributedOptimizer(std::vector{std::move(parameters)}, options) {}
  DistributedOptimizer(Worker& worker, std::vector<RRef<std::vector<at::Tensor>>> parameters,
                       const Options& options)
      : owners_(worker, parameters, optim::spec_of(options)) {}

  // Applies the gradients of a context, on all owners at once, and waits for them.
  //   throws  Error: all that failed; its message lists each owner
  void step(const dist_autograd::Context& context, const CallOptions& options = {}) {
    owners_.step(context.id(), options);
  }

 private:
  optim::OwnerOptimizers owners_;
};

}  // namespace farspan
