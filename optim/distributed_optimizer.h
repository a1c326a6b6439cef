// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// DistributedOptimizer: one optimizer step on all workers that own parameters.
// Source: torch.distributed.optim.DistributedOptimizer.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <farspan/autograd/context.h>
#include <farspan/optim/local_optimizer.h>
#include <farspan/rref/remote.h>

namespace farspan {

// References to lists of tensors; each list lies on one worker.
using ParameterRRefs = std::vector<RRef<std::vector<at::Tensor>>>;

// The parameters of a module that lives elsewhere, as a reference to its owner's own tensors. The
// module's class must have registered its inherited method:
//   FARSPAN_REGISTER_METHODS(Net, forward, parameters);
template <class T>
RRef<std::vector<at::Tensor>> parameter_rrefs(const RRef<T>& module) {
  return module.remote(&pointee_t<T>::parameters, true);
}

// What a step does about other trainers of the same parameters.
enum class StepMode {
  // Steps at once. The gradients of a trainer whose backward pass is under way meanwhile mix old
  // and new values; nothing throws.
  kHogwild,
  // Waits until no other context is using parameters of these owners; contexts that come later wait
  // for the step. All gradients are of one version of all parameters, and the result equals that of
  // a serial program. All trainers of these parameters must have chosen it. optim/README.md.
  kConsistent,
};

struct DistributedOptimizerOptions {
  StepMode mode = StepMode::kHogwild;
};

namespace optim {

// The part of DistributedOptimizer that does not depend on the kind of optimizer.
class OwnerOptimizers {
 public:
  struct Group {
    ParameterRRefs parameters;
    std::optional<OptimizerSpec> options;
  };
  OwnerOptimizers(Worker& worker, const std::vector<Group>& groups, const OptimizerSpec& defaults,
                  StepMode mode);
  uint64_t step(dist_autograd::ContextId context, const CallOptions& options);

 private:
  const std::shared_ptr<OptimRoom> room_;
  const std::shared_ptr<dist_autograd::AutogradRoom> autograd_;
  const StepMode mode_;
  std::vector<LocalOptimizerRef> locals_;  // one for each owner
  std::vector<int64_t> owners_;            // their ranks
  std::vector<std::string> names_;         // likewise
  std::shared_ptr<std::atomic<bool>> warned_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace optim

// Keeps one local optimizer of type Opt on each owner: torch::optim's SGD, Adam, AdamW, Adagrad or
// RMSprop. Several trainers may have optimizers over the same parameters, and step at any time: see
// StepMode for what their gradients are of then.
//
// Threading: step() from any thread, which waits as in rpc_sync: it may run callbacks of other
// futures, so hold no lock that they take.
template <class Opt>
class DistributedOptimizer {
 public:
  static_assert(optim::Distributable<Opt>,
                "this optimizer cannot be distributed: use SGD, Adam, AdamW, Adagrad or RMSprop "
                "(LBFGS evaluates the model many times within one step)");
  using Options = typename optim::OptionsOf<Opt>::type;

  // Parameters with options of their own, as torch::optim::OptimizerParamGroup: a learning rate for
  // some layers, say. They may lie on several workers.
  struct Group {
    ParameterRRefs parameters;
    std::optional<Options> options = std::nullopt;  // absent: the optimizer's
  };

  //   throws  Error: all that failed, by owner: kInvalidArgument (no parameters, one given twice, a
  //           tensor that requires no gradient, options that LibTorch refuses), kDisconnected, ...
  DistributedOptimizer(ParameterRRefs parameters, const Options& options,
                       const DistributedOptimizerOptions& how = {})
      : DistributedOptimizer(current_worker(), std::move(parameters), options, how) {}
  DistributedOptimizer(RRef<std::vector<at::Tensor>> parameters, const Options& options,
                       const DistributedOptimizerOptions& how = {})
      : DistributedOptimizer(ParameterRRefs{std::move(parameters)}, options, how) {}
  DistributedOptimizer(Worker& worker, ParameterRRefs parameters, const Options& options,
                       const DistributedOptimizerOptions& how = {})
      : DistributedOptimizer(worker, std::vector{Group{std::move(parameters)}}, options, how) {}
  DistributedOptimizer(const std::vector<Group>& groups, const Options& options,
                       const DistributedOptimizerOptions& how = {})
      : DistributedOptimizer(current_worker(), groups, options, how) {}
  DistributedOptimizer(Worker& worker, const std::vector<Group>& groups, const Options& options,
                       const DistributedOptimizerOptions& how = {})
      : owners_(worker, specs_of(groups), optim::spec_of(options), how.mode) {}

  // Applies the gradients of a context, on all owners at once, and waits for them. In consistent
  // mode it finishes the context: what is called later in it is not recorded. The first step that
  // finds no gradient at all is spoken of in the log.
  //   options  the timeout covers waiting for other contexts, and then again applying
  //   returns  in consistent mode the number of the step in the job, 1, 2, ... in the order in
  //            which owners apply them; else 0
  //   throws   Error: kTimeout (consistent: names the contexts that it waited for; nothing was
  //            applied), or all that failed, by owner: then others have applied it. An owner that
  //            did not answer in time may be applying it still: consistent contexts and steps wait
  uint64_t step(const dist_autograd::Context& context, const CallOptions& options = {}) {
    return owners_.step(context.id(), options);
  }

 private:
  static std::vector<optim::OwnerOptimizers::Group> specs_of(const std::vector<Group>& groups) {
    std::vector<optim::OwnerOptimizers::Group> all;
    for (const Group& group : groups) {
      all.push_back({group.parameters, std::nullopt});
      if (group.options) all.back().options = optim::spec_of(*group.options);
    }
    return all;
  }

  optim::OwnerOptimizers owners_;
};

}  // namespace farspan
