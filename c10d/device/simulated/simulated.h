// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// SimulatedDevices: devices that are threads, for tests. What goes well on real ones by luck only
// fails here: work comes late and in any order that streams and events allow, memory that was
// released is poisoned, and whoever touches device memory without copy() is ended by a signal.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <farspan/c10d/device/devices.h>

namespace farspan::device {

struct SimulationOptions {
  int devices = 2;
  // Of which this process sees these, in this order: device 0 is the first. Empty: all.
  std::vector<int> visible = {};
  // What uuid() is made of: the same in each process that has the same devices.
  std::string machine = "simulated";
  uint64_t seed = 1;                        // of how late each piece of work comes
  std::chrono::microseconds most_late{50};  // 0: as soon as can be
  size_t memory = size_t{1} << 30;          // of each device
};

// Two of them in one process are as in two: each opens what the other one has named.
//
// Lifetime: outlives what was made by it.
class SimulatedDevices : public Devices {
 public:
  // As allocate(), but of a kind that other processes cannot open, as some allocators' is.
  virtual void* allocate_unnamed(int device, size_t bytes) = 0;

  // Whether open_memory() works from now on; it does at first. Where processes are kept apart (in
  // containers) it does not.
  virtual void let_memory_be_opened(bool may) = 0;
  // The same of allocate_host().
  virtual void let_host_memory_be_allocated(bool may) = 0;

  // What is_captured() says from now on, of all streams.
  virtual void let_streams_be_captured(bool are) = 0;

  // What one must not do and a device does not notice: memory used after it was released, or that
  // is no memory. Nothing is copied then.
  virtual std::vector<std::string> faults() const = 0;
  // Whether this process has ever used it: asked it for memory, a stream or an event.
  virtual bool is_in_use(int device) const = 0;
  // Bytes that allocate() has given and release() has not taken back; those of `device`.
  virtual size_t allocated(int device) const = 0;
  // Mapped from other processes.
  virtual size_t opened() const = 0;
  // Streams and events that were made or opened, and not ended.
  virtual size_t streams() const = 0;
  virtual size_t events() const = 0;
};

// What released memory is filled with.
inline constexpr std::byte kPoison{0xDB};

std::unique_ptr<SimulatedDevices> make_simulated_devices(SimulationOptions options = {});

}  // namespace farspan::device
