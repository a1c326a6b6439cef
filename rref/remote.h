// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// remote: running a function on another worker, and leaving its result there.
#pragma once

#include <string>
#include <utility>

#include <farspan/rpc/rpc.h>
#include <farspan/rref/rref.h>

namespace farspan {
namespace rref {

// Waits for the owner's word that the value was made.
class CreationState final : public PendingResult {
 public:
  CreationState(std::shared_ptr<Worker> worker, CallName name, std::shared_ptr<Handle> handle);

 private:
  void accept(farspan::schema::Value::Reader value, Reader& reader) override;
  void fail(Error error) noexcept override;

  const std::shared_ptr<Handle> handle_;
};

// Asks `owner` to make what `write` describes; `self`: by a method of that value, which is kept
// until then.
template <class R, class Write>
RRef<R> make_remote(Worker& worker, int owner, const CallOptions& options, const Function& function,
                    const std::shared_ptr<Handle>& self, Write write) {
  const std::string what = type_name_of<R>() + " made by remote(" + function.name + ")";
  auto handle = RRefTable::of(worker).create(owner, what);
  try {
    OutgoingCall call(worker, owner, wire::Kind::kRemoteCall, {"remote", function.name},
                      function.id);
    Subject subject{ForkData{handle->id().rref, handle->id().fork, what}, std::nullopt};
    if (self) subject.self = self->id().rref;
    call.subject(encode(subject));
    write(call);
    const auto state =
        std::make_shared<CreationState>(worker.shared_from_this(), call.name(), handle);
    state->keep(self);
    call.send(state, options, false);
  } catch (const Error& why) {
    handle->table().creation_failed(handle->id(), why);
    throw_of_call(why, worker, owner, {"remote", function.name});
  } catch (...) {
    handle->table().creation_failed(handle->id(), to_error(std::current_exception()));
    throw;
  }
  return RRef<R>(std::move(handle));
}

}  // namespace rref

template <class Fn, class... Args>
auto Worker::remote(const WorkerTarget& to, const CallOptions& options, Fn fn, Args&&... args) {
  static_assert(CallableWith<Fn, Args...>, "the arguments do not fit the function's parameters");
  static_assert(!std::is_void_v<result_of_t<Fn>>,
                "remote() returns a reference to what the function returns, which is nothing: call "
                "it with rpc_sync() or rpc_async()");
  const Function& function = registered_function(fn);
  return rref::make_remote<result_of_t<Fn>>(
      *this, rank_of(*this, to, "remote", function.name), options, function, nullptr,
      [&](OutgoingCall& call) {
        write_arguments<Fn>(function, call.payload(), call.writer(), std::forward<Args>(args)...);
      });
}
template <class Fn, class... Args>
auto Worker::remote(const WorkerTarget& to, Fn fn, Args&&... args) {
  return remote(to, CallOptions{}, fn, std::forward<Args>(args)...);
}

template <class T>
template <class M, class... Args>
auto RRef<T>::remote(const CallOptions& options, M method, Args&&... args) const {
  static_assert(MethodCallableWith<Object, M, Args...>,
                "the arguments do not fit the method, or it is no method of the value");
  live().table().check(*handle_);
  const Function& function = registered_method<Object>(method);
  return rref::make_remote<result_of_t<M>>(
      *worker(), rref_id().owner.rank, options, function, handle_, [&](OutgoingCall& call) {
        write_arguments<M>(function, call.payload(), call.writer(), std::forward<Args>(args)...);
      });
}
template <class T>
template <class M, class... Args>
auto RRef<T>::remote(M method, Args&&... args) const {
  return remote(CallOptions{}, method, std::forward<Args>(args)...);
}

// Starts `fn(args...)` on the worker `to` and returns at once with a reference to its result, which
// stays there; it need not be able to travel. What `fn` throws, and what its request meets, comes
// with the first use. It blocks where rpc_async does.
//   throws   Error: kNotRegistered, kInvalidArgument, kDisconnected (that worker is known to be
//            lost), kShutdown: what is known at once
//
// Threading: any thread, many at once.
template <class Fn, class... Args>
requires(!std::is_same_v<Fn, CallOptions>) auto remote(const WorkerTarget& to, Fn fn,
                                                       Args&&... args) {
  return current_worker().remote(to, fn, std::forward<Args>(args)...);
}
template <class Fn, class... Args>
auto remote(const WorkerTarget& to, const CallOptions& options, Fn fn, Args&&... args) {
  return current_worker().remote(to, options, fn, std::forward<Args>(args)...);
}

}  // namespace farspan
