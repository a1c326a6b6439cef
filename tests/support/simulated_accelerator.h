// The simulated devices of farspan/c10d/device/simulated as an accelerator of LibTorch, so that
// tensors can be on them. They can be made, copied, added and multiplied.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/device/simulated/simulated.h>

namespace farspan::testing {

inline constexpr int kSimulatedDevices = 3;

// The process's; made, and registered as its accelerator, when this is first called.
//   options, count  of the first call: so many devices, whatever the options say; some or all
device::SimulatedDevices& simulated_accelerator(device::SimulationOptions options = {},
                                                int count = kSimulatedDevices);

inline at::Device simulated(int device) {
  return {c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(device)};
}

// The calling thread's current stream of the device does nothing more until then.
void hold_up_current_stream(at::Device device, Future<void> until);

// Waits until every stream is done, and all memory that tensors have let go of is released.
void settle_simulated_devices();

// How often LibTorch has asked for pinned memory, which is ordinary memory here.
uint64_t requests_of_pinned_memory();

// What the thread allocates meanwhile is memory that other processes cannot open.
class InUnnamedMemory {
 public:
  InUnnamedMemory();
  ~InUnnamedMemory();
  InUnnamedMemory(const InUnnamedMemory&) = delete;
  InUnnamedMemory& operator=(const InUnnamedMemory&) = delete;
};

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
