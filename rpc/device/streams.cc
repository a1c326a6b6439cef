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

// What has memory on a device of a tensor.
void add_dense(std::vector<at::Tensor>& dense, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_cpu()) return;
  switch (tensor.layout()) {
    case at::kSparse:
      dense.insert(dense.end(), {tensor._indices(), tensor._values()});
      break;
    case at::kSparseCsr:
    case at::kSparseBsr:
      dense.insert(dense.end(), {tensor.crow_indices(), tensor.col_indices(), tensor.values()});
      break;
    case at::kSparseCsc:
    case at::kSparseBsc:
      dense.insert(dense.end(), {tensor.ccol_indices(), tensor.row_indices(), tensor.values()});
      break;
    default:
      if (tensor.has_storage()) dense.push_back(tensor);
  }
}

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
  std::vector<at::Tensor> dense;
  for (const at::Tensor& tensor : tensors) add_dense(dense, tensor);
  auto work = std::make_shared<RecordedWork>(type_, std::move(dense));
  for (const Used& used : used_) work->add(used.own);
  return work;
}

}  // namespace farspan
