// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Staging: device memory that other processes can open, for what lies in memory which they cannot.
#pragma once

#include <cstddef>
#include <unordered_map>
#include <vector>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/device/devices.h>

namespace farspan::device {

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
  };

  //   most  bytes of each device
  Staging(Devices& devices, size_t most) : devices_(devices), most_(most) {}
  // When all that was taken is given back.
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Of at least so many bytes. None: too many are in use, or the device has none left. May block as
  // Devices::release, when blocks of other sizes have to make room.
  Block take(int device, size_t bytes);
  size_t most() const noexcept { return most_; }
  // No stream will read or write it any more. Uses no Devices.
  void give_back(const Block& block) noexcept;

 private:
  struct Of {
    size_t bytes = 0;
    std::vector<Block> at_rest;  // the one that was given back last is at the end
  };

  Devices& devices_;
  const size_t most_;
  Mutex mutex_;
  std::unordered_map<int, Of> all_ FARSPAN_GUARDED_BY(mutex_);  // by device
};

}  // namespace farspan::device
