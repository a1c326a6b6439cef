// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// HostCopies: between a device's memory and any memory of the processor, at the speed of pinned
// memory, of which there is little.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <vector>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>
#include <farspan/c10d/device/arrival.h>
#include <farspan/c10d/device/devices.h>

namespace farspan::device {

struct HostCopyLimits {
  size_t block = size_t{4} << 20;  // bytes; pinned, each
  size_t blocks = 16;              // at most; they are used again
};

// Bytes go through two pinned blocks in turn: while the device fills, or empties, one of them, the
// processor does the other.
//
// Threading: every method from any thread.
// Lifetime:  the devices outlive it.
class HostCopies {
 public:
  enum class End {
    kDone,
    kLate,   // the deadline passed: not all has been copied, and no more will be
    kNoRoom  // all blocks are in use, and nothing was copied
  };

  explicit HostCopies(Devices& devices, HostCopyLimits limits = {});
  // Waits a while for what streams have been given.
  ~HostCopies();
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // Both begin when `stream` has come so far. No device touches `to` of the former and `from` of
  // the latter: they are the caller's when these return.
  //   throws   Error as Devices

  // Blocks until all is there.
  End from_device(Stream stream, void* to, const void* from, size_t bytes, Deadline deadline);
  // Blocks until all but the last two blocks are there; `stream` does the rest.
  End to_device(Stream stream, void* to, const void* from, size_t bytes, Deadline deadline);

  // Lets go of blocks that nobody has needed for kIdle.
  //   returns  when to come again; max: there are none
  static constexpr std::chrono::milliseconds kIdle{10'000};
  TimePoint release_idle(TimePoint now) noexcept;

  size_t blocks() const;  // allocated

 private:
  class Pool;
  struct Block {
    std::shared_ptr<std::byte> memory;  // goes back to the pool
    std::shared_ptr<Arrival> passed;    // when the stream is past what was given it last
  };
  // One or two; none: all are in use.
  std::vector<Block> take_for(size_t bytes);
  void let_pass(Stream stream, Block& block);

  Devices& devices_;
  const HostCopyLimits limits_;
  const std::shared_ptr<Pool> pool_;
};

}  // namespace farspan::device
