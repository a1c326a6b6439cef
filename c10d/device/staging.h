// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Staging: device memory that other processes can open, for what lies in memory which they cannot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>
#include <farspan/c10d/device/devices.h>

namespace farspan::device {

// An event that other processes can open.
struct NamedEvent {
  uint64_t id = 0;  // the same name has the same id
  Event event = nullptr;
  EventName name{};
};

// Blocks are used again: what others have opened once they need not open anew.
//
// Threading: every method from any thread.
// Lifetime:  the devices outlive it.
class Staging {
 public:
  struct Block {
    int device = 0;
    std::byte* memory = nullptr;  // null: none
    size_t bytes = 0;
    // Comes when the last copy into it is done, for which nobody may have waited. None: there was
    // no copy.
    NamedEvent written{};
  };

  //   most  bytes of each device
  Staging(Devices& devices, size_t most) : devices_(devices), most_(most) {}
  // When all that was taken is given back.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Of at least so many bytes. None: too many are in use, or the device has none left. May block as
  // Devices::release, when blocks of other sizes have to make room, into which nothing is copied.
  Block take(int device, size_t bytes);
  size_t most() const noexcept { return most_; }
  // No stream will read or write it any more. Uses no Devices.
  void give_back(const Block& block) noexcept;
  // Releases what was given back by `before`, as far as nothing is copied into it. May block as
  // Devices::release.
  //   returns  the time at which the first of the others was given back; max: there is none
  TimePoint release_idle(TimePoint before) noexcept;
  // Nobody waits for those of blocks that are at rest any more.
  void end_events() noexcept;
  size_t events() const;  // of blocks that are at rest

 private:
  struct AtRest {
    Block block;
    TimePoint since;
  };
  struct Of {
    size_t bytes = 0;
    std::vector<AtRest> at_rest;  // the one that was given back last is at the end
  };
  bool is_written(const Block& block) const noexcept;
  void release(const Block& block) noexcept;
  // Those at rest, the oldest first, but those that are being written: so many bytes, or all.
  template <class IsWanted>
  void release_if(int device, size_t most, const IsWanted& is_wanted) noexcept;

  Devices& devices_;
  const size_t most_;
  mutable Mutex mutex_;
  std::unordered_map<int, Of> all_ FARSPAN_GUARDED_BY(mutex_);  // by device
};

}  // namespace farspan::device
