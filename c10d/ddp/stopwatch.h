// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// DdpStopwatch: how long the parts of the last iterations took.
#pragma once

#include <deque>

#include <farspan/c10d/ddp/options.h>

namespace farspan::dist {

// Threading: used by one thread at a time.
class DdpStopwatch {
 public:
  void forward_begins() { forward_began_ = Clock::now(); }
  // Of several forward passes in an iteration the last one counts.
  void forward_ends() {
    present_ = {};
    present_.forward = Clock::now() - forward_began_;
    communication_began_ = {};
  }
  void first_gradient() { backward_began_ = Clock::now(); }
  void last_gradient() { backward_ended_ = Clock::now(); }
  void bucket_begins() {
    if (communication_began_ == TimePoint()) communication_began_ = Clock::now();
  }
  void ends();

  uint64_t iterations() const noexcept { return iterations_; }
  // Writes `last`, `average` and `iterations`.
  void report(DdpStatistics& statistics) const;

 private:
  uint64_t iterations_ = 0;
  TimePoint forward_began_, backward_began_, backward_ended_, communication_began_;
  DdpTimes present_;
  std::deque<DdpTimes> last_;
};

}  // namespace farspan::dist
