// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// FutureCore: what every Future shares whatever its type: ready or not, who sleeps on it, and what
// runs when it becomes ready.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>

namespace farspan {

class FutureCore;

// How a thread waits. A reactor installs one on its threads, so that a thread that waits inside a
// user's function helps to read the reply instead of only sleeping.
class Waiter {
 public:
  virtual ~Waiter() = default;
  // Returns when `future` is ready (true) or the deadline has passed (false).
  virtual bool wait(FutureCore& future, Deadline deadline) = 0;
  // The thread is about to run callbacks, which may take long; end_callbacks() follows.
  virtual void begin_callbacks() {}
  virtual void end_callbacks() {}
};

// The calling thread's Waiter; null means: sleep. The pointer must outlive its use.
Waiter* current_waiter() noexcept;
void set_current_waiter(Waiter* waiter) noexcept;

// A place where a thread sleeps. The thread that makes the future ready calls each once: first
// expect_wake(), under the future's lock, then wake(), without, for the woken thread begins by
// taking that lock.
class Sleeper {
 public:
  virtual void expect_wake() noexcept {}
  virtual void wake() noexcept = 0;

 protected:
  ~Sleeper() = default;
};

// Callbacks that make further futures ready nest up to a depth; the rest wait for their turn in a
// row, so that a long chain needs no deep stack. A thread that is about to block inside a callback
// first gives away what is Unfinished, and that row, since what it waits for may lie there; it
// nests anew while it waits. Callbacks of one future never run on top of each other: either may
// wait for the other.
//
// Threading: made and destroyed by the same thread, on its stack.
class CallbackPause {
 public:
  // Has `row` run, once, in another thread.
  using Elsewhere = std::function<void(std::function<void()> row)>;
  //   elsewhere  empty: what waits for want of stack is run here, the rest when this thread is back
  explicit CallbackPause(const Elsewhere& elsewhere = nullptr);
  ~CallbackPause();
  CallbackPause(const CallbackPause&) = delete;
  CallbackPause& operator=(const CallbackPause&) = delete;

 private:
  const int outer_depth_;
};

// Threading: every method from any thread. Callbacks run in the thread that makes the future ready,
// or at once in the caller's when it is ready already; never under a lock.
class FutureCore {
 public:
  FutureCore() = default;
  FutureCore(const FutureCore&) = delete;
  FutureCore& operator=(const FutureCore&) = delete;
  virtual ~FutureCore() = default;

  bool ready() const noexcept { return ready_.load(std::memory_order_acquire); }

  // Blocks until ready; false when the deadline passed first.
  bool wait(Deadline deadline) { return ready() || block(deadline); }

  // Registers a thread that is about to sleep; false when ready already (then wake() never comes).
  bool add_sleeper(Sleeper& sleeper);
  // False when wake() has been called, or is about to be: the sleeper must live until then.
  bool remove_sleeper(Sleeper& sleeper);

  void on_ready(std::function<void()> callback);

  // Becomes ready because `source` does: who waits without a deadline waits for that first, as its
  // callers do.
  void comes_of(const std::shared_ptr<FutureCore>& source) noexcept;

  // Gives up what it comes of, from the first that can be.
  //   returns  false: nothing was given up
  virtual bool cancel();

  // What who has waited in vain for so long is told.
  Error not_there(Clock::duration elapsed);

  // Sleeps without helping anybody.
  bool sleep(Deadline deadline);

 protected:
  // Stores the result through `store` unless one is there already (then false), and tells all.
  template <class Store>
  bool complete(Store&& store) {
    {
      MutexLock lock(mutex_);
      if (ready_.load(std::memory_order_relaxed)) return false;
      store();
      ready_.store(true, std::memory_order_release);
      if (sleepers_.empty() && callbacks_.empty()) return true;
    }
    announce();
    return true;
  }

  // How this future's caller waits. Through the thread's Waiter, unless a subclass knows better.
  virtual bool block(Deadline deadline);
  // Which operation's result it is, and of which worker, where it knows.
  virtual void name_in(Error&) const {}

 private:
  void announce();

  std::shared_ptr<FutureCore> source() noexcept;
  // What it comes of in the end, and which is not ready; null: there is none.
  std::shared_ptr<FutureCore> origin() noexcept;
  std::shared_ptr<FutureCore> first_source() noexcept;

  std::atomic<bool> ready_{false};
  Mutex mutex_;
  // What it comes of; and where that was not ready, the first of a long chain.
  std::weak_ptr<FutureCore> source_ FARSPAN_GUARDED_BY(mutex_);
  std::weak_ptr<FutureCore> first_source_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<Sleeper*> sleepers_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> callbacks_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan
