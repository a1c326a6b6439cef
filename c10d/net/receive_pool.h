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
#include <farspan/c10d/net/timers.h>

namespace farspan::net {

struct ReceivePoolOptions {
  size_t max_idle_bytes = size_t{1} << 30;
  std::chrono::milliseconds keep{10'000};  // what is idle for longer goes back to the system
};

struct ReceivePoolCounters {
  size_t used_bytes = 0;          // in tensors that live
  size_t idle_bytes = 0;          // kept for those that come
  uint64_t reused = 0, made = 0;  // blocks given out
};

// Blocks are kept by size class (four to a power of two), up to a bound; the bound does not limit
// what is in use. Where there is no room for another one, the class that was not used for longest
// gives way. A block returns when the last Buffer over it goes, from whatever thread.
//
// Threading: every method from any thread. Lifetime: buffers may outlive the pool's maker.
class ReceivePool : public std::enable_shared_from_this<ReceivePool> {
 public:
  static std::shared_ptr<ReceivePool> make(ReceivePoolOptions options = {});
  ~ReceivePool();

  // 64-byte aligned (page-aligned from 1 MiB), not initialised.
  //   throws  std::bad_alloc
  Buffer allocate(size_t bytes);

  // Gives idle memory back to the system.
  void trim() noexcept;
  // From now on, by these timers, what has been idle for long; null: not any more, and none of them
  // is used after this.
  void shrink_by(Timers* timers);

  ReceivePoolCounters counters() const noexcept;

 private:
  explicit ReceivePool(ReceivePoolOptions options) : options_(options) {}
  void give_back(void* block, size_t size_class) noexcept;
  bool keep_locked(void* block, size_t size_class, std::vector<void*>& dropped)
      FARSPAN_REQUIRES(mutex_);
  bool make_room_locked(size_t bytes, std::vector<void*>& dropped) FARSPAN_REQUIRES(mutex_);
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
  const ReceivePoolOptions options_;
  std::atomic<size_t> idle_bytes_{0}, used_bytes_{0};
  std::atomic<uint64_t> reused_{0}, made_{0};
  Mutex mutex_;
  Timers* timers_ FARSPAN_GUARDED_BY(mutex_) = nullptr;
  bool will_look_ FARSPAN_GUARDED_BY(mutex_) = false;            // drop_unused() will come
  std::array<Shelf, kClasses> idle_ FARSPAN_GUARDED_BY(mutex_);  // by size class
  uint64_t uses_ FARSPAN_GUARDED_BY(mutex_) = 0;
};

}  // namespace farspan::net
