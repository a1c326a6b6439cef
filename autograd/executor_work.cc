#include <farspan/autograd/executor_work.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/streams/streams.h>

namespace farspan::dist_autograd {
// What was fed first runs first, so that sums do not depend on timing. Then as the engine: the
// latest in the forward pass, leaves (their number is the largest) before all.
bool Executor::Work::Ready::operator<(const Ready& other) const {
  if (turn != other.turn) return turn > other.turn;
  return std::tie(sequence, topological, other.task) <
         std::tie(other.sequence, other.topological, task);
}

std::vector<Boundary*> Executor::Work::walk(
    std::span<const std::shared_ptr<torch::autograd::Node>> entries) {
  const uint32_t before = graph.size();
  std::vector<Boundary*> boundaries = graph.walk(entries);
  left += graph.size() - before;
  return boundaries;
}

void Executor::Work::arrived(uint32_t index) {
  Task& task = graph[index];
  if (--task.missing != 0) return;
  ready.push_back({turn, index, task.node->sequence_nr(), task.topological});
  std::push_heap(ready.begin(), ready.end());
}

uint32_t Executor::Work::pop_ready() {
  if (ready.empty()) return TaskGraph::kNone;
  std::pop_heap(ready.begin(), ready.end());
  const Ready next = ready.back();
  ready.pop_back();
  turn = next.turn;
  return next.task;
}

void Executor::Work::add_stream(const c10::Stream& stream) {
  if (std::find(streams.begin(), streams.end(), stream) == streams.end()) {
    streams.push_back(stream);
  }
}

void Executor::Work::join_streams() noexcept {
  for (const c10::Stream& stream : std::exchange(streams, {})) {
    try {
      follow(current_stream_of(stream.device()), stream);
    } catch (const std::exception& failure) {  // it tells whoever uses it next, too
      log(LogLevel::kWarning, "autograd", std::string("a device has failed: ") + failure.what());
    }
  }
}

std::optional<c10::Stream> current_stream(const Task& task) {
  if (!task.on_device) return std::nullopt;
  return current_stream_of(task.node->device());
}

void join_other_devices(const c10::Stream& stream,
                        const torch::autograd::variable_list& gradients) {
  for (const at::Tensor& one : gradients) {
    if (!one.defined() || one.is_cpu()) continue;
    follow(stream, current_stream_of(one.device()));
  }
}

void leave_to_other_devices(const c10::Stream& stream,
                            const torch::autograd::variable_list& gradients) {
  for (const at::Tensor& one : gradients) {
    if (!one.defined() || one.is_cpu() || one.device() == stream.device()) continue;
    const c10::Stream own = current_stream_of(one.device());
    follow(own, stream);
    record_use(one, own);
  }
}

}  // namespace farspan::dist_autograd
