#include <farspan/c10d/streams/host_copy.h>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <string>
#include <thread>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/streams/streams.h>
#include <farspan/c10d/streams/unrecorded.h>

namespace farspan {
namespace {

// Not one that calls work with: it might be held up by theirs.
c10::Stream stream_beside(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type())
      .getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

// What LibTorch says of memory and devices, as an Error.
template <class Do>
void with_devices(Do run) {
  try {
    run();
  } catch (const c10::Error& failure) {
    throw Error(Code::kUnavailable, failure.what_without_backtrace())
        .operation("copy a tensor between a device and the host");
  }
}

}  // namespace

HostCopy::HostCopy(const at::Tensor& tensor, bool read) : stream_(stream_beside(tensor.device())) {
  keep_device_order(tensor.device().type());
  const at::NoGradGuard no_grad;
  with_devices([&] {
    host_ = at::empty(tensor.sizes(), at::TensorOptions(tensor.scalar_type()).pinned_memory(true));
    follow(stream_, current_stream_of(tensor.device()));
    record_use(tensor, stream_);
    if (!read) return;
    const c10::StreamGuard guard(stream_);
    host_.copy_(tensor.resolve_conj().resolve_neg().contiguous(), /*non_blocking=*/true);
    filled_.emplace(stream_.device_type());
    filled_->record(stream_);
  });
}

// LibTorch knows no wait for an event that ends in time: looks at it, first often and then less so.
void HostCopy::wait(Deadline deadline) const {
  if (!filled_) return;
  const TimePoint begun = Clock::now();
  Micros pause(0);
  const auto is_filled = [&] {
    bool is = false;
    with_devices([&] { is = filled_->query(); });
    return is;
  };
  while (!is_filled()) {
    if (Clock::now() - begun < Micros(50)) {
      std::this_thread::yield();
      continue;
    }
    pause = std::min(pause * 2 + Micros(10), Micros(200));
    if (deadline.expired()) {
      throw Error(Code::kTimeout, "what " + stream_.device().str() + " is at was not done in time")
          .elapsed(Clock::now() - begun)
          .advice("find out what the device is busy with, or give the operation more time");
    }
    std::this_thread::sleep_for(pause);
  }
}

void HostCopy::write_back(const at::Tensor& to) const {
  const Unrecorded writing(to);
  with_devices([&] {
    follow(stream_, current_stream_of(to.device()));
    record_use(to, stream_);
    {
      const c10::StreamGuard guard(stream_);
      at::Tensor(to).copy_(host_, /*non_blocking=*/true);
    }
    follow(current_stream_of(to.device()), stream_);
  });
}

}  // namespace farspan
