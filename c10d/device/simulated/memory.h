// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// SimulatedMemory: allocations of simulated devices, as addresses that only copies may use.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/device/devices.h>
#include <farspan/c10d/device/host_name.h>
#include <farspan/c10d/net/shared_memory.h>

namespace farspan::device {

// What lies behind a region's addresses is mapped elsewhere, too, where copies reach it; the
// addresses themselves may not be touched. Those of a released region are given out again, as real
// allocators do, to the next one of its size.
//
// Threading: every method from any thread.
class SimulatedMemory {
 public:
  //   numbers   of the devices, on their machine
  //   instance  tells these devices from all others
  SimulatedMemory(std::vector<int> numbers, size_t bytes_of_each, uint64_t instance);
  ~SimulatedMemory();
  SimulatedMemory(const SimulatedMemory&) = delete;
  SimulatedMemory& operator=(const SimulatedMemory&) = delete;

  std::byte* allocate(int device, size_t bytes, bool can_be_named);
  // Poisons it. False: it is none that was allocated here.
  bool release(void* memory) noexcept;
  Region region_of(const void* address) const;

  MemoryName name(void* base) const;
  std::byte* open(int device, const MemoryName& name);
  bool close(void* opened) noexcept;

  // Where a copy finds so many bytes at an address of a device, or of the processor.
  struct Place {
    std::byte* data = nullptr;  // null: there is no such memory
    std::shared_ptr<void> owner;
    std::string fault;
  };
  Place find(const void* address, size_t bytes) const;

  size_t allocated(int device) const;
  size_t opened() const;

 private:
  struct Block {
    Region region;
    net::SharedMemory memory;
    // Of what was opened: whose it is, and where it lies there.
    std::pair<uint64_t, uint64_t> maker;  // its instance, and the id there
    uint64_t base_there = 0;
    int times_opened = 0;  // 0: it is of this process
  };
  using Blocks = std::map<const std::byte*, std::shared_ptr<Block>>;

  void check(int device) const;
  std::byte* reserve_locked(size_t bytes) FARSPAN_REQUIRES(mutex_);
  std::shared_ptr<Block> block_of_locked(const void* address) const FARSPAN_REQUIRES(mutex_);
  bool is_reserved_locked(const void* address) const FARSPAN_REQUIRES(mutex_);
  //   throws  Error kUnavailable: what that process had there before is open still
  void check_place_locked(int device, const HostName& name) const FARSPAN_REQUIRES(mutex_);
  void forget_locked(const Block& block) FARSPAN_REQUIRES(mutex_);

  const std::vector<int> numbers_;
  const size_t bytes_of_each_;
  const uint64_t instance_;
  mutable Mutex mutex_;
  uint64_t last_id_ FARSPAN_GUARDED_BY(mutex_) = 0;
  Blocks blocks_ FARSPAN_GUARDED_BY(mutex_);  // by their base
  std::map<const std::byte*, size_t> reserved_ FARSPAN_GUARDED_BY(mutex_);
  std::unordered_map<size_t, std::vector<std::byte*>> free_ FARSPAN_GUARDED_BY(mutex_);  // by size
  std::vector<size_t> allocated_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::device
