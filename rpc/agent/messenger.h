// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Messenger: what the rooms above see of the wire. The agent implements it over real connections,
// the tests' World over a simulated network.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/future_core.h>
#include <farspan/c10d/base/time.h>
#include <farspan/c10d/net/forecast.h>
#include <farspan/c10d/net/spin.h>
#include <farspan/rpc/agent/route.h>
#include <farspan/rpc/wire/frame.h>
#include <farspan/rpc/wire/messages.h>

namespace farspan {

// One worker of the job.
struct WorkerInfo {
  std::string name;
  int rank = -1;
  friend bool operator==(const WorkerInfo&, const WorkerInfo&) = default;
};

namespace agent {

class Agent;
class PendingCalls;

// Gets the answer to one request. Exactly one of the two is called, once, in a thread of the
// messenger, or in one that waits, or cancels; it must not block.
class ReplyHandler {
 public:
  virtual ~ReplyHandler() = default;
  virtual void on_reply(wire::InFrame&& reply) noexcept = 0;
  // `why` says what happened; the handler adds the operation, the worker and the time.
  virtual void on_error(const Error& why) noexcept = 0;

 private:
  friend class Agent;
  friend class PendingCalls;
  static constexpr uint64_t kBetweenLines = UINT64_MAX;
  bool is_between_lines() const noexcept { return request_id_.load() == kBetweenLines; }
  std::atomic<uint64_t> request_id_{0};  // where it waits
  std::atomic<uint32_t> moves_{0};       // from lines that broke
  int lines_ = 0;                        // that it was made on; for who makes it
};

// Where an answer goes.
class ReplyRoute {
 public:
  virtual ~ReplyRoute() = default;
  virtual void send_reply(wire::OutFrame& frame) = 0;
  // False once the line has ended: no answer arrives any more.
  virtual bool leads_back() const noexcept = 0;
};

// A request that arrived, and the duty to answer it. Movable; when it is dropped without an answer,
// the caller gets kCancelled.
//
// Threading: one thread at a time; it may be answered from another than it came on.
class Request {
 public:
  Request(int from, wire::InFrame frame, Deadline deadline, std::shared_ptr<ReplyRoute> route)
      : from_(from), frame_(std::move(frame)), deadline_(deadline), route_(std::move(route)) {}
  Request(Request&&) = default;
  Request& operator=(Request&&) = delete;
  ~Request();

  int from() const noexcept { return from_; }
  wire::Kind kind() const noexcept { return frame_.header.kind; }
  const wire::InFrame& frame() const noexcept { return frame_; }
  wire::InFrame& frame() noexcept { return frame_; }
  Deadline deadline() const noexcept { return deadline_; }
  // Null once it was answered.
  const std::shared_ptr<ReplyRoute>& route() const noexcept { return route_; }
  bool one_way() const noexcept { return frame_.header.flags & wire::kOneWay; }

  // Both answer once; for a one-way request they do nothing.
  //   meta, segments  borrowed until it returns, unless they have an owner
  //   lent            what they refer to: kept until the caller has let go of it
  void reply(std::span<const std::byte> meta, std::vector<Buffer> segments = {},
             std::shared_ptr<wire::Lent> lent = nullptr);
  void fail(const Error& error);

 private:
  void answer(wire::OutFrame& frame);

  int from_;
  wire::InFrame frame_;
  Deadline deadline_;
  std::shared_ptr<ReplyRoute> route_;  // null once answered
};

// What a call that is being served knows of its caller; nested calls inherit it.
struct CallContext {
  Deadline deadline;
  uint64_t chain = 0;
  int from = -1;
  std::shared_ptr<const ReplyRoute> route = nullptr;

  // The line that the call came by has ended. on_worker_lost() tells of that afterwards; so who
  // keeps something until a caller is lost has to ask this first, under the lock under which he
  // lets go of it: a call may begin to run after its caller was lost.
  bool caller_gone() const noexcept { return route && !route->leads_back(); }
};
// The calling thread's; empty outside of a call.
CallContext& current_call() noexcept;

struct MessengerCounters : BytesMoved {
  uint64_t calls_sent = 0, calls_received = 0;  // those that are answered
  // Requests and one-way messages, but those by which workers agree to end; on the lines that there
  // are now. So the sums over all workers agree when nothing is under way, whatever was lost.
  uint64_t requests_sent = 0, requests_received = 0;
  uint64_t calls_failed = 0;  // calls of ours that ended with an error; the worker's count
  int64_t in_flight = 0;      // requests of ours that wait for their answer
  int connections = 0;
  int threads = 0;
  // Polling (WorkerOptions::max_polling) for messages, or who helps to read one: how often it found
  // that, or other work, how often nothing, and how long it took in all. Where others want every
  // processor one looks between their turns instead: that is counted, and takes none of the time.
  uint64_t polls_that_found = 0, polls_in_vain = 0;
  std::chrono::nanoseconds polling{};
  uint64_t wakeups = 0;  // idle threads that were woken to run what another could not
  // Memory of tensors that have come: of those that live; kept for those that come, 1 GiB at most.
  uint64_t received_memory = 0, idle_memory = 0;
  uint64_t offered_memory = 0;  // of tensors that others may be reading: kept until they have
  // Of empty_shared(): of those that live here or were given to others; kept for new ones, 1 GiB at
  // most; and what of the first others have now.
  uint64_t shared_memory = 0, idle_shared_memory = 0, handed_over_memory = 0;
  // Of others' empty_shared(), which were given to this worker: in use; and idle, but still mapped
  // for the next time, about 1 GiB at most.
  uint64_t mapped_memory = 0, idle_mapped_memory = 0;
};

using TimerId = uint64_t;

// Threading: every method from any thread.
class Messenger {
 public:
  using Handler = std::function<void(Request)>;
  // kInline: on the reading thread; it must not block. kByWaiter: as a task, but by the reading
  // thread itself where wait_and_serve() says so.
  enum class Run { kInline, kAsTask, kByWaiter };

  virtual ~Messenger() = default;

  virtual const WorkerInfo& self() const noexcept = 0;
  virtual const std::vector<WorkerInfo>& workers() const noexcept = 0;  // by rank
  // For messages: any number will do, and one of no worker is said to be that.
  std::string worker_name(int rank) const;
  virtual wire::InstanceId instance_of(int rank) const = 0;

  // What to do with requests of a kind. Before the first of them may arrive.
  virtual void handle(wire::Kind kind, Run run, Handler handler) = 0;

  // Sends a request. `handler` gets the answer, or an error by the deadline; never throws for what
  // the network does. frame.header: kind is the caller's, the rest is filled in.
  //   will_wait  the calling thread is about to wait for the answer, and can finish the writing
  virtual void call(int to, wire::OutFrame& frame, Deadline deadline,
                    std::shared_ptr<ReplyHandler> handler, bool will_wait) = 0;

  // Ends a call that waits for its answer as its deadline would, but with given_up().
  //   returns  false: none of `handler` waits there
  virtual bool cancel(int to, const ReplyHandler& handler) = 0;
  static Error given_up();  // kCancelled

  // Sends without an answer; may be lost when the peer is.
  virtual void post(int to, wire::OutFrame& frame) = 0;

  // Waits for a future that an answer from `from` will bring; false when the deadline passed.
  //   expected  when that is likely to come
  virtual bool wait(FutureCore& future, Deadline deadline, int from,
                    net::Expected expected = {}) = 0;

  // Waits, without a deadline, for a future that requests of kind kByWaiter will bring, among
  // others those from `from`: returns when it is ready, or, before that, whenever the calling
  // thread has read one that `is_own`, and has served it.
  //   is_own    asked on this thread, while it reads; must not block
  //   polling   whether it pays to poll first; it learns
  //   expected  when the end of this wait is likely to come
  //   returns   false when nothing comes any more
  virtual bool wait_and_serve(FutureCore& future, int from,
                              const std::function<bool(const Request&)>& is_own,
                              net::SpinGovernor& polling, net::Expected expected) = 0;

  // Runs `fn` on the calling thread as if that were the messenger's: continuations of what it ends
  // may wait for each other.
  virtual void run_here(const std::function<void()>& fn) { fn(); }

  virtual TimePoint now() const noexcept = 0;
  virtual TimerId call_at(TimePoint at, std::function<void()> callback) = 0;
  virtual bool cancel(TimerId timer) = 0;

  // Called instead of a task, on any thread, and must not block: kShutdown, or as below.
  using Rejected = std::function<void(const Error& why)>;

  // Runs `task` soon on a thread on which it may block. Such tasks are never turned away but when
  // this worker ends.
  virtual void run(std::function<void()> task, Rejected rejected = nullptr) = 0;

  // The same for what is left of a call that is being served: in the call's context, with a thread
  // as its request would get one.
  //   rejected  also kOverloaded, no thread can be had; kTimeout, the call's deadline has passed
  virtual void resume(CallContext call, std::function<void()> task, Rejected rejected) = 0;

  // Told each time that a line to a worker ends or cannot be made; from any thread, must not block,
  // nor wait for that worker: calls to it go when all have been told.
  //   why  kShutdown: the worker has said goodbye, and its run is over; else it is out of reach and
  //        may be back on a new line, by which calls go that have not left on the old one, and
  //        which nothing else of that survives
  using OnLost = std::function<void(int rank, const Error& why)>;
  virtual void on_worker_lost(OnLost callback) = 0;

  // Told each time that a line to another worker has opened, now and then twice; from any thread,
  // must not block. Before the first call.
  using OnReached = std::function<void(int rank)>;
  virtual void on_worker_reached(OnReached) {}

  // Given the answers that nobody waits for any more: the call had ended. What they carry (remote
  // references, say) may have to be let go. From any thread, must not block.
  using OnLateReply = std::function<void(int from, wire::InFrame&& reply)>;
  virtual void on_late_reply(OnLateReply callback) = 0;

  // Waits for messages of a worker without a deadline, until the result goes: when the worker falls
  // silent, the line that there is to it is closed, as for a call that has none.
  virtual std::shared_ptr<const void> watch(int rank) = 0;

  // The functions that a worker said it has; empty before the first contact.
  virtual std::vector<wire::FunctionRecord> functions_of(int rank) const = 0;

  // Memory for what is sent or was received, used again once it is let go: not initialised.
  virtual Buffer allocate(size_t bytes) { return Buffer::allocate(bytes); }

  // The same, where other processes of this host can map it: what is sent of it and kept by nobody
  // here arrives there without a copy.
  //   throws  Error kOverloaded: no descriptors or memory left
  virtual Buffer allocate_shared(size_t bytes) { return Buffer::allocate(bytes); }

  virtual MessengerCounters counters() const = 0;
  // Those that are open.
  virtual std::vector<Route> routes() const { return {}; }
};

}  // namespace agent
}  // namespace farspan
