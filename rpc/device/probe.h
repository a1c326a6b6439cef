// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What a way from device to device is tried with: a number of one, which the other one copies.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <farspan/c10d/device/exports.h>
#include <farspan/rpc/device/device_room.h>
#include <farspan/rpc/wire/frame.h>

namespace farspan {

// What a DEVICE_PROBE says, and its answer.
struct Probe {
  std::optional<device::Export> from;  // absent between workers of one process
  int there = 0;
  uint64_t number = 0;
  bool if_in_use = false;

  // Both throw Error kCorrupt.
  static Probe of(const wire::InFrame& frame);
  static bool was_tried(const wire::InFrame& answer);
};

// A number of a device and one of the processor, and a stream of their own: what others have given
// the device does not hold up its copies. Its end waits for the device, in a task.
class Spot {
 public:
  static constexpr size_t kBytes = sizeof(uint64_t);

  static std::shared_ptr<Spot> make(DeviceRoom& room, int device);
  Spot(device::Devices& devices, int device);
  ~Spot();
  Spot(const Spot&) = delete;
  Spot& operator=(const Spot&) = delete;

  device::Stream stream() const noexcept { return stream_; }
  void* memory() const noexcept { return memory_; }
  uint64_t& number() const noexcept { return *number_; }
  void write() { devices_.copy(stream_, memory_, number_, kBytes); }
  void read() { devices_.copy(stream_, number_, memory_, kBytes); }

 private:
  device::Devices& devices_;
  const device::Stream stream_;
  void* memory_ = nullptr;
  uint64_t* number_ = nullptr;
};

}  // namespace farspan
