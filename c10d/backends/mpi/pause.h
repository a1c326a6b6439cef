// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Pause: what a thread does between two looks at MPI, which wakes nobody.
#pragma once

#include <sched.h>

#include <algorithm>
#include <thread>

#include <farspan/c10d/base/time.h>

namespace farspan::dist::mpi {

// First it only gives its turn away, which costs nothing where each rank has a core; then it
// sleeps, each time twice as long.
//
// Threading: one thread.
class Pause {
 public:
  explicit Pause(Micros longest = Millis(1)) : longest_(longest) {}

  void reset() noexcept {
    turns_ = 0;
    sleep_ = kFirstSleep;
  }
  void take() {
    if (turns_ < kTurns) {
      ++turns_;
      sched_yield();
      return;
    }
    std::this_thread::sleep_for(sleep_);
    sleep_ = std::min(2 * sleep_, longest_);
  }

 private:
  static constexpr int kTurns = 200;
  static constexpr Micros kFirstSleep{20};

  const Micros longest_;
  int turns_ = 0;
  Micros sleep_ = kFirstSleep;
};

}  // namespace farspan::dist::mpi
