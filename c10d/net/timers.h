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
#include <vector>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>
#include <farspan/c10d/base/unfinished.h>

namespace farspan::net {

using TimerId = uint64_t;

// Threading: every method from any thread.
class Timers final : public Lending {
 public:
  class Due;

  Timers();
  ~Timers() override;

  int descriptor() const noexcept { return fd_; }

  // Runs `callback` once at `at` or soon after, in a reactor thread; it must not block.
  TimerId add(TimePoint at, std::function<void()> callback);
  // False when it has run already, or is running.
  bool cancel(TimerId id);

  // Makes the descriptor readable at `at`, or earlier, without running anything. Whoever then makes
  // a Due, and after that looks for what the caller has left, finds it.
  void nudge(TimePoint at) noexcept;
  // A nudge that there is only one of: each call moves it, earlier or later.
  void watch(TimePoint at) noexcept;

  bool has_due();
  // Runs what is due.
  void run_due();

 private:
  struct Entry {
    TimerId id;
    std::function<void()> callback;
  };

  void look_at(TimePoint at) noexcept override { nudge(at); }
  void insert_locked(TimePoint at, Entry entry) FARSPAN_REQUIRES(mutex_);
  TimePoint next_locked() const FARSPAN_REQUIRES(mutex_);
  void set_descriptor_locked() FARSPAN_REQUIRES(mutex_);

  const int fd_;
  std::atomic<int64_t> armed_for_;  // ns of Clock; what fd_ is set to
  Mutex mutex_;
  TimerId next_id_ FARSPAN_GUARDED_BY(mutex_) = 1;
  TimePoint nudge_ FARSPAN_GUARDED_BY(mutex_) = TimePoint::max();
  TimePoint watch_ FARSPAN_GUARDED_BY(mutex_) = TimePoint::max();
  std::multimap<TimePoint, Entry> entries_ FARSPAN_GUARDED_BY(mutex_);
  std::unordered_map<TimerId, std::multimap<TimePoint, Entry>::iterator> by_id_
      FARSPAN_GUARDED_BY(mutex_);
};

// What is due, taken by one thread; the descriptor is set to what is next.
class Timers::Due final : Unfinished {
 public:
  explicit Due(Timers& timers);
  void run();

 private:
  // As a Batch: new ones come to other threads by themselves.
  bool urgent() const noexcept override { return false; }
  bool has_more() const noexcept override { return next_ < due_.size(); }
  void hand_over() noexcept override;

  Timers& timers_;
  std::vector<Entry> due_;
  size_t next_ = 0;
};

}  // namespace farspan::net
