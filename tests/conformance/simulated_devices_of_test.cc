#include <gmock/gmock.h>

#include <farspan/c10d/device/arrival.h>
#include <farspan/c10d/device/simulated/simulated.h>

#include "conformance/devices_of_test.h"

namespace farspan::testing {

std::string why_no_devices() { return ""; }

std::unique_ptr<device::Devices> make_devices(uint64_t seed) {
  return device::make_simulated_devices({.machine = "conformance", .seed = seed});
}

std::function<void()> hold_up(device::Devices& devices, device::Stream stream) {
  const auto is_open = std::make_shared<device::Arrival>();
  devices.then(stream, [is_open] { is_open->wait(Deadline::never()); });
  return [is_open] { is_open->come(); };
}

int seeds() { return 8; }

void check_at_the_end(const device::Devices& devices) {
  const auto& simulated = dynamic_cast<const device::SimulatedDevices&>(devices);
  EXPECT_THAT(simulated.faults(), ::testing::IsEmpty());
  for (int device = 0; device < simulated.count(); ++device) {
    EXPECT_EQ(simulated.allocated(device), 0u);
  }
  EXPECT_EQ(simulated.opened(), 0u);
  EXPECT_EQ(simulated.streams(), 0u);
  EXPECT_EQ(simulated.events(), 0u);
}

}  // namespace farspan::testing
