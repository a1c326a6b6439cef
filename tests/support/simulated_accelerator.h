// The simulated devices of farspan/c10d/device/simulated as an accelerator of LibTorch, so that
// tensors can be on them. They can be made, copied, added and multiplied.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/device/simulated/simulated.h>

namespace farspan::testing {

// The process's; made, and registered as its accelerator, when this is first called.
//   options  of the first call
device::SimulatedDevices& simulated_accelerator(device::SimulationOptions options = {});

inline at::Device simulated(int device) {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device)};
}

// The calling thread's current stream of the device does nothing more until then.
void hold_up_current_stream(at::Device device, Future<void> until);

// Waits until every stream is done, and all memory that tensors have let go of is released.
void settle_simulated_devices();

// Makes another stream of a pool current, for a block.
class OnAnotherStream {
 public:
  explicit OnAnotherStream(at::Device device);
  ~OnAnotherStream();
  OnAnotherStream(const OnAnotherStream&) = delete;
  OnAnotherStream& operator=(const OnAnotherStream&) = delete;

 private:
  const c10::Stream before_;
};

}  // namespace farspan::testing
