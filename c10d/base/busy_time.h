// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// BusyTime: a stretch in which a thread that reads for others does something that may take long.
#pragma once

#include <farspan/c10d/base/future_core.h>
#include <farspan/c10d/base/unfinished.h>

namespace farspan {

// While it lives, others read in the thread's place, and come for what it has taken and not done.
//
// Threading: made and destroyed by the same thread, on its stack.
class BusyTime {
 public:
  // `outermost`: the thread is in no such time yet, as far as its reactor knows. `lend_all`: also
  // what there is no more to do of, but to tell of its end.
  explicit BusyTime(bool outermost = true, bool lend_all = true)
      : waiter_(outermost ? current_waiter() : nullptr), lent_(lend_all) {
    if (waiter_) waiter_->begin_callbacks();
  }
  ~BusyTime() {
    if (waiter_) waiter_->end_callbacks();
  }
  BusyTime(const BusyTime&) = delete;
  BusyTime& operator=(const BusyTime&) = delete;

 private:
  Waiter* const waiter_;
  const Unfinished::Lent lent_;
};

}  // namespace farspan
