// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// MappedBlocks: blocks of another process's SharedBlocks, in use here. Its tensors change hands and
// none of their bytes is copied.
#pragma once

#include <sys/types.h>

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

struct MappedBlocksOptions {
  size_t max_idle_bytes = size_t{1} << 30;
  std::chrono::milliseconds keep{10'000};  // what is idle for longer is unmapped
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

  // The bytes of a block that its owner has handed over.
  //   throws  Error kCorrupt: there is no such block, or it is in use here; kUnavailable: this
  //           process may not look at the owner's descriptors; kOverloaded
  Buffer map(const BlockName& block, uint64_t offset, uint64_t bytes);
  // A copy of a block's bytes instead: with its last buffer the block goes back.
  Buffer copy_for(uint64_t block, const Buffer& copy);

  // From now on nothing is told, and nothing is kept that is not in use.
  void close() noexcept;

  uint64_t idle_bytes() const noexcept;

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
  void give_back(uint64_t block) noexcept;
  bool keep_locked(Mapped& mapped) noexcept FARSPAN_REQUIRES(mutex_);
  void look_later_locked(TimePoint idle_since) noexcept FARSPAN_REQUIRES(mutex_);
  void drop_unused() noexcept;

  const pid_t owner_;
  const MappedBlocksOptions options_;
  mutable Mutex mutex_;
  Timers* timers_ FARSPAN_GUARDED_BY(mutex_);                             // null: closed
  std::shared_ptr<const OnReturn> on_return_ FARSPAN_GUARDED_BY(mutex_);  // null: closed
  bool will_look_ FARSPAN_GUARDED_BY(mutex_) = false;                     // drop_unused() will come
  uint64_t idle_bytes_ FARSPAN_GUARDED_BY(mutex_) = 0;
  All all_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::net
