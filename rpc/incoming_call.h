// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// IncomingCall: one request that runs a function here, from its bytes to its answer.
#pragma once

#include <ATen/ThreadLocalState.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <farspan/c10d/base/device_order.h>
#include <farspan/rpc/agent/messenger.h>
#include <farspan/rpc/call.capnp.h>
#include <farspan/rpc/call/interceptor.h>
#include <farspan/rpc/call/registry.h>
#include <farspan/rpc/call/result.h>
#include <farspan/rpc/worker.h>

namespace farspan {

// Threading: made and run by one thread; answered by that or another, once. Movable.
class IncomingCall {
 public:
  IncomingCall(Worker& worker, agent::Request request);

  // Makes the tensors that came along, and enters what the call is in. run() does it itself.
  //   throws  Error kCorrupt, or what the interceptor says
  void begin();

  // What the kind's room put into the call.
  //   throws  Error kCorrupt
  std::vector<std::byte> subject() const;
  Worker& worker() const noexcept { return *worker_; }
  int from() const noexcept { return request_.from(); }
  Deadline deadline() const noexcept { return request_.deadline(); }

  // The answer's tensors arrive there, as DeviceTensors has it, whatever the device map says.
  void answer_at(int place) noexcept { place_ = place; }

  // Runs the function that the call names, on `self` when it is a method.
  //   throws  Error: what the function threw, or why it could not be run
  std::shared_ptr<Result> run(const std::shared_ptr<Result>& self);

  // What came along lives on only where the function has kept it.
  void let_go_of_arguments() noexcept;

  // Answers with the result, or with why it cannot travel. Tensors that somebody else has are
  // copied.
  void reply(const Result& result) noexcept;
  // The same for one that nobody needs after this: its tensors need not be copied, and those of
  // shared memory are handed over.
  void reply(std::shared_ptr<Result> result) noexcept;
  void fail(const Error& error) noexcept;

 private:
  void begin(schema::Call::Reader call);
  const Function& function_of(uint64_t id);
  [[noreturn]] void throw_not_registered(uint64_t id) const;
  void reply(const Result& result, std::shared_ptr<Result>* last) noexcept;
  void send_result(const Result& result, std::shared_ptr<Result>* last);

  Worker* worker_;
  agent::Request request_;
  std::string function_name_;
  bool begun_ = false;
  std::optional<int> place_;
  TensorList tensors_;
  std::shared_ptr<Interceptor::Scope> scope_;
};

// Runs `fn` with `call` as soon as `result` is ready: at once, or in the thread that makes it so.
// Drops the call when its worker is gone by then. `fn` must not throw.
void when_ready(IncomingCall call, const std::shared_ptr<Result>& result,
                std::function<void(IncomingCall&)> fn);

// Answers `call` with `result` as soon as that is ready.
void reply_when_ready(IncomingCall call, std::shared_ptr<Result> result);

// Handles kCall and kBuiltinCall.
void serve_calls(Worker& worker);

// Puts the calling thread into the state of one that has done nothing yet, for a user's function:
// nothing of what it was doing (grad mode, streams) shows, nor does later what the function leaves;
// and `worker` is current.
class FreshState {
 public:
  explicit FreshState(Worker& worker);
  ~FreshState();
  FreshState(const FreshState&) = delete;
  FreshState& operator=(const FreshState&) = delete;

 private:
  CurrentWorker current_;
  const KeptDevices devices_;
  const c10::AutogradState autograd_;
  const c10::impl::LocalDispatchKeySet keys_;
  std::optional<at::ThreadLocalStateGuard> guard_;
};

// The same, and the state in which a function is to run: with streams of its own, in the devices'
// order.
class FreshThread {
 public:
  explicit FreshThread(Worker& worker);
  ~FreshThread();
  FreshThread(const FreshThread&) = delete;
  FreshThread& operator=(const FreshThread&) = delete;

 private:
  const FreshState state_;
  const std::unique_ptr<DeviceStreams> streams_;
};

}  // namespace farspan
