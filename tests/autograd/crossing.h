// Stand-ins for the nodes where a graph crosses workers.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <farspan/autograd/boundary.h>

namespace farspan::testing {

using torch::autograd::Node;
using torch::autograd::variable_list;

// What the sender of tensors keeps: an entry of the backward pass.
struct SendNode : Node {
  std::string name() const override { return "SendNode"; }
  variable_list apply(variable_list&& gradients) override { return std::move(gradients); }
};

// What the receiver of tensors keeps.
struct ReceiveNode : dist_autograd::Boundary {
  std::string name() const override { return "ReceiveNode"; }
  int peer = 0;
};

inline std::shared_ptr<SendNode> send(const std::vector<at::Tensor>& tensors) {
  auto node = std::make_shared<SendNode>();
  for (const at::Tensor& tensor : tensors) {
    node->add_input_metadata(tensor);
    node->add_next_edge(torch::autograd::impl::gradient_edge(tensor));
  }
  return node;
}

// The tensors as the other worker gets them, all from one receive node.
inline std::pair<std::shared_ptr<ReceiveNode>, std::vector<at::Tensor>> receive(
    const std::vector<at::Tensor>& tensors) {
  auto node = std::make_shared<ReceiveNode>();
  std::vector<at::Tensor> received;
  for (const at::Tensor& tensor : tensors) {
    received.push_back(tensor.detach().clone());
    torch::autograd::create_gradient_edge(received.back(), node);
  }
  return {node, received};
}

}  // namespace farspan::testing
