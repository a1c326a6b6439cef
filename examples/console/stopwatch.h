// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Stopwatch: how long something took, all its parts together.
#pragma once

#include <chrono>
#include <optional>

#include <farspan/c10d/base/time.h>

namespace console {

// Threading: one thread at a time.
class Stopwatch {
 public:
  void start() { running_since_ = farspan::Clock::now(); }
  void stop() { before_ = elapsed(), running_since_.reset(); }

  // Of all parts, the one that still runs included.
  double seconds() const { return std::chrono::duration<double>(elapsed()).count(); }

 private:
  farspan::Clock::duration elapsed() const {
    return running_since_ ? before_ + (farspan::Clock::now() - *running_since_) : before_;
  }

  farspan::Clock::duration before_{};
  std::optional<farspan::TimePoint> running_since_;
};

}  // namespace console
