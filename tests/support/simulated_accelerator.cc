#include "support/simulated_accelerator.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <farspan/rpc/device/accelerator.h>

namespace farspan::testing {
namespace {

using c10::DeviceIndex;
using c10::DeviceType;

constexpr DeviceType kType = DeviceType::PrivateUse1;
constexpr int kDevices = 2;
constexpr int kStreams = 9;  // of each device: the default one, and a pool

std::shared_ptr<device::SimulatedDevices>& shared_devices() {
  static auto* devices = new std::shared_ptr<device::SimulatedDevices>;  // until the process ends
  return *devices;
}
device::SimulatedDevices& devices() { return *shared_devices(); }

thread_local DeviceIndex current_device = 0;
thread_local std::array<int, kDevices> current_streams{};

device::Stream stream_of(DeviceIndex device, int number) {
  static std::mutex mutex;
  static auto* made = new std::array<std::array<device::Stream, kStreams>, kDevices>;
  const std::lock_guard lock(mutex);
  device::Stream& stream = (*made)[static_cast<size_t>(device)][static_cast<size_t>(number)];
  if (!stream.handle) stream = devices().new_stream(device);
  return stream;
}

c10::Stream handle_of(c10::Device device, int number) {
  return c10::Stream(c10::Stream::UNSAFE, device, number);
}

// As LibTorch's allocators do: memory that is let go of can be used again when the streams that
// have used it are done. By looks of a thread of its own, since here it is released, and poisoned.
class StreamOrderedAllocator final : public c10::Allocator {
 public:
  static StreamOrderedAllocator& one() {
    static auto* allocator = new StreamOrderedAllocator;
    return *allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    const DeviceIndex device = current_device;
    void* const memory = bytes == 0 ? nullptr : devices().allocate(device, bytes);
    if (memory) use(memory, device, current_streams[static_cast<size_t>(device)]);
    return {memory, memory, [](void* gone) { one().let_go(gone); }, c10::Device(kType, device)};
  }
  void copy_data(void*, const void*, size_t) const override {
    throw std::logic_error("no such copies");
  }

  void use(void* memory, DeviceIndex device, int stream) {
    const std::lock_guard lock(mutex_);
    used_by_[memory].emplace(device, stream);
  }

  void settle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return gone_.empty() && !releasing_; });
  }

 private:
  using Users = std::set<std::pair<DeviceIndex, int>>;

  StreamOrderedAllocator() {
    std::thread([this] { release_all(); }).detach();
  }

  void let_go(void* memory) {
    if (!memory) return;
    const std::lock_guard lock(mutex_);
    const auto users = used_by_.extract(memory);
    gone_.emplace_back(memory, users.mapped());
    changed_.notify_all();
  }

  [[noreturn]] void release_all() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !gone_.empty(); });
      const auto [memory, users] = std::move(gone_.front());
      gone_.pop_front();
      releasing_ = true;
      lock.unlock();
      for (const auto& [device, stream] : users) {
        devices().synchronize(stream_of(device, stream), Deadline::never());
      }
      devices().release(memory);
      lock.lock();
      releasing_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool releasing_ = false;
  std::map<void*, Users> used_by_;
  std::deque<std::pair<void*, Users>> gone_;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  Guard() = default;
  DeviceType type() const override { return kType; }
  c10::Device getDevice() const override { return {kType, current_device}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, std::exchange(current_device, device.index())};
  }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  DeviceIndex deviceCount() const noexcept override { return kDevices; }

  static DeviceIndex index_of(c10::Device device) {
    return device.has_index() ? device.index() : current_device;
  }
  c10::Stream getStream(c10::Device device) const override {
    const DeviceIndex index = index_of(device);
    return handle_of({kType, index}, current_streams[static_cast<size_t>(index)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return handle_of({kType, index_of(device)}, 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    static std::atomic<int> turn{0};
    return handle_of({kType, index_of(device)}, 1 + turn.fetch_add(1) % (kStreams - 1));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    int& current = current_streams[static_cast<size_t>(stream.device_index())];
    return handle_of(stream.device(), std::exchange(current, static_cast<int>(stream.id())));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return native(stream).handle;
  }
  static device::Stream native(const c10::Stream& stream) {
    return stream_of(stream.device_index(), static_cast<int>(stream.id()));
  }

  void record(void** event, const c10::Stream& stream, const DeviceIndex device,
              const c10::EventFlag) const override {
    if (!*event) *event = devices().new_event(device, device::Reach::kThisProcess);
    devices().record(*event, native(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    devices().wait(native(stream), event);
  }
  bool queryEvent(void* event) const override { return devices().has_come(event); }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    devices().end_event(event);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    devices().synchronize(native(stream), Deadline::never());
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (!data.get()) return;
    StreamOrderedAllocator::one().use(data.get(), stream.device_index(),
                                      static_cast<int>(stream.id()));
  }
};

at::Tensor make_empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                      std::optional<at::Layout>, std::optional<at::Device> device,
                      std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(*device);
  return at::detail::empty_generic(sizes, &StreamOrderedAllocator::one(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor make_empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                              std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                              std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(*device);
  return at::detail::empty_strided_generic(sizes, strides, &StreamOrderedAllocator::one(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::kFloat));
}

// Bytes as they lie: both must be of one type and of the same strides. With the CPU at one end it
// waits, as LibTorch's does.
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool) {
  TORCH_CHECK(
      to.dtype() == from.dtype() && to.sizes() == from.sizes() && to.strides() == from.strides(),
      "the simulated devices copy like to like only");
  if (to.numel() == 0) return to;
  const at::Device device = to.is_cpu() ? from.device() : to.device();
  const c10::impl::VirtualGuardImpl guard(kType);
  const device::Stream stream = Guard::native(guard.getStream(device));
  devices().copy(stream, to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
  if (to.is_cpu() || from.is_cpu()) devices().synchronize(stream, Deadline::never());
  return to;
}

}  // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", make_empty);
  library.impl("empty_strided", make_empty_strided);
  library.impl("copy_", copy);
}

device::SimulatedDevices& simulated_accelerator(device::SimulationOptions options) {
  static std::once_flag once;
  std::call_once(once, [&] {
    options.devices = kDevices;
    shared_devices() = device::make_simulated_devices(options);
    register_accelerator([] { return Accelerator{kType, shared_devices(), ""}; });
  });
  return devices();
}

void settle_simulated_devices() {
  for (DeviceIndex device = 0; device < kDevices; ++device) {
    for (int number = 0; number < kStreams; ++number) {
      devices().synchronize(stream_of(device, number), Deadline::never());
    }
  }
  StreamOrderedAllocator::one().settle();
}

OnAnotherStream::OnAnotherStream(at::Device device)
    : before_([&] {
        const c10::impl::VirtualGuardImpl guard(kType);
        return guard.exchangeStream(guard.getStreamFromGlobalPool(device));
      }()) {}

OnAnotherStream::~OnAnotherStream() { c10::impl::VirtualGuardImpl(kType).exchangeStream(before_); }

}  // namespace farspan::testing
