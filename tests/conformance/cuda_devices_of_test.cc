#include <cuda_runtime_api.h>

#include <atomic>
#include <new>

#include <farspan/c10d/device/cuda/cuda.h>
#include <farspan/c10d/device/cuda/driver.h>

#include "conformance/devices_of_test.h"
#include "support/needs_gpu.h"

namespace farspan::testing {

std::string why_no_devices() { return why_no_gpu(); }
std::unique_ptr<device::Devices> make_devices(uint64_t) { return device::make_cuda_devices(); }

// By a wait of the device's: a function of the host's would hold up those of all streams. The flag
// stays, since the device may look at it still.
std::function<void()> hold_up(device::Devices& devices, device::Stream stream) {
  auto* const flag = new (devices.allocate_host(sizeof(uint32_t))) std::atomic<uint32_t>(0);
  const device::OnDevice on(stream.device);
  const device::Driver& driver = device::Driver::get();
  driver.check(driver.wait_value(static_cast<CUstream>(stream.handle),
                                 reinterpret_cast<CUdeviceptr>(flag), 1, CU_STREAM_WAIT_VALUE_EQ),
               "cuStreamWaitValue32");
  return [flag] { flag->store(1); };
}

int seeds() { return 1; }
void check_at_the_end(const device::Devices&) {}

}  // namespace farspan::testing
