// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Result: what a call gave, its type erased: to be sent back, or to be kept for remote references.
#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/future.h>
#include <farspan/c10d/values/codec_simple.h>

namespace farspan {

// What methods are called on.
struct ObjectPointer {
  const std::type_info* type;
  void* address;  // null: there is none
};

// Threading: as the value it holds; ready(), on_ready() and error() from any thread.
class Result {
 public:
  virtual ~Result() = default;

  // False while the Future that an asynchronous function returned is not ready.
  virtual bool ready() const noexcept { return true; }
  // Runs `fn` when ready: at once, or in the thread that makes it so. It must not throw.
  virtual void on_ready(std::function<void()> fn) const { fn(); }
  // Whether others may have the value, too.
  virtual bool is_shared() const noexcept { return false; }
  // When ready: why there is no value; else null.
  virtual const Error* error() const noexcept { return nullptr; }

  // The rest is for when it is ready and has no error.

  // Of the value: typeid(void) for none.
  virtual const std::type_info& type() const noexcept = 0;
  virtual void* value() = 0;
  // The value itself; for shared_ptr, unique_ptr and torch::nn's module holders what they hold.
  virtual ObjectPointer object() = 0;
  //   throws  Error kInvalidArgument: a type without a Codec, or BadValue: see Codec<T>::write
  virtual void encode(schema::Value::Builder out, Writer& writer) const = 0;
};

// The T in `result`.
//   throws  Error kInvalidArgument: it holds another type
template <class T>
T& result_cast(Result& result);

namespace detail {

[[noreturn]] void throw_not_encodable(const std::type_info& type);
[[noreturn]] void throw_wrong_result(const std::type_info& held, const std::type_info& wanted);

template <class T>
concept ModuleHolderLike = requires(T& holder) {
  typename T::ContainedType;
  { holder.is_empty() } -> std::convertible_to<bool>;
  { holder.ptr() } -> std::convertible_to<std::shared_ptr<typename T::ContainedType>>;
};

template <class T>
struct Pointee {
  using type = T;
  static void* get(T& value) noexcept { return &value; }
};
template <class T>
struct Pointee<std::shared_ptr<T>> {
  using type = std::remove_cv_t<T>;
  static void* get(std::shared_ptr<T>& value) noexcept { return const_cast<type*>(value.get()); }
};
template <class T, class D>
struct Pointee<std::unique_ptr<T, D>> {
  using type = std::remove_cv_t<T>;
  static void* get(std::unique_ptr<T, D>& value) noexcept { return const_cast<type*>(value.get()); }
};
template <ModuleHolderLike T>
struct Pointee<T> {
  using type = typename T::ContainedType;
  static void* get(T& value) noexcept { return value.is_empty() ? nullptr : value.ptr().get(); }
};

template <class T>
void encode_result(schema::Value::Builder out, const T& value, Writer& writer) {
  if constexpr (Encodable<T>) {
    Codec<T>::write(out, value, writer);
  } else {
    throw_not_encodable(typeid(T));
  }
}

template <class T>
class ValueResult final : public Result {
 public:
  // Takes what `make()` returns, in place.
  template <class Make>
  explicit ValueResult(std::in_place_t, Make&& make) : value_(std::forward<Make>(make)()) {}

  const std::type_info& type() const noexcept override { return typeid(T); }
  void* value() override { return &value_; }
  ObjectPointer object() override {
    return {&typeid(typename Pointee<T>::type), Pointee<T>::get(value_)};
  }
  void encode(schema::Value::Builder out, Writer& writer) const override {
    encode_result<T>(out, value_, writer);
  }

 private:
  T value_;
};

class VoidResult final : public Result {
 public:
  const std::type_info& type() const noexcept override { return typeid(void); }
  void* value() override { return nullptr; }
  ObjectPointer object() override { return {&typeid(void), nullptr}; }
  void encode(schema::Value::Builder out, Writer&) const override { out.setNone(); }
};

// The one that all void functions share.
const std::shared_ptr<Result>& void_result();

template <class T>
class FutureResult final : public Result {
 public:
  explicit FutureResult(Future<T> future) : future_(std::move(future)) {}

  bool ready() const noexcept override { return future_.ready(); }
  bool is_shared() const noexcept override { return future_.state().use_count() > 1; }
  void on_ready(std::function<void()> fn) const override { future_.on_ready(std::move(fn)); }
  const Error* error() const noexcept override {
    return future_.has_error() ? &future_.error() : nullptr;
  }

  const std::type_info& type() const noexcept override { return typeid(T); }
  void* value() override {
    if constexpr (std::is_void_v<T>) {
      return nullptr;
    } else {
      return &future_.value();
    }
  }
  ObjectPointer object() override {
    if constexpr (std::is_void_v<T>) {
      return {&typeid(void), nullptr};
    } else {
      return {&typeid(typename Pointee<T>::type), Pointee<T>::get(future_.value())};
    }
  }
  void encode(schema::Value::Builder out, Writer& writer) const override {
    if constexpr (std::is_void_v<T>) {
      out.setNone();
    } else {
      encode_result<T>(out, future_.value(), writer);
    }
  }

 private:
  Future<T> future_;
};

}  // namespace detail

// What methods of a T are called on: RRef<std::shared_ptr<Net>> takes those of Net.
template <class T>
using pointee_t = typename detail::Pointee<T>::type;

template <class T>
T& result_cast(Result& result) {
  if (result.type() != typeid(T)) detail::throw_wrong_result(result.type(), typeid(T));
  return *static_cast<T*>(result.value());
}

// A Result with what `make()` returns; one that becomes ready later when that is a Future. One
// allocation; none for void.
//   throws  what `make` throws; Error kInvalidArgument: a Future without a promise behind it
template <class Make>
std::shared_ptr<Result> make_result(Make&& make) {
  using R = std::remove_cvref_t<std::invoke_result_t<Make>>;
  if constexpr (std::is_void_v<R>) {
    std::forward<Make>(make)();
    return detail::void_result();
  } else if constexpr (IsFuture<R>::value) {
    R future = std::forward<Make>(make)();
    if (!future.valid()) {
      throw Error(Code::kInvalidArgument, "returned a Future that nothing will ever deliver")
          .advice("return the future() of a Promise, or of a call");
    }
    return std::make_shared<detail::FutureResult<typename R::value_type>>(std::move(future));
  } else {
    return std::make_shared<detail::ValueResult<R>>(std::in_place, std::forward<Make>(make));
  }
}

}  // namespace farspan
