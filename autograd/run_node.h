// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The steps around one node's run: hooks, checks, the sum of a leaf, errors that name the node.
#pragma once

#include <cstdint>
#include <exception>
#include <optional>

#include <torch/csrc/autograd/function.h>

#include <farspan/autograd/leaf_gradients.h>

namespace farspan::dist_autograd {

// Tensor hooks, then retain_grad, then the node's own pre-hooks; each sees what the last returned.
torch::autograd::variable_list run_pre_hooks(torch::autograd::Node& node,
                                             torch::autograd::variable_list inputs);

// `inputs`: what the node was run with.
torch::autograd::variable_list run_post_hooks(torch::autograd::Node& node,
                                              torch::autograd::variable_list outputs,
                                              const torch::autograd::variable_list& inputs);

// Does in `leaves` what an AccumulateGrad does in .grad; an undefined gradient changes nothing.
//   own_references  handles to the gradient that the caller has, `inputs` included
void accumulate(torch::autograd::Node& node, torch::autograd::variable_list inputs,
                size_t own_references, LeafGradients& leaves);

// Compares gradients with what the nodes at the other ends of the edges expect; converts dtype and
// broadcast shapes as the engine does.
//   throws  c10::Error naming the node
void check_outputs(torch::autograd::Node& node, torch::autograd::variable_list& outputs);

// Gradients from another worker, which may have got the tensors on another device, go to where the
// node's inputs are.
void move_to_inputs(const torch::autograd::Node& node, torch::autograd::variable_list& gradients);

// As check_outputs() for gradients from outside, for all inputs of the node or for one.
//   throws  Error: kInvalidArgument
void check_gradients(torch::autograd::Node& node, std::optional<uint32_t> input,
                     torch::autograd::variable_list& gradients);

// Anomaly mode's check.  throws  std::runtime_error naming the node
void check_for_nan(const torch::autograd::Node& node,
                   const torch::autograd::variable_list& outputs);

// Throws `failure` as an Error (kRemote, or its own code) that names the node; in anomaly mode also
// prints where the node was made.
[[noreturn]] void throw_node_error(torch::autograd::Node& node, const std::exception_ptr& failure);

}  // namespace farspan::dist_autograd
