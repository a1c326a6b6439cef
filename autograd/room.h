// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// AutogradRoom: a worker's contexts and its share of their backward passes. It records what calls
// send and receive, and drives the PassProtocol and the Executors.
#pragma once

#include <atomic>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <vector>

#include <farspan/autograd/context.h>
#include <farspan/autograd/executor.h>
#include <farspan/autograd/message_codec.h>
#include <farspan/autograd/pass_protocol.h>
#include <farspan/autograd/send_receive.h>
#include <farspan/c10d/base/future.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/rpc/call/interceptor.h>
#include <farspan/rpc/worker.h>

namespace farspan::dist_autograd {

// What one worker keeps for one context.
struct ContextState {
  explicit ContextState(ContextId context) : id(context) {}
  const ContextId id;
  const std::shared_ptr<LeafGradients> leaves = std::make_shared<LeafGradients>();
  Mutex mutex;
  std::unordered_map<uint64_t, std::shared_ptr<SendNode>> sends FARSPAN_GUARDED_BY(mutex);
  std::set<int> workers FARSPAN_GUARDED_BY(mutex);  // that know of it through this one
  // What follows is not recorded: a function may outlive the context that it was called in, and
  // nobody would tell those whom it calls that the context is over.
  bool released FARSPAN_GUARDED_BY(mutex) = false;
  // At its maker, by a consistent step: what follows is not recorded any more.
  std::atomic<bool> finished{false};
};
using ContextPtr = std::shared_ptr<ContextState>;

struct AutogradCounters {
  size_t contexts = 0;
  size_t passes = 0;  // under way, or with something left of them
};

// Whom a worker asks before a context may use what it holds: consistent optimizers.
//
// Threading: both from any thread.
class ContextGate {
 public:
  virtual ~ContextGate() = default;
  // Before each recorded call of a context runs here, and before a context begins here. May block.
  //   returns  whether it entered by this; released() follows
  //   throws   Error: the call, or the making of the context, fails with it
  virtual bool enter(ContextId context) = 0;
  // The context is gone here. Also for those that never entered.
  virtual void released(ContextId context) noexcept = 0;
};

// Threading: every method from any thread.
class AutogradRoom final : public WorkerRoom,
                           public Interceptor,
                           public std::enable_shared_from_this<AutogradRoom> {
 public:
  static std::shared_ptr<AutogradRoom> install(Worker& worker);
  //   throws  Error kInvalidArgument: this worker has none
  static std::shared_ptr<AutogradRoom> of(Worker& worker);

  // Waits at the gate, if there is one.
  ContextPtr new_context();
  void release(ContextId id) { end_context({id}); }
  // Null: there is none (any more).
  ContextPtr find(ContextId id) const;
  // The same.
  //   throws  Error kDisconnected: what was kept of it went with a worker that was lost
  ContextPtr find_whole(ContextId id) const;
  void backward(const ContextPtr& context, const std::vector<at::Tensor>& roots,
                const std::vector<at::Tensor>& gradients, const BackwardOptions& options);
  AutogradCounters counters() const;
  std::vector<ContextId> contexts() const;  // that are known here now
  // Before the worker's first call.
  void set_gate(std::shared_ptr<ContextGate> gate) { gate_ = std::move(gate); }

  // Interceptor
  std::shared_ptr<Scope> before_request(int to, TensorList& tensors,
                                        Extensions& extensions) override;
  void after_reply(Scope& scope, int from, std::span<const Extension> extensions,
                   TensorList& tensors) override;
  std::shared_ptr<Scope> after_request(int from, std::span<const Extension> extensions,
                                       TensorList& tensors) override;
  void before_reply(Scope& scope, int to, TensorList& tensors, Extensions& extensions) override;

  // WorkerRoom
  void stop() override;
  void end() override;

 private:
  struct PassRun;
  // Of one message, or of a boundary.
  struct Gradients {
    std::vector<at::Tensor> tensors;
    std::shared_ptr<DeviceWork> written;  // see Executor::feed()
    MessageWay way = MessageWay::kReply;  // of those that leave
    std::exception_ptr failure{};         // why there are none of a message
  };

  explicit AutogradRoom(Worker& worker);
  void listen();
  struct Known {
    ContextPtr context;
    std::set<int> callers;  // other workers whose calls brought it here
  };

  void end_context(const Release& release);
  void lose_contexts_of(int rank);
  void check_whole(ContextId id) const FARSPAN_REQUIRES(mutex_);
  // Null: it has been released.
  //   throws  Error kDisconnected: it, or the caller, was lost
  ContextPtr find_or_make(ContextId id, const agent::CallContext& call);
  void record(ContextState& context, int to, const TensorList& tensors, Extensions& extensions);

  template <class Fn>
  void step(Fn&& fn, const Gradients* gradients = nullptr);
  void perform(PassActions actions, const Gradients* gradients);
  void on_message(agent::Request request);
  void wait_for(const PassId& pass, const Future<void>& over, PassMode mode, int peer,
                TimePoint begun);
  void walk(const Walk& action);
  void send(const Send& action, const Gradients* gradients);
  void keep(const Keep& action, const Gradients* gradients) FARSPAN_REQUIRES(mutex_);
  void feed(const Feed& action, const Gradients* gradients);
  void retire(const PassId& id);
  void complete(const Complete& action);
  void run(const std::shared_ptr<PassRun>& pass);
  void fail(const PassId& pass, const std::exception_ptr& failure);
  void release_passes(ContextId id);
  void pass_gate(ContextId id);
  void lose_peer(int rank, const Error& why);
  std::shared_ptr<PassRun> run_of(const PassId& pass, bool remove = false);
  std::shared_ptr<PassRun> run_or_make(const PassId& pass);
  std::shared_ptr<Executor> executor_of(PassRun& pass) const;
  std::shared_ptr<Executor> make_executor(const std::shared_ptr<PassRun>& pass,
                                          const PassTerms& terms);
  void tell(const Release& release, const std::set<int>& workers);

  Worker& host_;
  const std::weak_ptr<Worker> alive_;  // host_, while it lives
  const std::shared_ptr<agent::Messenger> messenger_;
  const int self_;
  // Of the passes that begin here: how long they take, and whether what a thread waits for comes
  // soon: the answers to its first questions, and what comes afterwards.
  net::Forecast pass_times_;
  net::SpinGovernor first_waits_, later_waits_;
  std::atomic<bool> is_read_{false};   // a thread in backward() reads what comes for its pass
  std::shared_ptr<ContextGate> gate_;  // constant before the first call; null: none
  std::atomic<uint64_t> next_context_{1}, next_send_{1};

  mutable Mutex mutex_;
  PassProtocol protocol_ FARSPAN_GUARDED_BY(mutex_);
  std::map<ContextId, Known> contexts_ FARSPAN_GUARDED_BY(mutex_);
  std::map<ContextId, Release> released_ FARSPAN_GUARDED_BY(mutex_);  // tombstones
  std::vector<ContextId> released_order_ FARSPAN_GUARDED_BY(mutex_);
  std::map<PassId, std::shared_ptr<PassRun>> passes_ FARSPAN_GUARDED_BY(mutex_);
  bool ended_ FARSPAN_GUARDED_BY(mutex_) = false;
};

// The context that the calling thread is in; null: none.
ContextPtr current_context() noexcept;

// Calls that the thread makes in a block are not recorded, whatever context it is in.
class OutsideContext {
 public:
  OutsideContext() noexcept;
  ~OutsideContext();
  OutsideContext(const OutsideContext&) = delete;
  OutsideContext& operator=(const OutsideContext&) = delete;

 private:
  ContextPtr context_;
};

}  // namespace farspan::dist_autograd
