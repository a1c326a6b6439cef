// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What the executor works on: the graph of its pass, and which of its nodes are ready.
#pragma once

#include <vector>

#include <c10/core/Stream.h>

#include <farspan/autograd/engine_frame.h>
#include <farspan/autograd/executor.h>
#include <farspan/autograd/task_graph.h>

namespace farspan::dist_autograd {

// Threading: see Executor::work_.
struct Executor::Work {
  struct Ready {
    uint32_t turn;
    uint32_t task;
    uint64_t sequence;
    uint64_t topological;
    bool operator<(const Ready& other) const;  // runs later
  };

  TaskGraph graph;
  std::vector<Ready> ready;  // a heap, the next to run on top
  uint32_t left = 0;         // tasks that have not run
  uint32_t turn = 0;         // of the feed that the present task descends from
  FinalCallbacks callbacks;
  std::vector<c10::Stream> streams;  // on which gradients have left the graph

  std::vector<Boundary*> walk(std::span<const std::shared_ptr<torch::autograd::Node>> entries);

  // A gradient has come for the task; when it was the last one, the task is ready.
  void arrived(uint32_t index);

  // The next task to run; TaskGraph::kNone when none is ready.
  uint32_t pop_ready();

  void add_stream(const c10::Stream& stream);

  // Makes this thread's current streams wait for those on which gradients have left the graph.
  void join_streams() noexcept;
};

// The stream on which a gradient from outside is available: the thread's current one.
std::optional<c10::Stream> current_stream(const Task& task);

// A node has one stream, that of its first device: by that, who adds to a sum says when it is
// there, and who takes one waits. Gradients that come from elsewhere, or leave, are there by the
// current stream of each one's own device.
void join_other_devices(const c10::Stream& stream, const torch::autograd::variable_list& gradients);
void leave_to_other_devices(const c10::Stream& stream,
                            const torch::autograd::variable_list& gradients);

}  // namespace farspan::dist_autograd
