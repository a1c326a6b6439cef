// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Timers: callbacks ordered by time, behind one timerfd. Cheap as long as nothing earlier than the
// earliest is added, which is how call deadlines use it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>

namespace farspan::net {

using TimerId = uint64_t;

// Threading: every method from any thread.
class Timers {
 public:
  Timers();
  ~Timers();

  int descriptor() const noexcept { return fd_; }

  // Runs `callback` once at `at` or soon after, in a reactor thread; it must not block.
  TimerId add(TimePoint at, std::function<void()> callback);
  // False when it has run already, or is running.
  bool cancel(TimerId id);

  // Makes the descriptor readable at `at`, or earlier, without running anything.
  void nudge(TimePoint at) noexcept;

  bool has_due();
  // Runs what is due and sets the descriptor to what is next.
  void run_due();

 private:
  class Due;
  struct Entry {
    TimerId id;
    std::function<void()> callback;
  };
  void insert_locked(TimePoint at, Entry entry) FARSPAN_REQUIRES(mutex_);
  void set_descriptor_locked() FARSPAN_REQUIRES(mutex_);

  const int fd_;
  std::atomic<int64_t> armed_for_;  // ns of Clock; what fd_ is set to
  Mutex mutex_;
  TimerId next_id_ FARSPAN_GUARDED_BY(mutex_) = 1;
  TimePoint nudge_ FARSPAN_GUARDED_BY(mutex_) = TimePoint::max();
  std::multimap<TimePoint, Entry> entries_ FARSPAN_GUARDED_BY(mutex_);
  std::unordered_map<TimerId, std::multimap<TimePoint, Entry>::iterator> by_id_
      FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::net
