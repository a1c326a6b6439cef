#include <farspan/c10d/device/cuda/cuda.h>

#include "conformance/devices_of_test.h"

namespace farspan::testing {

std::string why_no_devices() { return device::why_no_cuda_devices(); }
std::unique_ptr<device::Devices> make_devices(uint64_t) { return device::make_cuda_devices(); }
int seeds() { return 1; }
void check_at_the_end(const device::Devices&) {}

}  // namespace farspan::testing
