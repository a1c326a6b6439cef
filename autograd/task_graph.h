// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// TaskGraph: what one backward pass has discovered of a worker's graph, with what is still missing
// before each node can run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/input_buffer.h>

#include <farspan/autograd/boundary.h>

namespace farspan::dist_autograd {

enum class TaskKind : uint8_t { kNode, kLeaf, kBoundary };

// One node of the pass.
struct Task {
  torch::autograd::Node* node = nullptr;
  TaskKind kind = TaskKind::kNode;
  bool on_device = false;    // an input is on an accelerator: sums keep its streams apart
  uint32_t missing = 0;      // edges and feeds that have not brought their gradient yet
  uint32_t feeds = 0;        // of these, the ones from outside
  uint32_t first_next = 0;   // in TaskGraph's table of edges
  uint64_t topological = 0;  // breaks ties between sequence numbers of different threads
  torch::autograd::variable_list inputs;                        // empty until the first gradient
  std::unique_ptr<torch::autograd::InputBuffer> device_inputs;  // instead of inputs, when on_device

  // Adds a gradient to an input as the engine does: nothing that others hold is changed in place.
  void add(uint32_t input, at::Tensor gradient, const std::optional<c10::Stream>& producer);

  // The sums, one for each input of the node, undefined where nothing came; forgets them. On an
  // accelerator the node's stream waits for those that made them.
  torch::autograd::variable_list take_inputs();
};

// Threading: none of its own.
// Lifetime:  keeps the entries, and with them all that is reachable from them.
class TaskGraph {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // Counts what is reachable from `entries` and was not yet; each entry waits for one feed for each
  // time that it is named, here or in an earlier walk.
  //   returns  the boundaries reached for the first time
  //   throws   Error: kInvalidArgument for a node that cannot work in a distributed pass; the graph
  //            is then half counted and of no more use
  std::vector<Boundary*> walk(std::span<const std::shared_ptr<torch::autograd::Node>> entries);

  // The index of a node, kNone when it has not been reached.
  uint32_t find(torch::autograd::Node* node) const;

  Task& operator[](uint32_t index) { return tasks_[index]; }
  uint32_t size() const noexcept { return static_cast<uint32_t>(tasks_.size()); }

  // The task that edge `output` of `task` leads to, kNone where it leads nowhere.
  uint32_t next(const Task& task, size_t output) const { return next_[task.first_next + output]; }

 private:
  uint32_t visit(torch::autograd::Node* node);
  void expand(uint32_t index, std::vector<Boundary*>& boundaries);

  std::vector<Task> tasks_;
  std::vector<uint32_t> next_;
  std::vector<uint32_t> unexpanded_;
  ska::flat_hash_map<torch::autograd::Node*, uint32_t> index_;
  std::vector<std::shared_ptr<torch::autograd::Node>> entries_;
};

}  // namespace farspan::dist_autograd
