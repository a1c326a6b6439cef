// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Streams of LibTorch: the current ones of a thread, and those that calls work with.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <memory>
#include <utility>
#include <vector>

#include <farspan/c10d/device/devices.h>
#include <farspan/rpc/device_carrier.h>

namespace farspan {

// The calling thread's current stream of a device.
device::Stream current_stream(c10::Device device);

// Threading: as DeviceStreams says.
class OwnStreams final : public DeviceStreams {
 public:
  explicit OwnStreams(c10::DeviceType type);
  ~OwnStreams() override;
  OwnStreams(const OwnStreams&) = delete;
  OwnStreams& operator=(const OwnStreams&) = delete;

  // The current stream of `device` is from now on one of a pool, which follows the default one;
  // nothing when there are no OwnStreams in this thread, or when the device has one.
  static void use(c10::Device device);

  std::shared_ptr<DeviceWork> work_so_far(std::vector<at::Tensor> tensors) override;

 private:
  struct Used {
    c10::Stream own, before;
  };

  const c10::DeviceType type_;
  OwnStreams* const outer_;
  std::vector<Used> used_;
};

}  // namespace farspan
