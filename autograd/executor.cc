#include <farspan/autograd/executor.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>

#include <farspan/autograd/executor_work.h>
#include <farspan/autograd/run_node.h>

namespace farspan::dist_autograd {

using torch::autograd::Node;
using torch::autograd::variable_list;

Executor::Executor(ExecutorOptions options, std::shared_ptr<LeafGradients> leaves, Sink sink)
    : options_(options),
      leaves_(std::move(leaves)),
      sink_(std::move(sink)),
      work_(std::make_unique<Work>()) {}

Executor::~Executor() = default;

std::vector<Boundary*> Executor::walk(std::span<const std::shared_ptr<Node>> entries) {
  std::unique_ptr<Work> dropped;  // freed after the lock: nodes run users' destructors
  const MutexLock lock(mutex_);
  if (ended_) return {};
  if (started_) throw Error(Code::kInternal, "walked after the start").operation("backward");
  try {
    for (const auto& entry : entries) {
      if (!entry) throw Error(Code::kInvalidArgument, "an entry is null").operation("backward");
    }
    return work_->walk(entries);
  } catch (...) {
    dropped = end();
    throw;
  }
}

std::vector<Boundary*> Executor::walk(const std::vector<Root>& roots) {
  std::vector<std::shared_ptr<Node>> entries;
  for (const Root& root : roots) entries.push_back(root.edge.function);
  std::vector<Boundary*> boundaries = walk(entries);
  const MutexLock lock(mutex_);
  if (ended_) return {};
  for (const Root& root : roots) {
    const uint32_t task = work_->graph.find(root.edge.function.get());
    admit({task, root.edge.input_nr, /*turn=*/0, {root.gradient}, nullptr});
  }
  return boundaries;
}

void Executor::start() {
  const MutexLock lock(mutex_);
  started_ = true;
}

void Executor::feed(const std::shared_ptr<Node>& entry, variable_list gradients,
                    std::shared_ptr<DeviceWork> written) {
  const MutexLock lock(mutex_);
  if (ended_) return;
  const uint32_t task = work_->graph.find(entry.get());
  if (task == TaskGraph::kNone || work_->graph[task].feeds == 0) {
    throw Error(Code::kInvalidArgument, "a gradient came for a node that waits for none")
        .operation("backward through " + (entry ? entry->name() : std::string("nothing")));
  }
  if (gradients.size() != entry->num_inputs()) {
    throw Error(Code::kInvalidArgument, std::to_string(gradients.size()) + " gradients came for " +
                                            std::to_string(entry->num_inputs()) + " tensors")
        .operation("backward through " + entry->name());
  }
  admit({task, std::nullopt, ++turns_, std::move(gradients), std::move(written)});
}

void Executor::admit(Feed feed) {
  --work_->graph[feed.task].feeds;
  feeds_.push_back(std::move(feed));
  fed_.store(true, std::memory_order_release);
}

void Executor::cancel(Error why) {
  std::unique_ptr<Work> dropped;
  std::vector<Feed> feeds;
  const MutexLock lock(mutex_);
  if (ended_) return;
  if (running_) {  // that thread ends the pass between two nodes
    if (!cancellation_) cancellation_ = std::move(why);
    cancelled_.store(true, std::memory_order_release);
    return;
  }
  feeds.swap(feeds_);
  dropped = end();
}

std::unique_ptr<Executor::Work> Executor::end() {
  running_ = false;
  work_->join_streams();
  publish_device_work();  // whoever reads the gradients next may do so on any stream
  ended_.store(true, std::memory_order_release);
  return std::move(work_);
}

bool Executor::running_is_ours(Progress& otherwise) {
  const MutexLock lock(mutex_);
  if (ended_) return otherwise = Progress::kEnded, false;
  if (running_) return otherwise = Progress::kElsewhere, false;
  otherwise = Progress::kWaiting;
  if (!started_ || (feeds_.empty() && work_->left != 0)) return false;
  return running_ = true;
}

Executor::Progress Executor::run() {
  Progress progress;
  if (!running_is_ours(progress)) return progress;
  for (;;) {
    std::optional<Error> failure;
    try {
      run_frame();
    } catch (const Error& error) {
      failure = error;
    } catch (...) {
      failure = to_error(std::current_exception(), Code::kRemote)
                    .operation("final callback of the backward pass");
    }
    std::unique_ptr<Work> dropped;
    std::vector<Feed> feeds;
    const MutexLock lock(mutex_);
    if (!failure && !cancellation_) {
      if (work_->left != 0 && !feeds_.empty()) continue;
      if (work_->left != 0) return running_ = false, Progress::kWaiting;
      dropped = end();
      return Progress::kFinished;
    }
    feeds.swap(feeds_);
    dropped = end();
    throw failure ? *failure : *cancellation_;
  }
}

// Runs what is ready, as the engine would: with the thread-local state of the pass and in a frame.
void Executor::run_frame() {
  const at::ThreadLocalStateGuard guard(thread_locals_);
  std::exception_ptr failure;  // kept from the engine, which would run callbacks or log
  run_in_engine(keeps_graph(), [&] {
    try {
      const at::AutoGradMode recording(options_.create_graph);
      const dist::UseGradientStore into(leaves_);  // for hooks that look at gradients
      drain();
      if (work_->left == 0) work_->join_streams();  // what callbacks see is done
    } catch (...) {
      failure = std::current_exception();
    }
    FinalCallbacks queued = take_final_callbacks();
    work_->callbacks.insert(work_->callbacks.end(), std::make_move_iterator(queued.begin()),
                            std::make_move_iterator(queued.end()));
    // The callbacks are the pass's: they wait for its end, be it in another frame.
    if (!failure && work_->left == 0) return_final_callbacks(std::move(work_->callbacks));
  });
  if (failure) std::rethrow_exception(failure);
}

void Executor::drain() {
  while (!cancelled_.load(std::memory_order_acquire)) {
    if (fed_.load(std::memory_order_acquire)) take_feeds();
    const uint32_t index = work_->pop_ready();
    if (index == TaskGraph::kNone) return;
    run_task(index);
  }
}

void Executor::take_feeds() {
  std::vector<Feed> feeds;
  {
    const MutexLock lock(mutex_);
    feeds.swap(feeds_);
    fed_.store(false, std::memory_order_relaxed);
  }
  for (Feed& feed : feeds) deliver(std::move(feed));
}

void Executor::deliver(Feed feed) {
  Task& task = work_->graph[feed.task];
  feed.written ? feed.written->wait_on_current_streams() : take_from_devices(feed.gradients);
  if (!feed.input) move_to_inputs(*task.node, feed.gradients);
  check_gradients(*task.node, feed.input, feed.gradients);
  const std::optional<c10::Stream> stream = current_stream(task);
  if (stream) join_other_devices(*stream, feed.gradients);
  for (uint32_t i = 0; i < feed.gradients.size(); ++i) {
    task.add(feed.input.value_or(i), std::move(feed.gradients[i]), stream);
  }
  work_->turn = feed.turn;
  work_->arrived(feed.task);
}

void Executor::run_task(uint32_t index) {
  Task& task = work_->graph[index];
  const std::optional<c10::Stream> stream =
      task.on_device ? task.node->stream() : std::optional<c10::Stream>();
  const c10::OptionalStreamGuard guard(stream);
  variable_list outputs;
  try {
    outputs = call(index);
    if (!keeps_graph()) task.node->release_variables();
    if (torch::autograd::AnomalyMode::is_enabled()) check_for_nan(*task.node, outputs);
  } catch (...) {
    throw_node_error(*task.node, std::current_exception());
  }
  --work_->left;
  if (stream && task.node->next_edges().empty()) work_->add_stream(*stream);
  for (size_t i = 0; i < std::min(outputs.size(), task.node->next_edges().size()); ++i) {
    const uint32_t next = work_->graph.next(task, i);
    if (next == TaskGraph::kNone) continue;
    work_->graph[next].add(task.node->next_edge(i).input_nr, std::move(outputs[i]), stream);
    work_->arrived(next);
  }
}

variable_list Executor::call(uint32_t index) {
  Task& task = work_->graph[index];
  Node& node = *task.node;
  variable_list inputs = run_pre_hooks(node, task.take_inputs());
  const bool has_post_hooks = !node.post_hooks().empty();
  variable_list seen;
  if (has_post_hooks) seen = inputs;
  variable_list outputs;
  switch (task.kind) {
    case TaskKind::kLeaf:
      accumulate(node, std::move(inputs), has_post_hooks ? 2 : 1, *leaves_);
      break;
    case TaskKind::kBoundary:
      if (const auto stream = node.stream()) leave_to_other_devices(*stream, inputs);
      sink_(static_cast<Boundary&>(node), std::move(inputs));
      break;
    case TaskKind::kNode:
      if (!keeps_graph()) node.will_release_variables();
      outputs = node(std::move(inputs));
      check_outputs(node, outputs);
  }
  if (has_post_hooks) outputs = run_post_hooks(node, std::move(outputs), seen);
  return outputs;
}

}  // namespace farspan::dist_autograd
