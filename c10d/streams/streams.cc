#include <farspan/c10d/streams/streams.h>

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <atomic>
#include <string>

#include <farspan/c10d/base/log.h>

namespace farspan {
namespace {

using c10::impl::VirtualGuardImpl;

// Of all devices of one kind.
class DefaultStreams final : public DeviceOrder {
 public:
  explicit DefaultStreams(c10::DeviceType type) noexcept : type_(type) {}

  void publish() noexcept override {
    at_other_streams(
        [](const c10::Stream& current, const c10::Stream& usual) { follow(usual, current); });
  }
  void observe() noexcept override {
    at_other_streams(
        [](const c10::Stream& current, const c10::Stream& usual) { follow(current, usual); });
  }
  void use(const at::Tensor& tensor) noexcept override {
    unless_failed([&] {
      if (!tensor.defined() || tensor.device().type() != type_) return;
      record_use(tensor, current_stream_of(tensor.device()));
    });
  }
  Current current() noexcept override {
    Current now{-1, {}};
    at_other_streams([&](const c10::Stream& current, const c10::Stream&) {
      now.streams.emplace_back(current.device_index(), current.id());
    });
    unless_failed([&] { now.device = VirtualGuardImpl(type_).getDevice().index(); });
    return now;
  }
  void make_current(const Current& wanted) noexcept override {
    const VirtualGuardImpl guard(type_);
    at_other_streams(
        [&](const c10::Stream&, const c10::Stream& usual) { guard.exchangeStream(usual); });
    unless_failed([&] {
      for (const auto& [device, id] : wanted.streams) {
        const auto index = static_cast<c10::DeviceIndex>(device);
        guard.exchangeStream(c10::Stream(c10::Stream::UNSAFE, {type_, index}, id));
      }
      // Not without need: to set CUDA's device makes a context there.
      if (wanted.device >= 0 && guard.getDevice().index() != wanted.device) {
        guard.uncheckedSetDevice({type_, static_cast<c10::DeviceIndex>(wanted.device)});
      }
    });
  }

 private:
  // Whoever uses a device that has failed is told by it.
  template <class Do>
  static void unless_failed(Do run) noexcept {
    try {
      run();
    } catch (const std::exception& failure) {
      static std::atomic<bool> is_told{false};
      if (is_told.exchange(true)) return;
      log(LogLevel::kWarning, "device", std::string("a device has failed: ") + failure.what());
    }
  }
  // Calls `fn(current, default)` for each device where these differ.
  template <class Fn>
  void at_other_streams(Fn fn) noexcept {
    const VirtualGuardImpl guard(type_);
    for (c10::DeviceIndex index = 0; index < guard.deviceCount(); ++index) {
      unless_failed([&] {
        const c10::Stream current = guard.getStream({type_, index});
        const c10::Stream usual = guard.getDefaultStream({type_, index});
        if (current != usual) fn(current, usual);
      });
    }
  }

  const c10::DeviceType type_;
};

}  // namespace

void follow(const c10::Stream& later, const c10::Stream& earlier) {
  if (later == earlier) return;
  // Else events are made with, and left on, device 0.
  const c10::DeviceGuard guard(earlier.device());
  c10::Event event(earlier.device_type());
  event.record(earlier);
  event.block(later);
}

c10::Stream current_stream_of(c10::Device device) {
  return VirtualGuardImpl(device.type()).getStream(device);
}

std::vector<at::Tensor> dense_parts(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return {};
  switch (tensor.layout()) {
    case at::kSparse:
      return {tensor._indices(), tensor._values()};
    case at::kSparseCsr:
    case at::kSparseBsr:
      return {tensor.crow_indices(), tensor.col_indices(), tensor.values()};
    case at::kSparseCsc:
    case at::kSparseBsc:
      return {tensor.ccol_indices(), tensor.row_indices(), tensor.values()};
    default:
      if (!tensor.has_storage()) return {};
      return {tensor};
  }
}

void record_use(const at::Tensor& tensor, const c10::Stream& by) {
  const VirtualGuardImpl guard(by.device_type());
  for (const at::Tensor& part : dense_parts(tensor)) {
    guard.recordDataPtrOnStream(part.storage().data_ptr(), by);
  }
}

void keep_device_order(c10::DeviceType type) {
  static DefaultStreams* const order = new DefaultStreams(type);  // a process has one type
  DeviceOrder::install(*order);
}

}  // namespace farspan
