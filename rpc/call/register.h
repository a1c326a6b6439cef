// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Registering what other workers may call, at namespace scope of any source file that is linked
// into the program:
//
//   FARSPAN_REGISTER(square, make_net);
//   FARSPAN_REGISTER_METHODS(Net, forward, train);    // own methods and inherited ones
//   FARSPAN_REGISTER_AS("add.int", static_cast<int (*)(int, int)>(add));      // of overloads
//   FARSPAN_REGISTER_AS("scale.double", scale<double>);                       // of a template
//   FARSPAN_REGISTER_METHOD_AS("Net::forward.mask", Net,
//                              static_cast<Tensor (Net::*)(Tensor, Tensor)>(&Net::forward));
//
// Functions take their arguments by value, const reference or rvalue reference, of types that have
// a Codec (c10d/values/codec.h), and return by value, or a Future for asynchronous ones. The name
// is what stands in the macro: functions called alike in two namespaces need FARSPAN_REGISTER_AS,
// and init_rpc reports those that clash. Default arguments do not travel. In a static archive, the
// linker leaves out a file that nobody refers to, and its registrations with it: list such files in
// the program itself, or link the archive as a whole.
//
// Threading: registering happens while static objects are made: before main(), or when a shared
//            object is loaded; it takes a lock, and may overlap with calls. The functions are
//            called from any of the worker's threads, several at once.
// Throws nothing: nobody could catch it. Two functions of one name make init_rpc throw
// kAlreadyExists; one that is not registered makes the call throw kNotRegistered.
#pragma once

#include <string>
#include <type_traits>

#include <farspan/c10d/values/codec.h>
#include <farspan/c10d/values/for_each.h>
#include <farspan/rpc/call/invoke.h>
#include <farspan/rpc/call/registry.h>

#define FARSPAN_REGISTER(...) \
  FARSPAN_REGISTRATIONS(FARSPAN_FOR_EACH(FARSPAN_REGISTER_ONE, , __VA_ARGS__))
#define FARSPAN_REGISTER_AS(name, ...) \
  FARSPAN_REGISTRATIONS(::farspan::detail::register_function<(__VA_ARGS__)>(name))
#define FARSPAN_REGISTER_METHODS(Class, ...) \
  FARSPAN_REGISTRATIONS(FARSPAN_FOR_EACH(FARSPAN_REGISTER_ONE_METHOD, Class, __VA_ARGS__))
#define FARSPAN_REGISTER_METHOD_AS(name, Class, ...) \
  FARSPAN_REGISTRATIONS(::farspan::detail::register_method<Class, (__VA_ARGS__)>(name))

#define FARSPAN_REGISTER_ONE(unused, fn) ::farspan::detail::register_function<&fn>(#fn)
#define FARSPAN_REGISTER_ONE_METHOD(Class, method) \
  ::farspan::detail::register_method<Class, &Class::method>(#Class "::" #method)

#define FARSPAN_REGISTRATIONS(...) FARSPAN_REGISTRATIONS_NAMED(__COUNTER__, __VA_ARGS__)
#define FARSPAN_REGISTRATIONS_NAMED(number, ...) FARSPAN_REGISTRATIONS_JOIN(number, __VA_ARGS__)
#define FARSPAN_REGISTRATIONS_JOIN(number, ...) \
  [[maybe_unused]] static const bool farspan_registered_##number[] = {__VA_ARGS__}

namespace farspan::detail {

// Tells at compile time what is wrong with a function, in words.
template <class Fn>
struct RegistrationCheck {
  using Traits = FunctionTraits<Fn>;
  static_assert(
      Traits::kCallable,
      "only functions and methods can be registered (not volatile, not &&, no C varargs)");

  template <class... A>
  static constexpr bool check(Types<A...>) {
    static_assert((InputOnly<A> && ...),
                  "a registered function takes no pointers and no references to non-const: what it "
                  "writes there would not come back");
    static_assert((Encodable<ByValue<A>> && ...),
                  "a parameter's type has no Codec: use FARSPAN_STRUCT, or include its header");
    return true;
  }
  static_assert(check(typename Traits::Params{}));
  static_assert(!std::is_pointer_v<std::remove_cvref_t<typename Traits::Return>>,
                "a registered function returns no bare pointer: nobody would own it");
};

// Both into `registry`, for tests; programs use the macros.
template <auto Fn>
bool register_function(std::string name, Registry& registry = Registry::global()) {
  using Pointer = decltype(Fn);
  static_assert(sizeof(RegistrationCheck<Pointer>) > 0);
  registry.add(FunctionKey::of_function(Fn), std::move(name), signature_of<Pointer>(), typeid(void),
               &run<Fn, void>);
  return true;
}

template <class Class, auto Method>
bool register_method(std::string name, Registry& registry = Registry::global()) {
  using Pointer = decltype(Method);
  static_assert(sizeof(RegistrationCheck<Pointer>) > 0);
  static_assert(std::is_base_of_v<typename FunctionTraits<Pointer>::Class, Class>,
                "the method belongs to another class");
  registry.add(FunctionKey::of_method<Class>(Method), std::move(name), signature_of<Pointer>(),
               typeid(Class), &run<Method, Class>);
  return true;
}

}  // namespace farspan::detail
