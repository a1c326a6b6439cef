// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Boundary: a Node where the gradient leaves this worker. The executor does not run it but hands
// its gradients to a sink.
#pragma once

#include <torch/csrc/autograd/function.h>

namespace farspan::dist_autograd {

// Made, without edges of its own, as the grad_fn of tensors that came from another worker.
// Tensor hooks, pre-hooks and post-hooks on it run before and after the sink gets the gradients.
//
// Threading: as any torch::autograd::Node.
class Boundary : public torch::autograd::Node {
 public:
  using torch::autograd::Node::Node;
  ~Boundary() override;

 protected:
  // Reached only when somebody calls Tensor::backward() on a graph that spans workers.
  //   throws  Error: kInvalidArgument, with the call to use instead
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
};

}  // namespace farspan::dist_autograd
