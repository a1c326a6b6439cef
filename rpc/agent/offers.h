// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Offers: the large segments of frames that the peer reads out of this process's memory, kept until
// it has.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include <farspan/c10d/base/buffer.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/rpc/wire/frame.h>

namespace farspan::agent {

// Each offer has a mark in memory, which goes before the bytes may change. Whoever has read the
// bytes reads the mark: if it stands, they are what was offered, however late the reader was.
//
// Threading: every method from any thread; what goes is released outside the lock.
class Offers {
 public:
  Offers();
  ~Offers() { close(); }

  // Offers those segments of the frame that have an owner and at least `from` bytes.
  //   returns  the offer's id; 0: there is no such segment, or close() was called
  uint64_t make(wire::OutFrame& frame, uint64_t from);
  // The peer has read it, or need not any more.
  void withdraw(uint64_t id) noexcept;
  // For a peer that cannot read them. Empty: withdrawn before.
  std::vector<Buffer> segments_of(uint64_t id) const;
  // Withdraws all; later ones are not made.
  void close() noexcept;

  size_t count() const noexcept { return count_.load(); }
  uint64_t bytes() const noexcept { return bytes_.load(std::memory_order_relaxed); }  // kept
  uint64_t made() const noexcept { return made_.load(std::memory_order_relaxed); }    // ever

 private:
  struct Kept {
    std::unique_ptr<std::atomic<uint64_t>> mark;
    std::vector<Buffer> segments;
  };
  void release(Kept kept) noexcept;

  std::atomic<size_t> count_{0};
  std::atomic<uint64_t> bytes_{0}, made_{0};
  const uint64_t first_mark_;  // random: no other process has the same marks
  mutable Mutex mutex_;
  bool closed_ FARSPAN_GUARDED_BY(mutex_) = false;
  uint64_t last_id_ FARSPAN_GUARDED_BY(mutex_) = 0;
  std::unordered_map<uint64_t, Kept> kept_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::agent
