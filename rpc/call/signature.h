// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What a function's type says: its parameters and result as they travel, whether given arguments
// fit, and the signature that both workers compare.
#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <type_traits>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/future.h>
#include <farspan/c10d/values/codec_simple.h>

namespace farspan {
namespace detail {

template <class... T>
struct Types {
  static constexpr size_t kCount = sizeof...(T);
};

// Pointer: without noexcept, so that it makes no difference. Of<D>: the same method, seen in D,
// which inherits it.
template <class Fn>
struct FunctionTraits {
  static constexpr bool kCallable = false;
};
template <class R, class... A>
struct FunctionTraits<R (*)(A...)> {
  static constexpr bool kCallable = true;
  using Return = R;
  using Params = Types<A...>;
  using Class = void;
  using Pointer = R (*)(A...);
};
template <class R, class... A>
struct FunctionTraits<R (*)(A...) noexcept> : FunctionTraits<R (*)(A...)> {};

#define FARSPAN_METHOD_TRAITS(qualifiers)                   \
  template <class R, class C, class... A>                   \
  struct FunctionTraits<R (C::*)(A...) qualifiers> {        \
    static constexpr bool kCallable = true;                 \
    using Return = R;                                       \
    using Params = Types<A...>;                             \
    using Class = C;                                        \
    template <class D>                                      \
    using Of = R (D::*)(A...) qualifiers;                   \
  };                                                        \
  template <class R, class C, class... A>                   \
  struct FunctionTraits<R (C::*)(A...) qualifiers noexcept> \
      : FunctionTraits<R (C::*)(A...) qualifiers> {}
FARSPAN_METHOD_TRAITS();
FARSPAN_METHOD_TRAITS(const);
FARSPAN_METHOD_TRAITS(&);
FARSPAN_METHOD_TRAITS(const&);
#undef FARSPAN_METHOD_TRAITS

// A parameter as it is kept between decoding and the call.
template <class A>
using ByValue = std::remove_cvref_t<A>;

// What a function would write through such a parameter stayed at its worker.
template <class A>
concept InputOnly = !std::is_pointer_v<std::remove_reference_t<A>> &&
                    (!std::is_lvalue_reference_v<A> || std::is_const_v<std::remove_reference_t<A>>);

template <class Params, class... Args>
struct Converts : std::false_type {};
template <class... P, class... Args>
requires(sizeof...(P) == sizeof...(Args)) struct Converts<Types<P...>, Args...>
    : std::bool_constant<(std::convertible_to<Args, ByValue<P>> && ...)> {
};

}  // namespace detail

template <class Fn>
using FunctionTraits = detail::FunctionTraits<std::decay_t<Fn>>;

// Arguments of these types can be passed to a function, or a pointer to one, of type Fn. Default
// arguments do not count: they are no part of the type, and do not travel.
template <class Fn, class... Args>
concept CallableWith = FunctionTraits<Fn>::kCallable && std::is_pointer_v<std::decay_t<Fn>> &&
    detail::Converts<typename FunctionTraits<Fn>::Params, Args...>::value;

// The same for a method M of C or of one of its bases.
template <class C, class M, class... Args>
concept MethodCallableWith = std::is_member_function_pointer_v<std::decay_t<M>> &&
    FunctionTraits<M>::kCallable && std::is_base_of_v<typename FunctionTraits<M>::Class, C> &&
    detail::Converts<typename FunctionTraits<M>::Params, Args...>::value;

// What a call gives: the return type by value; T for a function that returns Future<T>.
template <class Fn>
using result_of_t =
    typename detail::Unwrapped<std::remove_cvref_t<typename FunctionTraits<Fn>::Return>>::type;

// The result can be sent back. If not, the function is for remote(): its result stays there.
template <class Fn>
concept ResultTravels = std::is_void_v<result_of_t<Fn>> || Encodable<result_of_t<Fn>>;

// "tensor", "list<int64>"; "none" for void; "object Net" for what has no Codec.
template <class T>
std::string type_name_of() {
  if constexpr (std::is_void_v<T>) {
    return "none";
  } else if constexpr (Encodable<T>) {
    return Codec<T>::type_name();
  } else {
    return "object " + demangle(typeid(T).name());
  }
}

namespace detail {
template <class... A>
std::string join_type_names(Types<A...>) {
  std::string names;
  ((names += (names.empty() ? "" : ",") + type_name_of<ByValue<A>>()), ...);
  return names;
}
}  // namespace detail

// "tensor(tensor,int64)". The same whether a parameter is taken by value or by reference.
template <class Fn>
std::string signature_of() {
  return type_name_of<result_of_t<Fn>>() + "(" +
         detail::join_type_names(typename FunctionTraits<Fn>::Params{}) + ")";
}

}  // namespace farspan
