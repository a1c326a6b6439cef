// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Calling LibTorch's own operators by schema name, "aten::add.Tensor", through its dispatcher.
//
// Threading: any thread.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include <farspan/c10d/values/codec.h>
#include <farspan/rpc/call/invoke.h>

namespace farspan {

// Runs an operator. Arguments go by position in its schema; those left out at the end take their
// defaults. Not served are operators that trust their arguments with memory, show memory that
// nobody has written, or reach files: private ones, sparse constructors, unsafe, empty, from_file,
// set_, resize and the like.
//   returns  nothing, a Tensor, int64_t, double, bool, or a std::vector<Tensor> for several
//   throws   Error kNotRegistered: there is none of this name, or it is not served;
//            kInvalidArgument: names the argument; kRemote: what the operator said
std::shared_ptr<Result> invoke_builtin(std::string_view op, Arguments& arguments);

namespace detail {

// Builtins have no C++ signature at the caller: numbers and text go as the widest of their kind.
template <class A>
auto as_builtin_argument(A&& argument) {
  using T = std::remove_cvref_t<A>;
  if constexpr (std::same_as<T, bool>) {
    return argument;
  } else if constexpr (std::integral<T>) {
    return static_cast<int64_t>(argument);
  } else if constexpr (std::floating_point<T>) {
    return static_cast<double>(argument);
  } else if constexpr (std::same_as<T, std::nullopt_t>) {
    return std::monostate{};
  } else if constexpr (!Encodable<T> && std::convertible_to<A, std::string>) {
    return std::string(argument);
  } else {
    static_assert(Encodable<T>, "this argument's type has no Codec");
    return T(std::forward<A>(argument));
  }
}

}  // namespace detail

// Writes arguments for invoke_builtin(): tensors, numbers, bools, strings, std::nullopt, dtypes,
// devices, and vectors of tensors, int64_t, double.
//   throws  Error kInvalidArgument
template <class... Args>
void write_builtin_arguments(std::string_view op, schema::Payload::Builder payload, Writer& writer,
                             Args&&... arguments) {
  auto values = guard_write([&] { return payload.initValues(sizeof...(Args)); });
  unsigned i = 0;
  (..., (write_value(values[i], detail::as_builtin_argument(std::forward<Args>(arguments)), writer,
                     "argument " + std::to_string(i + 1) + " of '" + std::string(op) + "'"),
         ++i));
}

}  // namespace farspan
