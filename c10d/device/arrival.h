// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Arrival: blocks a thread until a stream has come to a place.
#pragma once

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>

namespace farspan::device {

// Threading: every method from any thread.
class Arrival {
 public:
  void come() {
    MutexLock lock(mutex_);
    has_come_ = true;
    changed_.notify_all();
  }
  // False: the deadline passed first.
  bool wait(Deadline deadline) {
    MutexLock lock(mutex_);
    while (!has_come_) {
      if (!changed_.wait_until(mutex_, deadline)) return has_come_;
    }
    return true;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool has_come_ FARSPAN_GUARDED_BY(mutex_) = false;
};

}  // namespace farspan::device
