#include <farspan/c10d/group/device_streams.h>

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>
#include <utility>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/streams/pool.h>
#include <farspan/c10d/streams/streams.h>

namespace farspan::dist {
namespace {

using c10::impl::VirtualGuardImpl;

device::Stream native(const c10::Stream& stream) {
  return {stream.device_index(),
          VirtualGuardImpl(stream.device_type()).getStreamNativeHandle(stream)};
}

class WorkOfStream final : public DeviceWork {
 public:
  explicit WorkOfStream(const c10::Stream& stream) : event_(stream.device_type()) {
    const c10::DeviceGuard guard(stream.device());
    event_.record(stream);
  }
  void wait_on_current_streams() override {
    const c10::DeviceGuard guard(event_.device());
    event_.block(current_stream_of(event_.device()));
  }

 private:
  c10::Event event_;
};

class HeldUp final : public DeviceWork {
 public:
  HeldUp(c10::Device device, std::function<void(device::Stream)> hold_up)
      : device_(device), hold_up_(std::move(hold_up)) {}
  void wait_on_current_streams() override { hold_up_(current_native_stream(device_)); }

 private:
  const c10::Device device_;
  const std::function<void(device::Stream)> hold_up_;
};

class OnStream final : public DevicePlace::Turn {
 public:
  explicit OnStream(const c10::Stream& stream) : guard_(stream) { call.stream = native(stream); }

 private:
  const c10::StreamGuard guard_;
};

class OnDevice final : public DevicePlace {
 public:
  explicit OnDevice(c10::Device device) : device_(device) {}

  std::shared_ptr<DeviceWork> work_so_far() const override {
    return std::make_shared<WorkOfStream>(current_stream_of(device_));
  }
  device::Stream current_stream() const override { return current_native_stream(device_); }
  std::shared_ptr<DeviceWork> work_of(std::function<void(device::Stream)> hold_up) const override {
    return std::make_shared<HeldUp>(device_, std::move(hold_up));
  }
  std::unique_ptr<Turn> turn() const override {
    return std::make_unique<OnStream>(current_stream_of(device_));
  }
  std::unique_ptr<Turn> turn_after(DeviceWork& after) const override {
    return on(own_stream(), after);
  }
  std::unique_ptr<Turn> turn_beside(DeviceWork& after) const override {
    return on(pool_stream(device_), after);
  }

 private:
  static std::unique_ptr<Turn> on(const c10::Stream& stream, DeviceWork& after) {
    auto turn = std::make_unique<OnStream>(stream);
    after.wait_on_current_streams();
    return turn;
  }
  const c10::Stream& own_stream() const {
    MutexLock lock(mutex_);
    if (!own_) own_.emplace(device_);
    return own_->stream();
  }

  const c10::Device device_;
  mutable Mutex mutex_;
  mutable std::optional<KeptStream> own_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace

bool takes_devices(const Backend& backend, c10::DeviceType type) {
  return backend.device_kind() == c10::DeviceTypeName(type, /*lower_case=*/true);
}

device::Stream current_native_stream(c10::Device device) {
  return native(current_stream_of(device));
}

std::shared_ptr<const DevicePlace> place_of(ProcessGroup& group, c10::Device device) {
  return group.place(device.index(), [&] { return std::make_shared<OnDevice>(device); });
}

}  // namespace farspan::dist
