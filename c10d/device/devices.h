// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Devices: what is needed of accelerators to bring their memory from one process to another. Of a
// real kind (cuda/), or simulated, so that all above can be tested where there is none.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <farspan/c10d/base/time.h>

namespace farspan::device {

// Work that a device does in order, while its caller goes on.
struct Stream {
  int device = 0;
  void* handle = nullptr;  // a cudaStream_t: null is the device's default stream
};
// A place in a stream, which others can wait for.
using Event = void*;

// What another process of this host opens memory and events by; bytes that any message may carry.
using MemoryName = std::array<std::byte, 64>;
using EventName = std::array<std::byte, 64>;

// An allocation, as the device's own allocator made it: names are of whole ones.
struct Region {
  int device = 0;
  std::byte* base = nullptr;
  size_t bytes = 0;
  uint64_t id = 0;            // no other allocation of this process ever has the same
  bool can_be_named = false;  // for other processes
};

// Who may wait for an event.
enum class Reach { kThisProcess, kThisHost };

// Device memory is not the processor's to read or write: only copy() does.
//
// Threading: every method from any thread; none blocks for what a device is at, but where said.
// throws      Error: kInvalidArgument for what is no device, memory, stream or event of this kind;
//             kOverloaded: no memory or handles left; kUnavailable: the device or its driver fails,
//             with the driver's own words.
class Devices {
 public:
  virtual ~Devices() = default;

  virtual std::string_view kind() const noexcept = 0;  // "cuda"
  virtual int count() const = 0;
  // The same in every process of every host, whatever number the device has there.
  virtual std::string uuid(int device) const = 0;

  // The calling thread is for this device from now on: what it calls makes no context on another.
  virtual void enter(int) {}

  // At least 256-byte aligned; its contents are undefined.
  virtual void* allocate(int device, size_t bytes) = 0;
  // May block until all work of the device is done.
  virtual void release(void* memory) noexcept = 0;
  // Of the processor, where copies from and to a device do not make it wait.
  virtual void* allocate_host(size_t bytes) = 0;
  virtual void release_host(void* memory) noexcept = 0;
  // Which allocation an address lies in; also one that open_memory() gave.
  virtual Region region_of(const void* address) const = 0;

  virtual Stream new_stream(int device) = 0;
  // What is queued is still done.
  virtual void end_stream(Stream stream) noexcept = 0;
  // Between any two places. Both must stay until the stream has passed it.
  virtual void copy(Stream stream, void* to, const void* from, size_t bytes) = 0;
  // Calls `done` when the stream has come so far, from a thread of the driver's: it must be brief,
  // wait for nothing, and use no Devices. Called also when the device has failed.
  virtual void then(Stream stream, std::function<void()> done) = 0;
  // Blocks until all that is queued is done; false: the deadline passed first.
  virtual bool synchronize(Stream stream, Deadline deadline) = 0;

  // Whether what the stream is given now is recorded for a graph, and not done.
  virtual bool is_captured(Stream stream) = 0;

  virtual Event new_event(int device, Reach reach) = 0;
  // May block as release().
  virtual void end_event(Event event) noexcept = 0;
  // The event is from now on the place behind all that `stream` has been given. Not for
  // open_event().
  virtual void record(Event event, Stream stream) = 0;
  // What `stream` is given from now on begins when the event has come: as it was recorded last,
  // by any process, when this is called. Never recorded: at once. An event whose process has died
  // has come.
  virtual void wait(Stream stream, Event event) = 0;
  virtual bool has_come(Event event) = 0;  // the last record; also when there was none

  // Of a whole region (`base`), which must outlive its uses elsewhere.
  virtual MemoryName name_memory(void* base) = 0;
  // Maps what another process has named, for `device` here to use. Takes up to milliseconds.
  virtual void* open_memory(int device, const MemoryName& name) = 0;
  virtual void close_memory(void* opened) noexcept = 0;
  // Of one with Reach::kThisHost.
  virtual EventName name_event(Event event) = 0;
  // To be ended by end_event(), before or after its maker's, when no stream waits for it any more.
  virtual Event open_event(int device, const EventName& name) = 0;
};

}  // namespace farspan::device
