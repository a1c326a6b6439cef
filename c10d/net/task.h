// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Task: what a reactor's threads run.
#pragma once

#include <cstdint>

#include <farspan/c10d/base/error.h>

namespace farspan::net {

// Work for a thread of the reactor: user code, as a rule. It may block in Future::wait.
class Task {
 public:
  virtual ~Task() = default;
  virtual void run() noexcept = 0;
  // Called instead of run(): kOverloaded, no thread can be had and those that are blocked have not
  // moved for a second (a patient one is spared that), or kShutdown.
  virtual void reject(const Error& why) noexcept = 0;
  // The chain of nested calls that this task belongs to; 0: none.
  uint64_t chain = 0;
  // For work whose loss nobody would hear of: beyond the limit of threads it gets one of a few that
  // are kept for such, or waits.
  bool patient = false;
};

}  // namespace farspan::net
