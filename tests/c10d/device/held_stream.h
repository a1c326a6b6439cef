// A stream of a device that stands still.
#pragma once

#include <memory>

#include <farspan/c10d/device/arrival.h>
#include <farspan/c10d/device/devices.h>

namespace farspan::testing {

// Work of a stream that does not go on before the test says so.
class HeldStream {
 public:
  HeldStream(device::Devices& devices, device::Stream stream) {
    devices.then(stream, [go = go_] { go->wait(Deadline::never()); });
  }
  ~HeldStream() { go_->come(); }
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;

 private:
  const std::shared_ptr<device::Arrival> go_ = std::make_shared<device::Arrival>();
};

}  // namespace farspan::testing
