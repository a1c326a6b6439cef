// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// RRef<T>: a counted handle to a value that lives on one worker, its owner.
// Source: PyTorch design note "Remote Reference Protocol"; where we differ: rref/PROTOCOL.md.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include <farspan/c10d/base/future.h>
#include <farspan/rpc/call/result.h>
#include <farspan/rpc/call/signature.h>
#include <farspan/rpc/outgoing_call.h>
#include <farspan/rref/codec.h>
#include <farspan/rref/table.h>

namespace farspan {

// Copying an RRef shares the handle; passing one in a call, as an argument or inside one, forks the
// reference. The owner keeps the value until the last handle, on any worker, is gone.
//
// One that was made empty, or moved from, throws kInvalidArgument from all that need a value.
//
// Threading: every method from any thread; none runs user code under a lock.
// Lifetime:  keeps its worker's table, but not the worker: what needs the value or the owner's
//            answer throws kShutdown after shutdown().
template <class T>
class RRef {
 public:
  using value_type = T;

  RRef() = default;  // refers to nothing: valid() is false
  // Puts a value where others can refer to it; this worker is its owner.
  //   throws  Error kInvalidArgument (there is no current worker), kShutdown
  explicit RRef(T value) : RRef(current_worker(), std::move(value)) {}
  RRef(Worker& worker, T value)
      : handle_(RRefTable::of(worker).adopt(make_result([&]() -> T { return std::move(value); }),
                                            type_name_of<T>())) {}

  bool valid() const noexcept { return handle_ != nullptr; }
  // These three wait for nobody. The WorkerInfo lives as long as any RRef of its worker.
  const WorkerInfo& owner() const { return live().table().info_of(rref_id().owner.rank); }
  bool is_owner() const { return rref_id().owner == live().table().self(); }
  // The owner counts this handle: for the result of remote(), the value is made.
  bool confirmed_by_owner() const { return live().table().confirmed(*handle_); }

  // Copies the value here, and waits for it to be made.
  //   returns  a Tensor keeps its shape and dtype
  //   throws   Error: kRemote (what making the value threw), kNotFound (released: see
  //            PROTOCOL.md), kCancelled (a reference that came with a call that had failed), and
  //            what rpc_sync throws
  //   grads    inside a dist_autograd::Context: recorded as one send/recv pair
  //   cost     1 round trip, 1 copy of T by its owner and 1 on the way; none when is_owner()
  T to_here(const CallOptions& options = {}) const requires Encodable<T> {
    if (is_owner()) return *local(options);
    return fetch(std::nullopt, options);
  }
  // The same for a tensor, straight onto that device of this process, whatever the device map says.
  T to_here(at::Device device,
            const CallOptions& options = {}) const requires std::is_same_v<T, at::Tensor> {
    const T value = is_owner() ? *local(options) : fetch(rref::place_of(device), options);
    return rref::moved_to(device, value);  // an owner without devices sends to the CPU
  }

  // The value itself, not a copy; waits for it to be made.
  //   throws   Error: kNotOwner unless is_owner(); else as to_here()
  T& local_value(const CallOptions& options = {}) const {
    if (!is_owner()) {
      throw Error(Code::kNotOwner, text() + " lives on worker '" + owner().name + "', not here")
          .operation("local_value")
          .advice("use to_here(), which copies the value");
    }
    return *local(options);
  }

  // Calls a method of the value, where it lives. For RRef<std::shared_ptr<Net>> and module holders,
  // of what they point to. As rpc_sync / rpc_async / remote; the method must be registered:
  // FARSPAN_REGISTER_METHODS(Net, forward).
  //   throws  what those do, for one that is known to be of no use at once; what the call itself
  //           meets, kNotFound and kCancelled as to_here() too, is thrown by rpc_sync, and in the
  //           Future of rpc_async
  template <class M, class... Args>
  auto rpc_sync(M method, Args&&... args) const {
    return rpc_sync(CallOptions{}, method, std::forward<Args>(args)...);
  }
  template <class M, class... Args>
  auto rpc_sync(const CallOptions& options, M method, Args&&... args) const {
    return call(options, "rpc_sync", true, method, std::forward<Args>(args)...).wait();
  }
  template <class M, class... Args>
  auto rpc_async(M method, Args&&... args) const {
    return rpc_async(CallOptions{}, method, std::forward<Args>(args)...);
  }
  template <class M, class... Args>
  auto rpc_async(const CallOptions& options, M method, Args&&... args) const {
    return call(options, "rpc_async", false, method, std::forward<Args>(args)...);
  }
  // Defined in remote.h.
  template <class M, class... Args>
  auto remote(M method, Args&&... args) const;
  template <class M, class... Args>
  auto remote(const CallOptions& options, M method, Args&&... args) const;

  // "rref 0/17@2": for messages; and equality of what two references refer to.
  std::string text() const { return to_text(rref_id()); }
  friend bool operator==(const RRef& a, const RRef& b) {
    if (!a.handle_ || !b.handle_) return a.handle_ == b.handle_;
    return a.handle_->id().rref == b.handle_->id().rref;
  }

  // For the rooms above.
  explicit RRef(std::shared_ptr<rref::Handle> handle) noexcept : handle_(std::move(handle)) {}
  const std::shared_ptr<rref::Handle>& handle() const noexcept { return handle_; }

 private:
  using Object = pointee_t<T>;

  rref::Handle& live() const {
    if (handle_) return *handle_;
    throw Error(Code::kInvalidArgument, "this RRef was made empty or moved from: it has no value")
        .operation("use of an RRef")
        .advice("look at valid() first");
  }
  const RRefId& rref_id() const { return live().id().rref; }
  std::shared_ptr<Worker> worker() const { return live().table().worker(); }

  std::shared_ptr<T> local(const CallOptions& options) const {
    RRefTable& table = live().table();
    table.check(*handle_);
    const auto here = worker();
    const auto value = table.local_value(rref_id(), here->rank(), here->deadline_for(options));
    here->messenger().wait(*value.state(), Deadline::never(), -1);
    const std::shared_ptr<Result>& result = value.value();
    T& held = result_cast<T>(*result);
    take_from_devices(held);
    return {result, &held};
  }

  template <class M, class... Args>
  auto call(const CallOptions& options, const char* verb, bool will_wait, M method,
            Args&&... args) const {
    static_assert(MethodCallableWith<Object, M, Args...>,
                  "the arguments do not fit the method, or it is no method of the value");
    static_assert(ResultTravels<M>, "the result has no Codec: call it with remote()");
    const Function& function = registered_method<Object>(method);
    return start<result_of_t<M>>(
        wire::Kind::kRRefCall, {verb, function.name}, function.id, {std::nullopt, rref_id()},
        options, will_wait, [&](OutgoingCall& outgoing) {
          write_arguments<M>(function, outgoing.payload(), outgoing.writer(),
                             std::forward<Args>(args)...);
        });
  }

  T fetch(std::optional<int> place, const CallOptions& options) const {
    if (!worker()->device_carrier()) place.reset();
    return start<T>(wire::Kind::kRRefFetch, {"to_here", text()}, 0,
                    {std::nullopt, rref_id(), place}, options, true, [](OutgoingCall&) {})
        .wait();
  }

  template <class R, class Write>
  Future<R> start(wire::Kind kind, const CallName& name, uint64_t function,
                  const rref::Subject& subject, const CallOptions& options, bool will_wait,
                  Write write) const {
    live().table().check(*handle_);
    const int to = rref_id().owner.rank;
    const auto here = worker();
    try {
      OutgoingCall outgoing(*here, to, kind, name, function);
      outgoing.subject(rref::encode(subject));
      write(outgoing);
      auto state = std::make_shared<CallState<R>>(here, to, outgoing.name());
      state->keep(handle_);
      outgoing.send(state, options, will_wait);
      return Future<R>(std::move(state));
    } catch (const Error& why) {
      throw_of_call(why, *here, to, name);
    }
  }

  std::shared_ptr<rref::Handle> handle_;
};

template <class T>
struct Codec<RRef<T>> {
  static std::string type_name() { return "rref<" + type_name_of<T>() + ">"; }
  static void write(schema::Value::Builder out, const RRef<T>& ref, Writer& writer) {
    if (!ref.valid()) throw BadValue(Code::kInvalidArgument, "an RRef that refers to nothing");
    rref::write_handle(out, *ref.handle(), writer);
  }
  static RRef<T> read(schema::Value::Reader in, Reader& reader) {
    return RRef<T>(rref::read_handle(in, reader));
  }
};

}  // namespace farspan
