// The kind of devices that device_conformance_test.cc is linked with: it runs the same cases on
// each.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <farspan/c10d/device/devices.h>

namespace farspan::testing {

// Why there are none here; empty: there are.
std::string why_no_devices();
// The same ones in each process.
std::unique_ptr<device::Devices> make_devices(uint64_t seed);
// What the stream is given from now on is not done before the returned function is called, which
// must be.
std::function<void()> hold_up(device::Devices& devices, device::Stream stream);
class Gate {
 public:
  Gate(device::Devices& devices, device::Stream stream) : open_(hold_up(devices, stream)) {}
  ~Gate() { open(); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  void open() const { open_(); }

 private:
  const std::function<void()> open_;
};
// How often a case is worth running.
int seeds();
// Of `devices`, before they go: what has gone wrong and nobody saw, and what was left behind.
void check_at_the_end(const device::Devices& devices);

}  // namespace farspan::testing
