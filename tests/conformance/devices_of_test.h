// The kind of devices that device_conformance_test.cc is linked with: it runs the same cases on
// each.
#pragma once

#include <memory>
#include <string>

#include <farspan/c10d/device/devices.h>

namespace farspan::testing {

// Why there are none here; empty: there are.
std::string why_no_devices();
// The same ones in each process.
std::unique_ptr<device::Devices> make_devices(uint64_t seed);
// How often a case is worth running.
int seeds();
// Of `devices`, before they go: what has gone wrong and nobody saw, and what was left behind.
void check_at_the_end(const device::Devices& devices);

}  // namespace farspan::testing
