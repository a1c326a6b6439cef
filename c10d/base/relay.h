// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Signal and Relay: waiting for the first of several things.
#pragma once

#include <atomic>
#include <thread>

#include <farspan/c10d/base/future_core.h>

namespace farspan {

// What one waits for that is told by hand.
class Signal final : public FutureCore {
 public:
  void set() noexcept {
    complete([] {});
  }
};

// While it exists, `to` is set as soon as `of` is ready; at once if it is.
//
// Threading: made and destroyed by one thread. Lifetime: both outlive it.
class Relay final : Sleeper {
 public:
  Relay(FutureCore& of, Signal& to) : of_(of), to_(to), is_added_(of.add_sleeper(*this)) {
    if (!is_added_) to.set();
  }
  ~Relay() {
    if (!is_added_ || of_.remove_sleeper(*this)) return;
    while (!has_told_.load(std::memory_order_acquire)) std::this_thread::yield();  // it is about to
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

 private:
  void wake() noexcept override {
    to_.set();
    has_told_.store(true, std::memory_order_release);
  }

  FutureCore& of_;
  Signal& to_;
  std::atomic<bool> has_told_{false};
  const bool is_added_;
};

}  // namespace farspan
