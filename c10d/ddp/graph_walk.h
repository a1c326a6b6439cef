// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Which parameters a backward pass from some tensors will reach, and which pass this is.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include <torch/csrc/autograd/function.h>

namespace farspan::dist {

// The nodes that take the parameters' gradients.
//
// Threading: one thread at a time.
class Accumulators {
 public:
  explicit Accumulators(const std::vector<at::Tensor>& parameters);

  const std::vector<std::shared_ptr<torch::autograd::Node>>& nodes() const noexcept {
    return nodes_;
  }
  // The node that takes `parameter`, the i-th, from now on.
  //   returns  the one before; null: it is the same, or the parameter takes no gradients now
  std::shared_ptr<torch::autograd::Node> follow(size_t i, const at::Tensor& parameter);

  // Marks the parameters that the graph of `outputs` leads to.
  //   returns  false: the graph goes on where it cannot be seen, in another worker, so that others
  //            may be reached, too
  bool mark_reached(const std::vector<at::Tensor>& outputs, std::vector<bool>& reached) const;

 private:
  std::vector<std::shared_ptr<torch::autograd::Node>> nodes_;  // kept, so that their hooks are
  std::unordered_map<const torch::autograd::Node*, size_t> index_;
};

// Of the backward pass that this thread runs, the innermost: whether it runs `node` once it comes
// there. torch::autograd::grad() takes gradients on their way and gives none to accumulators;
// backward() with inputs gives them to those inputs' only.
bool runs_in_this_pass(const torch::autograd::Node& node);

// The pass whose end this is runs inside a node of another one (checkpoint). For what runs at a
// pass's end, in a pass that lies less than 60 deep.
bool ends_inside_another_pass();

}  // namespace farspan::dist
