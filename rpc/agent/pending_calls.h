// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// PendingCalls: the requests of one connection that wait for their answers.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>
#include <farspan/rpc/agent/messenger.h>

namespace farspan::agent {

// Threading: every method from any thread; handlers are returned, never called, under the lock.
class PendingCalls {
 public:
  struct Taken {
    std::shared_ptr<ReplyHandler> handler;  // null: no such call; it was answered or expired
    uint64_t id = 0;
    uint64_t bytes = 0;  // what the call counted for
    uint64_t offer = 0;  // of its arguments; 0: none
    Deadline deadline;
    std::shared_ptr<const Error> why =
        nullptr;  // it ends, if not as others that were taken with it
  };

  // Returns the id under which the answer will come; 0 when close() was called.
  //   is_known  take_that_of() finds it at once; else from make_known() on
  uint64_t add(std::shared_ptr<ReplyHandler> handler, Deadline deadline, uint64_t bytes,
               uint64_t offer = 0, bool is_known = true);
  static void make_known(ReplyHandler& handler, uint64_t id) noexcept;
  Taken take(uint64_t id);
  // The call whose answer it waits for.
  Taken take_that_of(const ReplyHandler& handler);

  // True when no timer is set as early as `deadline`: set one.
  bool is_earliest(Deadline deadline);
  // When the timer that was set for `at` fires: takes the calls that have expired by `now`.
  //   next  for when to set another timer; never: those that are set will do, or none is needed
  std::vector<Taken> expire(TimePoint at, TimePoint now, Deadline& next);

  // Takes all; later ones are refused. Until they are known somewhere else, or settle() says that
  // they will not be, ReplyHandler::is_between_lines().
  std::vector<Taken> close();
  static void settle(const Taken& call) noexcept;

  // Those without a deadline.
  bool has_endless() const noexcept { return endless_.load() > 0; }
  int64_t count() const noexcept { return count_.load(std::memory_order_relaxed); }
  uint64_t bytes() const noexcept { return bytes_.load(); }

 private:
  struct Call {
    std::shared_ptr<ReplyHandler> handler;
    Deadline deadline;
    uint64_t bytes = 0, offer = 0;
    uint32_t turn = 1;  // tells the uses of one slot apart
  };
  Taken take_locked(size_t slot) FARSPAN_REQUIRES(mutex_);
  uint64_t id_of_locked(size_t slot) const FARSPAN_REQUIRES(mutex_);
  std::optional<size_t> slot_locked(uint64_t id) const FARSPAN_REQUIRES(mutex_);

  std::atomic<int64_t> count_{0}, endless_{0};
  std::atomic<uint64_t> bytes_{0};
  Mutex mutex_;
  bool closed_ FARSPAN_GUARDED_BY(mutex_) = false;
  std::vector<TimePoint> timers_ FARSPAN_GUARDED_BY(mutex_);  // that are set, the latest first
  std::vector<Call> slots_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<uint32_t> free_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::agent
