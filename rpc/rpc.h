// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// rpc_sync, rpc_async: calling functions of other workers.
//
//   Tensor square(const Tensor& x) { return x * x; }
//   FARSPAN_REGISTER(square);
//   ...
//   Tensor y = farspan::rpc_sync("ps", square, x);
//   Future<Tensor> z = farspan::rpc_async("ps", CallOptions{.timeout = 5s}, square, x);
//
// What can be called: functions registered in both programs (rpc/call/register.h), and LibTorch's
// operators by schema name. What can be passed: c10d/values/codec.h. Arguments are borrowed: large
// tensors must not change until the call has ended; one that does, in place, fails the call.
// A tensor (or vector, or optional, of them) that is passed with std::move is given up instead; one
// of empty_shared() then reaches a worker of the same host without a copy, however large it is, and
// so does one that a function returns.
//
// Threading: any thread, many at once, also inside a function that another worker called. The free
//            functions work on the thread's current worker (rpc/worker.h).
#pragma once

#include <chrono>
#include <string>
#include <utility>

#include <farspan/c10d/base/future.h>
#include <farspan/rpc/call/builtin.h>
#include <farspan/rpc/call/invoke.h>
#include <farspan/rpc/call/register.h>
#include <farspan/rpc/outgoing_call.h>
#include <farspan/rpc/shared_tensor.h>
#include <farspan/rpc/worker.h>

namespace farspan {

// An operator of LibTorch's, by schema name; the worker's rpc_timeout holds for it:
//
//   rpc_sync<Tensor>("ps", builtin("aten::add.Tensor"), a, b);
struct Builtin {
  std::string name;
};
inline Builtin builtin(std::string name) { return {std::move(name)}; }

namespace detail {

template <class Fn, class... Args>
constexpr void check_call() {
  static_assert(CallableWith<Fn, Args...>,
                "the arguments do not fit the function's parameters (default arguments do not "
                "travel), or this is no plain function");
  static_assert(ResultTravels<Fn>,
                "the result has no Codec: call it with remote(), which leaves "
                "the result where it is, or use FARSPAN_STRUCT");
}

template <class Fn, class... Args>
auto start_call(Worker& worker, const WorkerTarget& to, const CallOptions& options,
                const char* verb, bool will_wait, Fn fn, Args&&... args) {
  using R = result_of_t<Fn>;
  const Function& function = registered_function(fn);
  const int rank = rank_of(worker, to, verb, function.name);
  try {
    OutgoingCall call(worker, rank, wire::Kind::kCall, {verb, function.name}, function.id);
    write_arguments<Fn>(function, call.payload(), call.writer(), std::forward<Args>(args)...);
    auto state = std::make_shared<CallState<R>>(worker.shared_from_this(), rank, call.name());
    call.send(state, options, will_wait);
    return Future<R>(std::move(state));
  } catch (const Error& why) {
    throw_of_call(why, worker, rank, {verb, function.name});
  }
}

template <class R, class... Args>
Future<R> start_builtin_call(Worker& worker, const WorkerTarget& to, const CallOptions& options,
                             const char* verb, bool will_wait, const Builtin& op, Args&&... args) {
  const int rank = rank_of(worker, to, verb, op.name);
  try {
    OutgoingCall call(worker, rank, wire::Kind::kBuiltinCall, {verb, op.name}, 0);
    call.subject(std::as_bytes(std::span(op.name.data(), op.name.size())));
    write_builtin_arguments(op.name, call.payload(), call.writer(), std::forward<Args>(args)...);
    auto state = std::make_shared<CallState<R>>(worker.shared_from_this(), rank, call.name());
    call.send(state, options, will_wait);
    return Future<R>(std::move(state));
  } catch (const Error& why) {
    throw_of_call(why, worker, rank, {verb, op.name});
  }
}

}  // namespace detail

template <class Fn, class... Args>
auto Worker::rpc_sync(const WorkerTarget& to, const CallOptions& options, Fn fn, Args&&... args) {
  detail::check_call<Fn, Args...>();
  return detail::start_call(*this, to, options, "rpc_sync", true, fn, std::forward<Args>(args)...)
      .wait();
}
template <class Fn, class... Args>
auto Worker::rpc_sync(const WorkerTarget& to, Fn fn, Args&&... args) {
  return rpc_sync(to, CallOptions{}, fn, std::forward<Args>(args)...);
}

template <class Fn, class... Args>
auto Worker::rpc_async(const WorkerTarget& to, const CallOptions& options, Fn fn, Args&&... args) {
  detail::check_call<Fn, Args...>();
  return detail::start_call(*this, to, options, "rpc_async", false, fn,
                            std::forward<Args>(args)...);
}
template <class Fn, class... Args>
auto Worker::rpc_async(const WorkerTarget& to, Fn fn, Args&&... args) {
  return rpc_async(to, CallOptions{}, fn, std::forward<Args>(args)...);
}

// Calls `fn(args...)` on the worker `to` (a name, a rank, a WorkerInfo; this one included) and
// waits.
//   returns  what the function returns; for one that returns Future<T>, a T
//   throws   Error: kTimeout | kDisconnected | kUnavailable (the worker or the way to it),
//            kNotRegistered | kInvalidArgument (what was asked, or this thread has no worker),
//            kRemote (what the function threw: its type, its message, where; an Error that it threw
//            comes as it is), kOverloaded (no thread or no memory left there), kCancelled (the
//            function let go of its call without an answer; or Future::cancel()), kCorrupt (what
//            came is no answer), kShutdown (this worker has ended)
//   cost     1 round trip; a thread that waits reads the answer itself
template <class Fn, class... Args>
requires(!std::is_same_v<Fn, CallOptions> &&
         !std::is_same_v<Fn, Builtin>) auto rpc_sync(const WorkerTarget& to, Fn fn,
                                                     Args&&... args) {
  return current_worker().rpc_sync(to, fn, std::forward<Args>(args)...);
}
template <class Fn, class... Args>
requires(!std::is_same_v<Fn, Builtin>) auto rpc_sync(const WorkerTarget& to,
                                                     const CallOptions& options, Fn fn,
                                                     Args&&... args) {
  return current_worker().rpc_sync(to, options, fn, std::forward<Args>(args)...);
}

// The same without waiting for the answer. The error, if any, is in the Future; its cancel() gives
// the call up.
// It BLOCKS while calls to that worker that are unanswered, or not sent yet, hold
// WorkerOptions::max_in_flight_bytes: until there is room, and, unless it is small, behind the
// calls that came before. At the call's deadline it returns, and the Future holds kTimeout. Within
// a function that another worker called it waits only for what is not sent yet.
//   throws   Error kNotRegistered, kInvalidArgument: what is known at once
template <class Fn, class... Args>
requires(!std::is_same_v<Fn, CallOptions> &&
         !std::is_same_v<Fn, Builtin>) auto rpc_async(const WorkerTarget& to, Fn fn,
                                                      Args&&... args) {
  return current_worker().rpc_async(to, fn, std::forward<Args>(args)...);
}
template <class Fn, class... Args>
requires(!std::is_same_v<Fn, Builtin>) auto rpc_async(const WorkerTarget& to,
                                                      const CallOptions& options, Fn fn,
                                                      Args&&... args) {
  return current_worker().rpc_async(to, options, fn, std::forward<Args>(args)...);
}

// The same for LibTorch's operators; R is what the operator returns: Tensor, int64_t, double, bool,
// or std::vector<Tensor> for several.
//   throws   as above; kNotRegistered also for an operator that is not served (rpc/call/builtin.h)
template <class R, class... Args>
R rpc_sync(const WorkerTarget& to, const Builtin& op, Args&&... args) {
  return detail::start_builtin_call<R>(current_worker(), to, {}, "rpc_sync", true, op,
                                       std::forward<Args>(args)...)
      .wait();
}
template <class R, class... Args>
Future<R> rpc_async(const WorkerTarget& to, const Builtin& op, Args&&... args) {
  return detail::start_builtin_call<R>(current_worker(), to, {}, "rpc_async", false, op,
                                       std::forward<Args>(args)...);
}

}  // namespace farspan
