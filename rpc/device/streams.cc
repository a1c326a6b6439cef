#include <farspan/rpc/device/streams.h>

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

namespace farspan {
namespace {

using c10::impl::VirtualGuardImpl;

thread_local OwnStreams* innermost = nullptr;

class RecordedWork final : public DeviceWork {
 public:
  RecordedWork(c10::DeviceType type, std::vector<at::Tensor> tensors)
      : guard_(type), tensors_(std::move(tensors)) {}
  ~RecordedWork() override {
    for (const auto& [event, device] : events_) guard_.destroyEvent(event, device);
  }

  void add(const c10::Stream& stream) {
    void* event = nullptr;
    guard_.record(&event, stream, stream.device_index(), c10::EventFlag::BACKEND_DEFAULT);
    events_.emplace_back(event, stream.device_index());
  }

  void wait_on_current_streams() override {
    for (const auto& [event, index] : events_) {
      const c10::Stream current = guard_.getStream({guard_.type(), index});
      guard_.block(event, current);
      for (const at::Tensor& tensor : tensors_) {
        if (tensor.device() != current.device()) continue;
        guard_.recordDataPtrOnStream(tensor.storage().data_ptr(), current);
      }
    }
  }

 private:
  const VirtualGuardImpl guard_;
  std::vector<at::Tensor> tensors_;
  std::vector<std::pair<void*, c10::DeviceIndex>> events_;
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
  const c10::Stream stream = guard.getStreamFromGlobalPool(device);
  own->used_.push_back({stream, guard.exchangeStream(stream)});
}

std::shared_ptr<DeviceWork> OwnStreams::work_so_far(std::vector<at::Tensor> tensors) {
  if (used_.empty()) return nullptr;
  auto work = std::make_shared<RecordedWork>(type_, std::move(tensors));
  for (const Used& used : used_) work->add(used.own);
  return work;
}

}  // namespace farspan
