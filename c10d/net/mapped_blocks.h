// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// MappedBlocks: blocks of another process's SharedBlocks, in use here. Its tensors change hands and
// none of their bytes is copied.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include <farspan/c10d/base/buffer.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/net/shared_blocks.h>
#include <farspan/c10d/net/timers.h>

namespace farspan::net {

// Of the blocks of all other processes together: what is in use here, and what is only kept.
//
// Threading: every method from any thread.
class MappedBytes {
 public:
  explicit MappedBytes(uint64_t max_idle = uint64_t{1} << 30) : max_idle_(max_idle) {}
  void begin_use(uint64_t bytes) noexcept { in_use_.fetch_add(bytes); }
  void end_use(uint64_t bytes) noexcept { in_use_.fetch_sub(bytes); }
  bool keep(uint64_t bytes) noexcept;  // false: that would be too much
  void drop(uint64_t bytes) noexcept { idle_.fetch_sub(bytes); }
  uint64_t in_use() const noexcept { return in_use_.load(); }
  uint64_t idle() const noexcept { return idle_.load(); }

 private:
  const uint64_t max_idle_;
  std::atomic<uint64_t> in_use_{0}, idle_{0};
};

struct MappedBlocksOptions {
  std::shared_ptr<MappedBytes> bytes = nullptr;  // of several makers; null: of this one
  std::chrono::milliseconds keep{10'000};        // what is idle for longer is unmapped
};

// A block that goes back stays mapped for a while: the owner will use it again, since it is warm,
// and mapping it anew costs a fault for each of its pages.
//
// Threading: every method from any thread. Lifetime: buffers may outlive the maker; the timers must
// live until close().
class MappedBlocks : public std::enable_shared_from_this<MappedBlocks> {
 public:
  // Told when the last buffer over a block is gone, by the thread that let go of it; the owner may
  // use it from then on. It must not throw.
  using OnReturn = std::function<void(uint64_t block)>;
  static std::shared_ptr<MappedBlocks> make(pid_t owner, Timers& timers, OnReturn on_return,
                                            MappedBlocksOptions options = {});
  ~MappedBlocks() { close(); }
  MappedBlocks(const MappedBlocks&) = delete;
  MappedBlocks& operator=(const MappedBlocks&) = delete;

  // The bytes of a block that its owner has handed over.
  //   throws  Error kCorrupt: there is no such block, or it is in use here; kUnavailable: this
  //           process may not look at the owner's descriptors; kOverloaded
  Buffer map(const BlockName& block, uint64_t offset, uint64_t bytes);
  // A copy of a block's bytes instead: with its last buffer the block goes back.
  Buffer copy_for(uint64_t block, const Buffer& copy);

  // From now on nothing is told, and nothing is kept that is not in use.
  void close() noexcept;

  const MappedBytes& bytes() const noexcept { return *options_.bytes; }

 private:
  MappedBlocks(pid_t owner, Timers& timers, OnReturn on_return, MappedBlocksOptions options);
  struct Mapped {
    SharedMemory memory;
    bool in_use = true;
    TimePoint idle_since{};
  };
  using All = std::unordered_map<uint64_t, Mapped>;
  SharedMemory open(const BlockName& block) const;
  Buffer use(const Mapped& mapped, uint64_t block, uint64_t offset, uint64_t bytes);
  const Mapped* take_idle(const BlockName& block);
  void give_back(uint64_t block) noexcept;
  void tell(uint64_t block) noexcept;
  bool keep_locked(Mapped& mapped) noexcept FARSPAN_REQUIRES(mutex_);
  template <class Condition>
  void drop_idle_locked(const Condition& condition) noexcept FARSPAN_REQUIRES(mutex_);
  void look_later_locked(TimePoint idle_since) noexcept FARSPAN_REQUIRES(mutex_);
  void drop_unused() noexcept;

  const pid_t owner_;
  const MappedBlocksOptions options_;
  mutable Mutex mutex_;
  Timers* timers_ FARSPAN_GUARDED_BY(mutex_);                             // null: closed
  std::shared_ptr<const OnReturn> on_return_ FARSPAN_GUARDED_BY(mutex_);  // null: closed
  bool will_look_ FARSPAN_GUARDED_BY(mutex_) = false;                     // drop_unused() will come
  All all_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::net
