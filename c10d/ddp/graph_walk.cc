#include <farspan/c10d/ddp/graph_walk.h>

#include <unordered_set>
#include <utility>

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

namespace farspan::dist {

using torch::autograd::Node;

Accumulators::Accumulators(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    nodes_.push_back(torch::autograd::impl::grad_accumulator(parameter));
    index_.emplace(nodes_.back().get(), index_.size());
  }
}

std::shared_ptr<Node> Accumulators::follow(size_t i, const at::Tensor& parameter) {
  std::shared_ptr<Node> now = torch::autograd::impl::grad_accumulator(parameter);
  if (!now || now == nodes_[i]) return nullptr;
  index_.erase(nodes_[i].get());
  index_.emplace(now.get(), i);
  return std::exchange(nodes_[i], std::move(now));
}

bool Accumulators::mark_reached(const std::vector<at::Tensor>& outputs,
                                std::vector<bool>& reached) const {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> stack;
  const auto visit = [&](const Node* node) {
    if (node && seen.insert(node).second) stack.push_back(node);
  };
  for (const at::Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    visit(torch::autograd::impl::gradient_edge(output).function.get());
  }
  bool whole = true;
  while (!stack.empty()) {
    const Node* const node = stack.back();
    stack.pop_back();
    const auto found = index_.find(node);
    if (found != index_.end()) reached[found->second] = true;
    // A node that leads nowhere and is no leaf is where a distributed graph goes on elsewhere.
    if (node->num_outputs() == 0 &&
        dynamic_cast<const torch::autograd::AccumulateGrad*>(node) == nullptr) {
      whole = false;
    }
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
  return whole;
}

bool runs_in_this_pass(const Node& node) {
  const auto* const chosen = torch::autograd::get_current_graph_task_exec_info();
  if (!chosen || chosen->empty()) return true;  // whatever the graph leads to
  const auto found = chosen->find(const_cast<Node*>(&node));
  return found != chosen->end() && found->second.needed_;  // not only captured
}

bool ends_inside_another_pass() { return torch::autograd::get_current_node() != nullptr; }

}  // namespace farspan::dist
