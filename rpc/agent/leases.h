// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Leases: what frames refer to beside their bytes (memory of a device, say), kept until the peer
// has let go of it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include <farspan/c10d/base/mutex.h>
#include <farspan/rpc/wire/frame.h>

namespace farspan::agent {

// Unlike an offer, a lease is not withdrawn when its call is over: nobody can take back what a
// device is about to read.
//
// Threading: every method from any thread; what goes is released outside the lock.
class Leases {
 public:
  ~Leases() {
    for (const auto& lent : close()) lent->line_ended();
  }

  // Gives the frame the id of a lease of what it lends.
  //   returns  the id; 0: it lends nothing, or close() was called
  uint64_t make(wire::OutFrame& frame);
  // The request that the frame of this lease became.
  void belongs_to(uint64_t request, uint64_t id) noexcept;
  // The peer has let go of it. Unknown ids have no effect.
  void end(uint64_t id) noexcept;
  // Nothing of these requests will ever leave.
  void end_unsent(std::span<const uint64_t> requests) noexcept;
  // The line has ended; later ones are not made.
  //   returns  what is lent still, each to be told once of that (wire::Lent::line_ended), which may
  //            run what others wait for
  std::vector<std::shared_ptr<wire::Lent>> close();

  size_t count() const noexcept { return count_.load(); }

 private:
  struct Lent {
    std::shared_ptr<wire::Lent> what;
    uint64_t request = 0;
  };
  using All = std::unordered_map<uint64_t, Lent>;

  std::atomic<size_t> count_{0};
  Mutex mutex_;
  bool closed_ FARSPAN_GUARDED_BY(mutex_) = false;
  uint64_t last_id_ FARSPAN_GUARDED_BY(mutex_) = 0;
  All lent_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::agent
