// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// DeviceOrder: that work of accelerators, which goes on after a function has returned, comes in the
// order in which its results are passed on. What futures need of it; rpc/device has the rest.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace at {
class Tensor;
}

namespace farspan {

// Work of devices that a value is still being written by.
//
// Threading: every method from any thread.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;
  // What the calling thread's current streams are given from now on begins when that work is done.
  virtual void wait_on_current_streams() = 0;
};

// A device's default stream has the order: who passes something on has it wait for his current
// stream, and who takes something has his current stream wait for it. Costs nothing where the
// default streams are the current ones. A device that has failed tells whoever uses it next.
//
// Threading: every method from any thread; of the thread's current streams.
class DeviceOrder {
 public:
  virtual ~DeviceOrder() = default;
  virtual void publish() noexcept = 0;
  virtual void observe() noexcept = 0;
  // The tensor's memory is not used again before the current stream has come so far.
  virtual void use(const at::Tensor& tensor) noexcept = 0;
  // Of one thread; as it stands, of one that has done nothing yet.
  struct Current {
    int device = 0;                                // -1: not known
    std::vector<std::pair<int, int64_t>> streams;  // device, id; where it is not the default one
  };
  virtual Current current() noexcept = 0;
  virtual void make_current(const Current& current) noexcept = 0;

  // Null: the process has used no accelerator.
  static DeviceOrder* installed() noexcept;
  // The process's, from now on; never destroyed.
  static void install(DeviceOrder& order) noexcept;
};

inline void publish_device_work() noexcept {
  if (DeviceOrder* const order = DeviceOrder::installed()) order->publish();
}
inline void observe_device_work() noexcept {
  if (DeviceOrder* const order = DeviceOrder::installed()) order->observe();
}

// Around a function of a user's, which may leave others current: what it has given them is passed
// on, and those from before are current again.
class KeptDevices {
 public:
  KeptDevices() noexcept : order_(DeviceOrder::installed()) {
    if (order_) before_ = order_->current();
  }
  ~KeptDevices() {
    if (!order_) return;
    order_->publish();
    order_->make_current(before_);
  }
  KeptDevices(const KeptDevices&) = delete;
  KeptDevices& operator=(const KeptDevices&) = delete;

  // For now, as in a thread that has done nothing yet.
  void begin_anew() const noexcept {
    if (order_) order_->make_current({});
  }

 private:
  DeviceOrder* const order_;
  DeviceOrder::Current before_;
};

// Where a value has tensors: itself, in containers of the standard library, and in structs with
// FARSPAN_STRUCT. Of a type that is not known it has none.
template <class T>
struct TensorsIn {
  static constexpr bool kAny = false;
};
template <>
struct TensorsIn<at::Tensor> {
  static constexpr bool kAny = true;
  template <class Fn>
  static void visit(const at::Tensor& tensor, const Fn& fn) {
    fn(tensor);
  }
};

template <class T, class Fn>
void for_each_tensor(const T& value, const Fn& fn) {
  if constexpr (TensorsIn<T>::kAny) TensorsIn<T>::visit(value, fn);
}

namespace detail {

template <class List, class... Elements>
struct TensorsInElements {
  static constexpr bool kAny = (TensorsIn<Elements>::kAny || ...);
  template <class Fn>
  static void visit(const List& list, const Fn& fn) {
    for (const auto& element : list) for_each_tensor(element, fn);
  }
};
template <class Tuple, class... Elements>
struct TensorsInTuple {
  static constexpr bool kAny = (TensorsIn<Elements>::kAny || ...);
  template <class Fn>
  static void visit(const Tuple& tuple, const Fn& fn) {
    std::apply([&](const auto&... element) { (for_each_tensor(element, fn), ...); }, tuple);
  }
};

}  // namespace detail

template <class T>
struct TensorsIn<std::vector<T>> : detail::TensorsInElements<std::vector<T>, T> {};
template <class T, size_t N>
struct TensorsIn<std::array<T, N>> : detail::TensorsInElements<std::array<T, N>, T> {};
template <class K, class V>
struct TensorsIn<std::map<K, V>> : detail::TensorsInElements<std::map<K, V>, V> {};
template <class K, class V>
struct TensorsIn<std::unordered_map<K, V>>
    : detail::TensorsInElements<std::unordered_map<K, V>, V> {};
template <class A, class B>
struct TensorsIn<std::pair<A, B>>
    : detail::TensorsInTuple<std::pair<A, B>, std::remove_const_t<A>, B> {};
template <class... T>
struct TensorsIn<std::tuple<T...>> : detail::TensorsInTuple<std::tuple<T...>, T...> {};
template <class T>
struct TensorsIn<std::optional<T>> {
  static constexpr bool kAny = TensorsIn<T>::kAny;
  template <class Fn>
  static void visit(const std::optional<T>& value, const Fn& fn) {
    if (value) for_each_tensor(*value, fn);
  }
};

// Who takes `value` may use it on his current streams.
template <class T>
void take_from_devices(const T& value) noexcept {
  DeviceOrder* const order = DeviceOrder::installed();
  if (!order) return;
  order->observe();
  for_each_tensor(value, [&](const at::Tensor& tensor) { order->use(tensor); });
}

}  // namespace farspan
