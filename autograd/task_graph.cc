#include <farspan/autograd/task_graph.h>

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <farspan/c10d/base/error.h>

namespace farspan::dist_autograd {

using torch::autograd::InputBuffer;
using torch::autograd::Node;
using torch::autograd::variable_list;

void Task::add(uint32_t input, at::Tensor gradient, const std::optional<c10::Stream>& producer) {
  if (on_device) {
    if (!device_inputs) device_inputs = std::make_unique<InputBuffer>(node->num_inputs());
    device_inputs->add(input, std::move(gradient), producer, node->stream(), node);
    return;
  }
  if (inputs.empty()) inputs.resize(node->num_inputs());
  at::Tensor& sum = inputs[input];
  if (!gradient.defined()) return;
  if (!sum.defined()) {
    sum = std::move(gradient);
    return;
  }
  InputBuffer adder(
      1);  // the engine's addition: dense and sparse, in place where nobody can see it
  adder.add(0, std::move(sum), std::nullopt, std::nullopt, node);
  adder.add(0, std::move(gradient), std::nullopt, std::nullopt, node);
  sum = std::move(adder.buffer[0]);
}

variable_list Task::take_inputs() {
  if (device_inputs) {
    const std::optional<c10::Stream> stream = node->stream();
    for (size_t i = 0; stream && i < device_inputs->buffer.size(); ++i) {
      const auto& ready = device_inputs->ready_events[i];
      if (ready && device_inputs->ready_streams[i] != stream) ready->block(*stream);
    }
    variable_list result = std::move(device_inputs->buffer);
    device_inputs.reset();
    return result;
  }
  variable_list result = std::move(inputs);
  inputs.clear();
  result.resize(node->num_inputs());  // nothing came at all
  return result;
}

uint32_t TaskGraph::find(Node* node) const {
  const auto found = index_.find(node);
  return found == index_.end() ? kNone : found->second;
}

std::vector<Boundary*> TaskGraph::walk(std::span<const std::shared_ptr<Node>> entries) {
  std::vector<Boundary*> boundaries;
  for (const std::shared_ptr<Node>& entry : entries) {
    entries_.push_back(entry);
    Task& task = tasks_[visit(entry.get())];
    ++task.missing;
    ++task.feeds;
  }
  while (!unexpanded_.empty()) {
    const uint32_t index = unexpanded_.back();
    unexpanded_.pop_back();
    expand(index, boundaries);
  }
  return boundaries;
}

uint32_t TaskGraph::visit(Node* node) {
  const auto [found, is_new] = index_.emplace(node, size());
  if (is_new) {
    Task& task = tasks_.emplace_back();
    task.node = node;
    task.on_device = node->device().type() != at::kCPU;
    unexpanded_.push_back(found->second);
  }
  return found->second;
}

void TaskGraph::expand(uint32_t index, std::vector<Boundary*>& boundaries) {
  Node* node = tasks_[index].node;
  tasks_[index].first_next = static_cast<uint32_t>(next_.size());
  if (node->next_edges().empty()) {  // the others can be neither, and a cast takes its time
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) {
      tasks_[index].kind = TaskKind::kLeaf;
      if (leaf->tensor_post_acc_grad_hooks()) {
        throw Error(Code::kInvalidArgument,
                    "a leaf has a post-accumulate-grad hook, which reads .grad; a distributed pass "
                    "leaves .grad alone")
            .operation("backward through " + node->name())
            .advice("use a tensor hook, or a post hook of the leaf's grad accumulator");
      }
      return;
    }
    if (auto* boundary = dynamic_cast<Boundary*>(node)) {
      tasks_[index].kind = TaskKind::kBoundary;
      boundaries.push_back(boundary);
      return;
    }
  }
  tasks_[index].topological = node->topological_nr();
  for (const torch::autograd::Edge& edge : node->next_edges()) {
    uint32_t next = kNone;
    if (edge.is_valid()) {
      next = visit(edge.function.get());
      ++tasks_[next].missing;
    }
    next_.push_back(next);
  }
}

}  // namespace farspan::dist_autograd
