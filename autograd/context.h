// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Context: a forward pass over several workers, and its backward passes.
//
//   dist_autograd::Context ctx;
//   auto loss = torch::nll_loss(net.rpc_sync(&Net::forward, images), labels);
//   ctx.backward({loss});
//   optimizer.step(ctx);
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <farspan/autograd/pass_messages.h>
#include <farspan/c10d/base/time.h>
#include <farspan/rpc/worker.h>

namespace farspan::dist_autograd {

class AutogradRoom;
struct ContextState;

struct BackwardOptions {
  PassMode mode = PassMode::kExact;
  bool retain_graph = false;    // another pass over the same graph will follow
  Millis timeout = kNoTimeout;  // of the whole pass, on all workers
};

// While it lives, calls that its thread makes, and calls that those lead to, are recorded: tensors
// that require a gradient keep requiring it on the other worker, and backward() goes through them.
// Calls that were made before it, or in another thread, are not recorded: their results are leaves
// here, at which a backward pass ends without an error.
//
// Threading: made, used and destroyed by one thread; one at a time in each thread.
// Lifetime:  when it goes, every worker lets go of what it keeps for it.
class Context {
 public:
  //   throws  Error kInvalidArgument: the thread is in a context already, or has no worker
  Context() : Context(current_worker()) {}
  explicit Context(Worker& worker);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  ContextId id() const noexcept;

  // Runs a backward pass from these tensors, over all workers that they depend on. Gradients go to
  // the context of the worker where the leaf lives, and never to .grad; those of several passes
  // add up. As with LibTorch's engine nodes and hooks may run in the calling thread: it is back, or
  // sees that `timeout` has passed, between two of them. Callbacks of other futures may, too, as in
  // rpc_sync: hold no lock that they take.
  //   gradients  empty, or one for each root, of its shape; roots without need one element
  //   throws     Error: kInvalidArgument (a root that requires no gradient, a released graph, a
  //              node that is not supported, a context that has stepped), kShapeMismatch (a root's
  //              gradient), kRemote (what a node or hook threw, and where), kTimeout, kDisconnected
  //              (a worker that the pass needs died), kCancelled (the context was released at
  //              another worker meanwhile), kNotFound (another worker does not know the context, or
  //              what this one got from it), kCorrupt, kInternal (report these two)
  void backward(const std::vector<at::Tensor>& roots, const BackwardOptions& options = {});
  void backward(const std::vector<at::Tensor>& roots, const std::vector<at::Tensor>& gradients,
                const BackwardOptions& options = {});

  // The gradient of a leaf of this worker; undefined when it has none. Neither of these two waits
  // or throws.
  at::Tensor gradient(const at::Tensor& leaf) const;
  // All (leaf, gradient) of this worker.
  std::vector<std::pair<at::Tensor, at::Tensor>> get_gradients() const;

 private:
  const std::shared_ptr<AutogradRoom> room_;
  const std::shared_ptr<ContextState> state_;
};

}  // namespace farspan::dist_autograd
