// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// RRefTable: a worker's references and the values it owns. It drives the RRefProtocol over the
// worker's messenger.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/rpc/incoming_call.h>
#include <farspan/rpc/worker.h>
#include <farspan/rref/messages.h>
#include <farspan/rref/protocol.h>

namespace farspan {

class RRefTable;

namespace rref {

// What all copies of an RRef on one worker share: one handle of the protocol's.
//
// Threading: as a value. Lifetime: tells the table when it goes.
class Handle {
 public:
  Handle(std::shared_ptr<RRefTable> table, HandleId id) : table_(std::move(table)), id_(id) {}
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  const HandleId& id() const noexcept { return id_; }
  RRefTable& table() const noexcept { return *table_; }

 private:
  const std::shared_ptr<RRefTable> table_;
  const HandleId id_;
};

}  // namespace rref

// Threading: every method from any thread. Values are destroyed, and callbacks run, outside of its
//            lock.
class RRefTable final : public WorkerRoom, public std::enable_shared_from_this<RRefTable> {
 public:
  using HandlePtr = std::shared_ptr<rref::Handle>;

  // Makes one and puts it into the worker.
  static std::shared_ptr<RRefTable> install(Worker& worker);
  //   throws  Error kInvalidArgument: this worker has none
  static RRefTable& of(Worker& worker);

  //   throws  Error kShutdown: the worker is gone
  std::shared_ptr<Worker> worker() const;
  const WorkerRun& self() const noexcept { return self_; }
  const WorkerInfo& info_of(int rank) const {
    return messenger_->workers().at(static_cast<size_t>(rank));
  }

  // A handle to a value that is here.
  HandlePtr adopt(std::shared_ptr<Result> value, const std::string& what);
  // A handle to a value that `owner` is asked to make; the caller sends the request.
  HandlePtr create(int owner, const std::string& what);
  void creation_done(const HandleId& id);
  void creation_failed(const HandleId& id, const Error& why);

  // For a reference that travels to `to`.
  rref::ForkData fork(const rref::Handle& handle, int to);
  void carrier_ended(int to, const ForkId& fork, bool arrived);
  HandlePtr received(int from, const rref::ForkData& data);
  // Ready when the owner counts this handle.
  Future<void> confirmation(const rref::Handle& handle);

  //   throws  Error: why no operation on this handle can work
  void check(const rref::Handle& handle) const;
  bool confirmed(const rref::Handle& handle) const;

  // The value of a handle whose owner is this worker, once it is made.
  //   throws  Error kShutdown
  Future<std::shared_ptr<Result>> local_value(const RRefId& id, int requester, Deadline deadline);

  rref::Counters counters() const;
  // What is held now: one line each.
  std::vector<std::string> holdings() const;

  void drop(const HandleId& id) noexcept;

  // WorkerRoom
  void drain(Deadline deadline) override;
  void stop() override;
  void end() override;

 private:
  explicit RRefTable(Worker& worker);
  void listen();
  WorkerRun run_of(int rank) const;
  Error has_ended() const;

  template <class Fn>
  auto step(Fn&& fn);
  template <class Fn>
  void step_quietly(Fn&& fn) noexcept;
  void perform(rref::Outbox out);
  void set_timer();

  // serve.cc
  class Making;
  using Object = Future<std::shared_ptr<Result>>;
  using Use = std::function<void(IncomingCall&, const Object&)>;
  void on_control(const agent::Request& request);
  void serve_creation(IncomingCall call);
  void serve_call(IncomingCall call);
  void serve_fetch(IncomingCall call);
  void set_value(const RRefId& id, const std::shared_ptr<Result>& value) noexcept;
  std::shared_ptr<Making> begin_making(int from, const rref::ForkData& wanted);
  void make(IncomingCall& call, const Object& object, const std::shared_ptr<Making>& making);
  void with_value(IncomingCall& call, const RRefId& id, Use use);
  void run(IncomingCall& call, const Object& object, const Use& use) noexcept;
  void on_late_reply(int from, const wire::InFrame& reply);

  const std::weak_ptr<Worker> worker_;
  Worker& host_;  // the same, for its own threads: it outlives them, and must not end on one
  const std::shared_ptr<agent::Messenger> messenger_;
  const WorkerRun self_;
  std::vector<WorkerRun> runs_;  // by rank; constant after listen()

  mutable Mutex mutex_;
  rref::RRefProtocol protocol_ FARSPAN_GUARDED_BY(mutex_);
  using Values = std::unordered_map<RRefId, std::shared_ptr<Result>>;
  Values values_ FARSPAN_GUARDED_BY(mutex_);
  Values last_values_ FARSPAN_GUARDED_BY(mutex_);  // after stop()
  std::unordered_map<rref::WaitId, Promise<void>> waits_ FARSPAN_GUARDED_BY(mutex_);
  std::optional<Promise<rref::DrainReport>> draining_ FARSPAN_GUARDED_BY(mutex_);
  agent::TimerId timer_ FARSPAN_GUARDED_BY(mutex_) = 0;
  Deadline timer_at_ FARSPAN_GUARDED_BY(mutex_);
};

// Lets `fn` tell the protocol something, and does what comes of it.
template <class Fn>
auto RRefTable::step(Fn&& fn) {
  rref::Outbox out;
  using R = std::invoke_result_t<Fn, rref::RRefProtocol&>;
  if constexpr (std::is_void_v<R>) {
    {
      MutexLock lock(mutex_);
      fn(protocol_);
      out = protocol_.take();
    }
    perform(std::move(out));
  } else {
    std::optional<R> result;
    {
      MutexLock lock(mutex_);
      result.emplace(fn(protocol_));
      out = protocol_.take();
    }
    perform(std::move(out));
    return std::move(*result);
  }
}

template <class Fn>
void RRefTable::step_quietly(Fn&& fn) noexcept {
  try {
    step(std::forward<Fn>(fn));
  } catch (const Error& e) {
    log(LogLevel::kWarning, "rref", e.what());
  }
}

}  // namespace farspan
