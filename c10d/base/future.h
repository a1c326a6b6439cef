// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Future<T>: a result that is on its way. Promise<T>: the end that delivers it.
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <farspan/c10d/base/device_order.h>
#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/future_core.h>

namespace farspan {

template <class T>
class Future;
template <class T>
class Promise;

template <class T>
struct IsFuture : std::false_type {};
template <class T>
struct IsFuture<Future<T>> : std::true_type {};

namespace detail {

template <class T>
using Stored = std::conditional_t<std::is_void_v<T>, std::monostate, T>;

template <class T>
class FutureState : public FutureCore {
 public:
  template <class... Args>
  bool set_value(Args&&... args) {
    publish_device_work();
    return complete([&] { value_.emplace(std::forward<Args>(args)...); });
  }
  bool set_error(Error error) {
    return complete([&] { error_.emplace(std::move(error)); });
  }
  // For when ready():
  bool failed() const noexcept { return error_.has_value(); }
  const Error& error() const noexcept { return *error_; }
  Stored<T>& value() {
    if (error_) throw *error_;
    take_over();
    return *value_;
  }

 private:
  // In the thread of whoever takes the value, each time: his devices may use it from then on.
  virtual void take_over() { take_from_devices(*value_); }

  std::optional<Stored<T>> value_;
  std::optional<Error> error_;
};

// What then(fn) gives: fn may take the finished Future<T> (it sees errors), or the value, or
// nothing (then errors pass it by).
template <class T, class Fn>
auto call_continuation(Fn& fn, const Future<T>& done) {
  if constexpr (std::is_invocable_v<Fn&, Future<T>>) {
    return fn(done);
  } else if constexpr (std::is_void_v<T>) {
    done.wait();
    return fn();
  } else {
    return fn(done.value());
  }
}

template <class R>
struct Unwrapped {
  using type = R;
};
template <class R>
struct Unwrapped<Future<R>> {
  using type = R;
};

}  // namespace detail

// A handle to a result that another thread or worker delivers once. Copies share the result.
//
// One that was made empty, or moved from, throws kInvalidArgument from all that need a result.
//
// Threading: every method from any thread. Lifetime: the result lives as long as any copy.
template <class T>
class Future {
 public:
  using value_type = T;
  using State = detail::FutureState<T>;

  Future() = default;  // no result is coming: valid() is false
  explicit Future(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  bool valid() const noexcept { return state_ != nullptr; }
  bool ready() const noexcept { return state_ && state_->ready(); }

  // Blocks until the result is there and returns it.
  //   timeout  for this wait only, the operation goes on; kNoTimeout waits as long as it takes
  //   throws   the operation's Error, or kTimeout when `timeout` passed first
  // Called on a temporary it moves the result out when no other copy of the future is left, and
  // always when the result cannot be copied.
  std::add_lvalue_reference_t<const T> wait(Millis timeout = kNoTimeout) const& {
    finish(timeout);
    if constexpr (std::is_void_v<T>) {
      state_->value();
    } else {
      return state_->value();
    }
  }
  T wait(Millis timeout = kNoTimeout) && {
    finish(timeout);
    if constexpr (std::is_void_v<T>) {
      state_->value();
    } else if constexpr (!std::is_copy_constructible_v<T>) {
      return std::move(state_->value());
    } else {
      // Counted up first: that acquires what other threads did with copies they have let go.
      const std::shared_ptr<State> again = state_;
      if (state_.use_count() == 2) return std::move(state_->value());
      return state_->value();
    }
  }

  // True when the result, or its error, is there in time; does not throw that error. Zero only
  // looks, unlike wait(), for which it is kNoTimeout.
  bool wait_for(Millis timeout) const { return live().wait(Deadline::after(timeout)); }
  bool wait_until(Deadline deadline) const { return live().wait(deadline); }

  // The result of a future that is ready.
  //   throws  its Error, or kInvalidArgument when it is not ready
  std::add_lvalue_reference_t<T> value() const {
    if (!live().ready()) {
      throw Error(Code::kInvalidArgument, "the result is not there yet")
          .operation("Future::value")
          .advice("call wait(), or look at ready() first");
    }
    if constexpr (std::is_void_v<T>) {
      state_->value();
    } else {
      return state_->value();
    }
  }
  bool has_error() const noexcept { return ready() && state_->failed(); }
  const Error& error() const noexcept { return state_->error(); }  // when has_error()

  // Gives up a call that has not been answered: rpc_async's future ends with kCancelled before this
  // returns. Of what then() has made, the call that it comes of now; its continuations hear of it,
  // as on_ready() says, and one that begins another call goes on with that. As after a timeout,
  // what the call has lent is the caller's again (but for memory of a device, and what was given
  // away: that may be read until the other worker lets go of it), an answer that still comes is
  // dropped, and the function may run, or have run, all the same.
  //   returns  false: nothing was given up. It is ready, or is just being ended by others (wait()
  //            tells), or it comes of no call (a promise's, collect_all()'s)
  bool cancel() const { return live().cancel(); }

  // Runs `fn` when ready: in the thread that delivers the result, or at once in this one. If a
  // callback before it blocks: in another thread of the worker's; after it, where no worker is
  // waited for. It must not throw. It may take long, and block: then it needs one of the worker's
  // threads (max_threads, and 16 more). The thread that delivers may be one that waits for another
  // call, in rpc_sync, wait() or backward(), and is back from there when `fn` is done, however
  // early its own deadline: what takes long is best given to a thread of its own.
  void on_ready(std::function<void()> fn) const { live().on_ready(std::move(fn)); }

  // A future of what `fn` returns; see detail::call_continuation for what it may take. When `fn`
  // returns a Future, that one's result. What `fn` throws becomes the error. The device and the
  // streams that `fn` leaves current are so for itself alone. Who waits for it
  // without a timeout may run `fn` itself, and callbacks of other futures, as in rpc_sync: hold no
  // lock that they take.
  template <class Fn>
  auto then(Fn fn) const {
    using R = decltype(detail::call_continuation<T>(fn, *this));
    using U = typename detail::Unwrapped<R>::type;
    Promise<U> promise;
    auto next = promise.future();
    if (state_ && !ready()) next.state()->comes_of(state_);
    on_ready([self = *this, fn = std::move(fn), promise]() mutable {
      const auto run = [&]() -> R {
        const KeptDevices kept;  // the thread is another's
        return detail::call_continuation<T>(fn, self);
      };
      try {
        if constexpr (IsFuture<R>::value) {
          R inner = run();
          if (inner.valid() && !inner.ready()) promise.future().state()->comes_of(inner.state());
          inner.on_ready([inner, promise]() mutable { promise.take(inner); });
        } else if constexpr (std::is_void_v<R>) {
          run();
          promise.set_value();
        } else {
          promise.set_value(run());
        }
      } catch (...) {
        promise.set_error(to_error(std::current_exception(), Code::kRemote));
      }
    });
    return next;
  }

  // A future of the same type in which `fn(const Error&)` -> T stands in for an error.
  template <class Fn>
  Future on_error(Fn fn) const {
    return then([fn = std::move(fn)](const Future& done) mutable -> T {
      if (done.has_error()) return fn(done.error());
      return done.wait();
    });
  }

  const std::shared_ptr<State>& state() const noexcept { return state_; }

 private:
  State& live() const {
    if (state_) return *state_;
    throw Error(Code::kInvalidArgument, "this Future was made empty or moved from: no result comes")
        .operation("use of a Future");
  }
  void finish(Millis timeout) const {
    if (live().ready()) return;
    const TimePoint begun = Clock::now();
    if (state_->wait(Deadline::in(timeout))) return;
    throw Error(state_->not_there(Clock::now() - begun));
  }

  std::shared_ptr<State> state_;
};

// Delivers a Future's result, once. Copies share it; when the last one goes without delivering, the
// future ends with kCancelled.
template <class T>
class Promise {
 public:
  Promise() : end_(std::make_shared<End>()) {}

  Future<T> future() const { return Future<T>(end_->state); }

  // False when a result was there already. Whoever waits for it may destroy this promise before
  // the call has returned.
  template <class... Args>
  bool set_value(Args&&... args) const {
    const auto state = end_->state;
    return state->set_value(std::forward<Args>(args)...);
  }
  bool set_error(Error error) const {
    const auto state = end_->state;
    return state->set_error(std::move(error));
  }
  bool set_exception(const std::exception_ptr& failure) const {
    return set_error(to_error(failure, Code::kRemote));
  }

  // Passes on what a ready future holds.
  bool take(const Future<T>& done) const {
    if (done.has_error()) return set_error(done.error());
    try {
      if constexpr (std::is_void_v<T>) {
        return set_value();
      } else {
        return set_value(done.value());
      }
    } catch (...) {  // a device that has failed, or a value that cannot be copied
      return set_exception(std::current_exception());
    }
  }

 private:
  struct End {
    std::shared_ptr<detail::FutureState<T>> state = std::make_shared<detail::FutureState<T>>();
    ~End() {
      if (!state->ready()) {
        state->set_error(Error(Code::kCancelled, "its promise was dropped without a result"));
      }
    }
  };
  std::shared_ptr<End> end_;
};

template <class T>
Future<std::decay_t<T>> make_ready_future(T&& value) {
  Promise<std::decay_t<T>> promise;
  promise.set_value(std::forward<T>(value));
  return promise.future();
}
inline Future<void> make_ready_future() {
  Promise<void> promise;
  promise.set_value();
  return promise.future();
}
template <class T>
Future<T> make_error_future(Error error) {
  Promise<T> promise;
  promise.set_error(std::move(error));
  return promise.future();
}

}  // namespace farspan

#include <farspan/c10d/base/collect.h>  // IWYU pragma: export
