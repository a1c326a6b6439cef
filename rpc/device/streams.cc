#include <farspan/rpc/device/streams.h>

#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/streams/pool.h>
#include <farspan/c10d/streams/streams.h>

namespace farspan {
namespace {

using c10::impl::VirtualGuardImpl;

thread_local OwnStreams* innermost = nullptr;

class RecordedWork final : public DeviceWork {
 public:
  explicit RecordedWork(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {}

  void add(const c10::Stream& stream) {
    const c10::DeviceGuard guard(stream.device());
    events_.emplace_back(stream.device_type()).record(stream);
  }

  void wait_on_current_streams() override {
    try {
      for (const c10::Event& event : events_) {
        const c10::DeviceGuard guard(event.device());
        const c10::Stream current = current_stream_of(event.device());
        event.block(current);
        for (const at::Tensor& tensor : tensors_) {
          if (tensor.device() == current.device()) record_use(tensor, current);
        }
      }
    } catch (const c10::Error& failure) {
      throw Error(Code::kUnavailable, failure.what_without_backtrace())
          .operation("wait for a device");
    }
  }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<c10::Event> events_;
};

}  // namespace

device::Stream current_stream(c10::Device device) {
  const VirtualGuardImpl guard(device.type());
  return {device.index(), guard.getStreamNativeHandle(guard.getStream(device))};
}

OwnStreams::OwnStreams(c10::DeviceType type) : type_(type), outer_(innermost) { innermost = this; }

OwnStreams::~OwnStreams() {
  innermost = outer_;
  const VirtualGuardImpl guard(type_);
  for (const Used& used : used_) guard.exchangeStream(used.before);
}

void OwnStreams::use(c10::Device device) {
  OwnStreams* const own = innermost;
  if (!own) return;
  const auto has_one = [&](const Used& used) { return used.own.device() == device; };
  if (std::ranges::any_of(own->used_, has_one)) return;
  const VirtualGuardImpl guard(device.type());
  const c10::Stream stream = pool_stream(device);
  own->used_.push_back({stream, guard.exchangeStream(stream)});
  follow(stream, guard.getDefaultStream(device));
}

std::shared_ptr<DeviceWork> OwnStreams::work_so_far(std::vector<at::Tensor> tensors) {
  if (used_.empty()) return nullptr;
  std::erase_if(tensors, [](const at::Tensor& one) { return !one.defined() || one.is_cpu(); });
  auto work = std::make_shared<RecordedWork>(std::move(tensors));
  for (const Used& used : used_) work->add(used.own);
  return work;
}

}  // namespace farspan
