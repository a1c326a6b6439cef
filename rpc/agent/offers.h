// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Offers: the large segments of frames that the peer reads out of this process's memory, kept until
// it has; and the blocks of shared memory that were handed over to it, until they come back.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include <farspan/c10d/base/buffer.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/net/shared_blocks.h>
#include <farspan/rpc/wire/frame.h>

namespace farspan::agent {

// Each offer has a mark in memory, which goes before the bytes may change. Whoever has read the
// bytes reads the mark: if it stands, they are what was offered, however late the reader was.
//
// A segment that has a block of shared memory to itself, so that nobody here will miss it, is
// handed over with the offer: the block is the peer's from then on, and stays so when the offer is
// withdrawn.
//
// Threading: every method from any thread; what goes is released outside the lock.
class Offers {
 public:
  //   blocks  null: nothing is handed over
  explicit Offers(std::shared_ptr<net::SharedBlocks> blocks = nullptr);
  ~Offers() { close(); }

  // Offers those segments of the frame that have an owner and at least `from` bytes.
  //   hand_over  those that can be are handed over: the peer knows what that is
  //   returns    the offer's id; 0: there is no such segment, or close() was called
  uint64_t make(wire::OutFrame& frame, uint64_t from, bool hand_over = false);
  // The request that the frame of this offer became.
  void belongs_to(uint64_t request, uint64_t id);
  // The peer has read it, or need not any more. False: it was withdrawn before.
  bool withdraw(uint64_t id) noexcept;
  // For a peer that cannot read them. Empty: withdrawn before.
  std::vector<Buffer> segments_of(uint64_t id) const;
  // The peer has let go of a block.
  void take_back(uint64_t block) noexcept;
  // Nothing of these requests will ever leave: the peer has none of their blocks.
  void take_back_unsent(std::span<const uint64_t> requests) noexcept;
  // The same of an offer that will never leave.
  void take_back_of(uint64_t id) noexcept;
  // Withdraws all, and gives up what was handed over; later ones are not made.
  void close() noexcept;

  size_t count() const noexcept { return count_.load(); }
  uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }  // kept
  uint64_t made() const noexcept { return made_.load(std::memory_order_relaxed); }    // ever
  uint64_t handed_over() const noexcept { return handed_over_.load(); }  // bytes, at the peer now

 private:
  struct Kept {
    std::unique_ptr<std::atomic<uint64_t>> mark;
    std::vector<Buffer> segments;
  };
  struct Away {
    Buffer segment;
    uint64_t offer;
    uint64_t request = 0;
  };
  using AllAway = std::unordered_map<uint64_t, Away>;
  std::vector<wire::HandedOver> blocks_of(const wire::OutFrame& frame, uint64_t from) const;
  template <class IsBack>
  void take_back_if(const IsBack& is_back) noexcept;
  void release(Kept kept) noexcept;

  std::atomic<size_t> count_{0};
  std::atomic<uint64_t> bytes_{0}, made_{0}, handed_over_{0};
  const std::shared_ptr<net::SharedBlocks> blocks_;
  const uint64_t first_mark_;  // random: no other process has the same marks
  mutable Mutex mutex_;
  bool closed_ FARSPAN_GUARDED_BY(mutex_) = false;
  uint64_t last_id_ FARSPAN_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, Kept> kept_ FARSPAN_GUARDED_BY(mutex_);
  AllAway away_ FARSPAN_GUARDED_BY(mutex_);  // by the block
};

}  // namespace farspan::agent
