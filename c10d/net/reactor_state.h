// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What the reactor's three files share: a thread, its place to sleep, and the blocked state.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <farspan/c10d/base/unfinished.h>
#include <farspan/c10d/net/reactor.h>

namespace farspan::net {

// How long work may lie behind a task or a callback that takes longer than expected.
inline constexpr std::chrono::milliseconds kRescueAfter{1};

// What the calling thread does for its reactor. kWaiting: for a future, inside one of the two
// before.
enum class Station { kOutside, kLooping, kInTask, kWaiting };

struct ThreadState {
  Reactor* reactor = nullptr;
  Station station = Station::kOutside;
  uint64_t chain = 0;
  int waits = 0;              // Reactor::wait, one inside what another one runs
  int in_callbacks = 0;       // of futures, as a thread that reads; one inside what another runs
  bool beyond_limit = false;  // in a patient task, on a thread beyond max_threads
};
ThreadState& thread_state() noexcept;

// How a thread of the reactor's, or one inside its wait(), waits for a future that no connection is
// known to bring.
class Reactor::ThreadWaiter final : public Waiter {
 public:
  explicit ThreadWaiter(Reactor& reactor) : reactor_(reactor) {}
  bool wait(FutureCore& future, Deadline deadline) override {
    return reactor_.wait(future, deadline, nullptr);
  }
  void begin_callbacks() override { reactor_.begin_callbacks(); }
  void end_callbacks() override { reactor_.end_callbacks(); }

 private:
  Reactor& reactor_;
};

struct Reactor::Thread {
  std::thread handle;
};

// Sources whose lease is over, which nobody else hears of until they are armed.
class Reactor::Unused final : Unfinished {
 public:
  explicit Unused(Reactor& reactor);
  // Reads each, and arms it again.
  void pump();

 private:
  void hand_over() noexcept override;
  bool has_more() const noexcept override { return next_ < sources_.size(); }

  Reactor& reactor_;
  std::vector<std::shared_ptr<Source>> sources_;
  size_t next_ = 0;
};

// A thread's place to sleep: an eventfd, opened when it first sleeps.
//
// Threading: what wakes from any thread; the rest by its own.
class Reactor::Slot final : public Follower {
 public:
  Slot() = default;
  ~Slot();               // when nobody is about to wake it any more
  bool open() noexcept;  // false: there is no descriptor left
  void expect_wake() noexcept override;
  void wake() noexcept override;
  bool is_woken() const noexcept override { return woken_.load(); }
  void wake_now() noexcept {
    expect_wake();
    wake();
  }
  void clear() noexcept;  // forgets wake-ups, before the next sleep
  int descriptor() const noexcept { return fd_; }

 private:
  int fd_ = -1;
  std::atomic<bool> woken_{false};
  std::atomic<int> wakers_{0};
};

// Marks the calling thread as waiting, so that its reactor lets another one run.
class Reactor::Blocked {
 public:
  Blocked(Reactor& waited_on, Slot& slot);
  ~Blocked();
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;

  // A task of the thread's own chain may be queued that gets no other thread.
  void call() noexcept;
  bool is_called() const noexcept { return called_.load(std::memory_order_acquire); }
  // Runs such a task, if there is one; turns it away when the stack has no room for it.
  void run_own();

 private:
  void enter(Station from);
  void leave(Station to);  // back to work

  const ThreadState outer_;
  Reactor& reactor_;       // the thread's own; for a thread from outside, the one it waits on
  const Station waiting_;  // kWaiting; a thread from outside is not counted
  Slot& slot_;
  std::atomic<bool> called_{false};
  const CallbackPause pause_;
};

}  // namespace farspan::net
