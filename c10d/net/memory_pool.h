// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// MemoryPool: memory for large tensors, used again while it is warm. Copying into fresh pages costs
// several times as much as into pages that have been touched.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <farspan/c10d/base/buffer.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/net/timers.h>

namespace farspan::net {

struct MemoryPoolOptions {
  size_t max_idle_bytes = size_t{1} << 30;
  std::chrono::milliseconds keep{10'000};  // what is idle for longer goes back to the system
};

// Where a pool gets its blocks.
//
// Threading: every method from any thread.
class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  // 64-byte aligned, page-aligned from 1 MiB.
  //   throws  std::bad_alloc
  virtual void* make(size_t bytes) = 0;
  virtual void free(void* block, size_t bytes) noexcept = 0;
  // False: it is not to be used again.
  virtual bool may_keep(void*) noexcept { return true; }
};

struct MemoryPoolCounters {
  size_t used_bytes = 0;          // in tensors that live
  size_t idle_bytes = 0;          // kept for those that come
  uint64_t reused = 0, made = 0;  // blocks given out
};

// Blocks are kept by size class (four to a power of two), up to a bound; the bound does not limit
// what is in use. Where there is no room for another one, the class that was not used for longest
// gives way. A block returns when the last Buffer over it goes, from whatever thread.
//
// Threading: every method from any thread. Lifetime: buffers may outlive the pool's maker.
class MemoryPool : public std::enable_shared_from_this<MemoryPool> {
 public:
  //   memory  null: the heap
  static std::shared_ptr<MemoryPool> make(MemoryPoolOptions options = {},
                                          std::shared_ptr<BlockMemory> memory = nullptr);
  ~MemoryPool();

  // 64-byte aligned (page-aligned from 1 MiB), not initialised.
  //   throws  std::bad_alloc, or what the memory throws
  Buffer allocate(size_t bytes);

  // Gives idle memory back to the system.
  void trim() noexcept;
  // From now on, by these timers, what has been idle for long; null: not any more, and none of them
  // is used after this.
  void shrink_by(Timers* timers);
  // From now on nothing is kept, and no timer is used any more.
  void close() noexcept;

  MemoryPoolCounters counters() const noexcept;

 private:
  MemoryPool(MemoryPoolOptions options, std::shared_ptr<BlockMemory> memory)
      : options_(options), memory_(std::move(memory)) {}
  struct Block {
    void* place;
    size_t size_class;
  };
  void give_back(Block block) noexcept;
  void free(Block block) noexcept;
  bool keep_locked(Block block, std::vector<Block>& dropped) FARSPAN_REQUIRES(mutex_);
  bool make_room_locked(size_t bytes, std::vector<Block>& dropped) FARSPAN_REQUIRES(mutex_);
  void look_later_locked(TimePoint idle_since) FARSPAN_REQUIRES(mutex_);
  void drop_unused() noexcept;

  static constexpr size_t kClasses = 4 * 48;
  struct Idle {
    void* block;
    TimePoint since;
  };
  struct Shelf {
    std::vector<Idle> blocks;  // the one that is idle for longest first
    uint64_t last_use = 0;
  };
  const MemoryPoolOptions options_;
  const std::shared_ptr<BlockMemory> memory_;
  std::atomic<size_t> idle_bytes_{0}, used_bytes_{0};
  std::atomic<uint64_t> reused_{0}, made_{0};
  Mutex mutex_;
  Timers* timers_ FARSPAN_GUARDED_BY(mutex_) = nullptr;
  bool closed_ FARSPAN_GUARDED_BY(mutex_) = false;
  bool will_look_ FARSPAN_GUARDED_BY(mutex_) = false;            // drop_unused() will come
  std::array<Shelf, kClasses> idle_ FARSPAN_GUARDED_BY(mutex_);  // by size class
  uint64_t uses_ FARSPAN_GUARDED_BY(mutex_) = 0;
};

}  // namespace farspan::net
