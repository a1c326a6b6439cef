// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Registry: the functions that other workers may call, and nothing else. register.h fills it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeindex>
#include <unordered_map>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/rpc/call/signature.h>

namespace farspan {

class Result;
struct Arguments;

struct Function {
  using Invoke = std::shared_ptr<Result> (*)(const Function&, Arguments&,
                                             const std::shared_ptr<Result>& self);

  std::string name;            // "square", "Net::forward"
  std::string signature;       // "tensor(tensor,int64)"
  uint64_t id = 0;             // function_id(name, signature)
  std::type_index class_type;  // of the object that a method is called on; else void
  Invoke invoke_unchecked;     // call it through invoke()

  bool is_method() const noexcept { return class_type != typeid(void); }
};

// The same for equal text on every machine; two workers that compute one id mean one function.
uint64_t function_id(std::string_view name, std::string_view signature) noexcept;

// A function pointer, or a method pointer as seen in one class: an inherited method has the type
// of the base, so two classes that inherit it could not be told apart by the pointer alone.
struct FunctionKey {
  std::type_index type;
  std::array<uintptr_t, 2> bits{};
  friend bool operator==(const FunctionKey&, const FunctionKey&) = default;

  template <class Fn>
  static FunctionKey of_function(Fn fn) {
    return make<typename FunctionTraits<Fn>::Pointer>(fn);
  }
  template <class C, class M>
  static FunctionKey of_method(M method) {
    return make<typename FunctionTraits<M>::template Of<C>>(method);
  }

 private:
  template <class Pointer>
  static FunctionKey make(Pointer pointer) {
    static_assert(sizeof(Pointer) <= sizeof(bits));
    FunctionKey key{typeid(Pointer)};
    std::memcpy(key.bits.data(), &pointer, sizeof(Pointer));
    return key;
  }
};

// Threading: every method from any thread. Lifetime: functions stay as long as the registry, so
// a shared object with registered functions must not be unloaded.
class Registry {
 public:
  Registry();
  ~Registry();
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  // The process's. Filled while static objects are made, before main().
  static Registry& global();

  // What is wrong with it is kept for check(): nobody could catch an exception before main().
  void add(const FunctionKey& key, std::string name, std::string signature,
           std::type_index class_type, Function::Invoke invoke);

  // Null when there is none. By id: without a lock.
  const Function* find(uint64_t id) const;
  const Function* find(std::string_view name) const;
  const Function* find(const FunctionKey& key) const;

  // Sorted by name.
  std::vector<const Function*> all() const;

  //   throws  Error kAlreadyExists: a name stands for two functions; lists all such
  void check() const;

  // Oddities that work: one function under two names (or two that the linker has folded into one).
  std::vector<std::string> notes() const;

 private:
  using ById = std::unordered_map<uint64_t, const Function*>;
  struct KeyHash {
    size_t operator()(const FunctionKey& key) const noexcept;
  };
  const ById* index() const;

  mutable Mutex mutex_;
  std::deque<Function> functions_ FARSPAN_GUARDED_BY(mutex_);
  std::map<std::string, const Function*, std::less<>> by_name_ FARSPAN_GUARDED_BY(mutex_);
  std::unordered_map<FunctionKey, const Function*, KeyHash> by_key_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<std::string> problems_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<std::string> notes_ FARSPAN_GUARDED_BY(mutex_);
  // Snapshots that may still be read; made at the first look after the last add().
  mutable std::vector<std::unique_ptr<const ById>> indexes_ FARSPAN_GUARDED_BY(mutex_);
  mutable std::atomic<const ById*> by_id_{nullptr};
};

namespace detail {
[[noreturn]] void throw_not_registered(const std::type_info& type,
                                       const std::type_info* class_type);
}  // namespace detail

// The entry of a function of this program. Fast when a thread asks for the same one again.
//   throws  Error kNotRegistered
template <class Fn>
const Function& registered_function(Fn* fn) {
  thread_local Fn* last = nullptr;
  thread_local const Function* found = nullptr;
  if (last != fn || !found) {
    const Function* function = Registry::global().find(FunctionKey::of_function(fn));
    if (!function) detail::throw_not_registered(typeid(Fn), nullptr);
    found = function;
    last = fn;
  }
  return *found;
}

// The same for a method of C, its own or an inherited one.
template <class C, class M>
const Function& registered_method(M method) {
  thread_local M last = nullptr;
  thread_local const Function* found = nullptr;
  if (last != method || !found) {
    const Function* function = Registry::global().find(FunctionKey::of_method<C>(method));
    if (!function) detail::throw_not_registered(typeid(M), &typeid(C));
    found = function;
    last = method;
  }
  return *found;
}

}  // namespace farspan
