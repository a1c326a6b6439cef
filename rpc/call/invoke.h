// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Both ends of a call's values: writing the caller's arguments, running the function at the callee,
// reading the result.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <farspan/c10d/values/codec_simple.h>
#include <farspan/rpc/call/registry.h>
#include <farspan/rpc/call/result.h>
#include <farspan/rpc/call/signature.h>

namespace farspan {

// The arguments as they came.
struct Arguments {
  capnp::List<schema::Value>::Reader values;
  Reader& reader;
};

// Decodes the arguments and calls the function. References and rvalues among its parameters live
// until it returns; an asynchronous function keeps what it needs longer by taking copies.
//   self     what a method is called on; kept until its result is ready
//   returns  the result; not ready yet when the function returned a Future that is not
//   throws   Error only: kInvalidArgument (names function, position, both types) and kCorrupt
//   before
//            the function ran; what it threw itself: an Error as it is, anything else as kRemote
//            with the type's name
std::shared_ptr<Result> invoke(const Function& function, Arguments& arguments,
                               const std::shared_ptr<Result>& self = nullptr);

namespace detail {

[[noreturn]] void throw_bad_argument(const Function& function, size_t index, const BadValue& bad);
[[noreturn]] void throw_bad_result(const Function& function, const BadValue& bad);
// For a catch block: throws what the user's function has thrown, as an Error.
[[noreturn]] void rethrow_thrown_by(const Function& function);
void expect_argument_count(const Function& function, const Arguments& arguments, size_t count);
void* object_for(const Function& function, Result* self);

template <class T>
T read_argument(const Function& function, Arguments& arguments, size_t index) {
  try {
    return Codec<T>::read(arguments.values[static_cast<unsigned>(index)], arguments.reader);
  } catch (const BadValue& bad) {
    throw_bad_argument(function, index, bad);
  }
}

template <class T>
inline constexpr bool kIsTensors = std::is_same_v<T, at::Tensor>;
template <class T>
inline constexpr bool kIsTensors<std::vector<T>> = kIsTensors<T>;
template <class T>
inline constexpr bool kIsTensors<std::optional<T>> = kIsTensors<T>;

template <class P, class A>
void write_argument(const Function& function, schema::Value::Builder out, size_t index,
                    A&& argument, Writer& writer) {
  try {
    // Binds to the argument itself when it has the parameter's type; else to what it converts to.
    const P& value = std::forward<A>(argument);
    Codec<P>::write(out, value, writer);
    // Tensors that the caller gives up are the writer's alone from here on.
    if constexpr (kIsTensors<P> && std::is_same_v<A, P>) P given_up(std::move(argument));
  } catch (const BadValue& bad) {
    throw_bad_argument(function, index, bad);
  }
}

template <class... P, class... Args>
void write_as(Types<P...>, const Function& function, schema::Payload::Builder payload,
              Writer& writer, Args&&... arguments) {
  if constexpr (sizeof...(P) > 0) {
    guard_write([&] {
      auto values = payload.initValues(sizeof...(P));
      unsigned i = 0;
      (...,
       (write_argument<ByValue<P>>(function, values[i], i, std::forward<Args>(arguments), writer),
        ++i));
    });
  }
}

template <auto Fn, class Class, class... A>
std::shared_ptr<Result> run_with(Types<A...>, const Function& function, Arguments& arguments,
                                 [[maybe_unused]] const std::shared_ptr<Result>& self) {
  expect_argument_count(function, arguments, sizeof...(A));
  return [&]<size_t... I>(std::index_sequence<I...>) {
    std::tuple<ByValue<A>...> values = guard_read([&] {
      return std::tuple<ByValue<A>...>{read_argument<ByValue<A>>(function, arguments, I)...};
    });
    if (ValueScope* scope = arguments.reader.scope()) scope->before_run();
    const auto call = [&]() -> decltype(auto) {
      // A&&: by value and by rvalue reference move from the tuple, by const reference do not.
      if constexpr (std::is_void_v<Class>) {
        return Fn(static_cast<A&&>(std::get<I>(values))...);
      } else {
        Class& object = *static_cast<Class*>(object_for(function, self.get()));
        return (object.*Fn)(static_cast<A&&>(std::get<I>(values))...);
      }
    };
    try {
      return make_result(call);
    } catch (...) {
      rethrow_thrown_by(function);
    }
  }
  (std::index_sequence_for<A...>());
}

template <auto Fn, class Class>
std::shared_ptr<Result> run(const Function& function, Arguments& arguments,
                            const std::shared_ptr<Result>& self) {
  using Params = typename FunctionTraits<decltype(Fn)>::Params;
  return run_with<Fn, Class>(Params{}, function, arguments, self);
}

}  // namespace detail

// Writes what the caller passed, converted to Fn's parameters as in a local call. Tensors are added
// to `writer`; write_tensors() sends them.
//   throws  Error kInvalidArgument: names the function and the position
template <class Fn, class... Args>
void write_arguments(const Function& function, schema::Payload::Builder payload, Writer& writer,
                     Args&&... arguments) {
  detail::write_as(typename FunctionTraits<Fn>::Params{}, function, payload, writer,
                   std::forward<Args>(arguments)...);
}

// Writes a result, which is ready and has no error.
//   throws  Error kInvalidArgument: it cannot travel
void write_result(const Function& function, schema::Payload::Builder payload, Writer& writer,
                  const Result& result);

// Reads the result of a function that gives an R.
//   throws  Error kInvalidArgument, kCorrupt
template <class R>
R read_result(const Function& function, schema::Payload::Reader payload, Reader& reader) {
  if constexpr (!std::is_void_v<R>) {
    try {
      return guard_read([&] {
        const auto values = payload.getValues();
        if (values.size() != 1) throw BadValue(Code::kCorrupt, "an answer without a value");
        return Codec<R>::read(values[0], reader);
      });
    } catch (const BadValue& bad) {
      detail::throw_bad_result(function, bad);
    }
  }
}

}  // namespace farspan
