// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Roots: the tensors that a backward pass starts from, checked, with their gradients.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>

namespace farspan::dist_autograd {

struct Root {
  torch::autograd::Edge edge;  // where the root's gradient goes
  at::Tensor gradient;         // [same shape as the root]
};

// Checks roots and gradients as LibTorch's backward() does.
//   roots      at least one; each requires a gradient
//   gradients  empty, or one for each root, of its shape; an undefined one (and each one of an
//   empty
//              list) stands for 1 and needs a real root with one element
//   throws     Error: kInvalidArgument | kShapeMismatch; the message names the root by its index
std::vector<Root> make_roots(const std::vector<at::Tensor>& roots,
                             const std::vector<at::Tensor>& gradients = {});

}  // namespace farspan::dist_autograd
