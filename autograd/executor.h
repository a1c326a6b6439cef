// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Executor: one worker's share of one backward pass, over LibTorch's own graph Nodes.
// Source: LibTorch's engine, whose results it reproduces to the bit; where it differs:
//         autograd/README.md.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <ATen/ThreadLocalState.h>
#include <torch/csrc/autograd/function.h>

#include <farspan/autograd/boundary.h>
#include <farspan/autograd/leaf_gradients.h>
#include <farspan/autograd/roots.h>
#include <farspan/c10d/base/device_order.h>
#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/mutex.h>

namespace farspan::dist_autograd {

struct ExecutorOptions {
  bool retain_graph = false;  // keep what the nodes have saved, for another pass
  bool create_graph = false;  // record the pass itself, so that gradients can be differentiated
};

// First the graph is walked, from the roots and from the nodes whose gradients other workers send.
// After start() a node runs as soon as all gradients that the walks have counted are there, the
// latest in the forward pass first. Gradients of leaves go to `leaves`, those of boundaries to the
// sink, never to .grad.
//
//   Executor pass({}, leaves, sink);
//   pass.walk(make_roots({loss}));     // and walk({send_node}) for each peer that asks
//   pass.start();
//   pass.run();                        // again after each feed(), until it says kFinished
//
// Of accelerators: whatever ends the pass, the current streams of the thread that does so wait for
// all that leaves have got.
//
// Threading: every method may be called from any thread. One thread at a time runs nodes; no lock
//            is held meanwhile. Nodes run with the thread-local state of the constructing thread.
// Lifetime:  keeps the graph until the pass has ended. Destroy it only when no run() is under way.
class Executor {
 public:
  // Gets each boundary once, with one gradient (or undefined) for each of its inputs. Runs in the
  // thread that is in run(). What it throws fails the pass.
  using Sink = std::function<void(Boundary& boundary, torch::autograd::variable_list gradients)>;

  enum class Progress {
    kWaiting,    // nothing more can run before another feed()
    kElsewhere,  // another thread is in run(); it takes over what was fed
    kFinished,   // all that was walked has run, final callbacks too; said exactly once
    kEnded,      // it had finished, failed or been cancelled before
  };

  Executor(ExecutorOptions options, std::shared_ptr<LeafGradients> leaves, Sink sink);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Counts what is reachable from these nodes and was not reached before. Each entry waits for one
  // feed() for each time it is named. Before start() only.
  //   returns  the boundaries reached for the first time; they live as long as the pass
  //   throws   Error: kInvalidArgument; the pass has then failed
  std::vector<Boundary*> walk(std::span<const std::shared_ptr<torch::autograd::Node>> entries);

  // Walks from the roots and feeds them their gradients.
  std::vector<Boundary*> walk(const std::vector<Root>& roots);

  // Lets gradients flow; none does before. A second call changes nothing.
  void start();

  // The gradients of an entry from outside: one for each of its inputs, or undefined. May come
  // before start(). Ignored when the pass has ended.
  //   written  the work of devices that still writes them; null: that in the order of DeviceOrder
  //   throws  Error: kInvalidArgument for a node that was not walked, or was fed before, or another
  //           number of gradients; a gradient of a wrong shape fails the pass in run()
  void feed(const std::shared_ptr<torch::autograd::Node>& entry,
            torch::autograd::variable_list gradients,
            std::shared_ptr<DeviceWork> written = nullptr);

  // Runs nodes in this thread until none is ready.
  //   throws  Error, once: what a node, a hook or the sink threw, naming the node; or what
  //           cancel() was given while this thread ran nodes
  Progress run();

  // Ends the pass: no further node is run, gradients under way are dropped. Those that leaves have
  // got already stay. Ignored when the pass has ended.
  void cancel(Error why);

  bool ended() const noexcept { return ended_.load(std::memory_order_acquire); }

 private:
  struct Feed {
    uint32_t task;
    std::optional<uint32_t> input;  // a root's gradient is for one input only
    uint32_t turn;                  // what was fed first runs first
    torch::autograd::variable_list gradients;
    std::shared_ptr<DeviceWork> written;
  };
  struct Work;

  void admit(Feed feed) FARSPAN_REQUIRES(mutex_);
  bool running_is_ours(Progress& otherwise) FARSPAN_EXCLUDES(mutex_);
  bool keeps_graph() const { return options_.retain_graph || options_.create_graph; }
  void run_frame();
  void drain();
  void take_feeds() FARSPAN_EXCLUDES(mutex_);
  void deliver(Feed feed);
  void run_task(uint32_t index);
  torch::autograd::variable_list call(uint32_t index);
  std::unique_ptr<Work> end() FARSPAN_REQUIRES(mutex_);

  // Constant after construction.
  const ExecutorOptions options_;
  const std::shared_ptr<LeafGradients> leaves_;  // the context owns it too
  const Sink sink_;
  const at::ThreadLocalState thread_locals_;

  std::atomic<bool> ended_{false};
  std::atomic<bool> cancelled_{false};
  std::atomic<bool> fed_{false};  // feeds_ is not empty

  Mutex mutex_;
  bool started_ FARSPAN_GUARDED_BY(mutex_) = false;
  bool running_ FARSPAN_GUARDED_BY(mutex_) = false;
  uint32_t turns_ FARSPAN_GUARDED_BY(mutex_) = 0;
  std::vector<Feed> feeds_ FARSPAN_GUARDED_BY(mutex_);
  std::optional<Error> cancellation_ FARSPAN_GUARDED_BY(mutex_);

  // Until start() it belongs to who holds mutex_, then to the thread that has set running_ (but
  // Task::feeds to who holds mutex_, always). Null when the pass has ended.
  std::unique_ptr<Work> work_;
};

}  // namespace farspan::dist_autograd
