// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// ReceivePool: memory for large tensors that come in, used again while it is warm. Copying into
// fresh pages costs several times as much as into pages that have been touched.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <farspan/c10d/base/buffer.h>
#include <farspan/c10d/base/mutex.h>

namespace farspan::net {

// Blocks are kept by size class (four to a power of two), up to a bound; the bound does not limit
// what is in use. Where there is no room for another one, the class that was not used for longest
// gives way. A block returns when the last Buffer over it goes, from whatever thread.
//
// Threading: every method from any thread. Lifetime: buffers may outlive the pool's maker.
class ReceivePool : public std::enable_shared_from_this<ReceivePool> {
 public:
  static std::shared_ptr<ReceivePool> make(size_t max_idle_bytes = size_t{1} << 30);
  ~ReceivePool();

  // 64-byte aligned (page-aligned from 1 MiB), not initialised.
  //   throws  std::bad_alloc
  Buffer allocate(size_t bytes);

  // Gives idle memory back to the system.
  void trim() noexcept;

  size_t idle_bytes() const noexcept { return idle_bytes_.load(std::memory_order_relaxed); }
  size_t used_bytes() const noexcept { return used_bytes_.load(std::memory_order_relaxed); }

 private:
  explicit ReceivePool(size_t max_idle_bytes) : max_idle_bytes_(max_idle_bytes) {}
  void give_back(void* block, size_t size_class) noexcept;
  bool keep_locked(void* block, size_t size_class, std::vector<void*>& dropped)
      FARSPAN_REQUIRES(mutex_);
  bool make_room_locked(size_t bytes, std::vector<void*>& dropped) FARSPAN_REQUIRES(mutex_);

  static constexpr size_t kClasses = 4 * 48;
  struct Shelf {
    std::vector<void*> blocks;
    uint64_t last_use = 0;
  };
  const size_t max_idle_bytes_;
  std::atomic<size_t> idle_bytes_{0}, used_bytes_{0};
  Mutex mutex_;
  std::array<Shelf, kClasses> idle_ FARSPAN_GUARDED_BY(mutex_);  // by size class
  uint64_t uses_ FARSPAN_GUARDED_BY(mutex_) = 0;
};

}  // namespace farspan::net
