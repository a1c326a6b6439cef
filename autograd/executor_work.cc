#include <farspan/autograd/executor_work.h>

#include <algorithm>
#include <tuple>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

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

void Executor::Work::join_streams() {
  for (const c10::Stream& stream : streams) {
    const c10::impl::VirtualGuardImpl device(stream.device_type());
    const c10::Stream present = device.getStream(stream.device());
    if (present == stream) continue;
    c10::Event done(stream.device_type());
    done.record(stream);
    done.block(present);
  }
  streams.clear();
}

std::optional<c10::Stream> current_stream(const Task& task) {
  if (!task.on_device) return std::nullopt;
  const c10::Device device = task.node->device();
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace farspan::dist_autograd
