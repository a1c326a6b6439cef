// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What the reactor's three files share: a thread, its place to sleep, and the blocked state.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include <farspan/c10d/net/reactor.h>

namespace farspan::net {

// What the calling thread does for its reactor. kWaiting: for a future, inside one of the two
// before.
enum class Station { kOutside, kLooping, kInTask, kWaiting };

struct ThreadState {
  Reactor* reactor = nullptr;
  Station station = Station::kOutside;
  uint64_t chain = 0;
  int waits = 0;              // Reactor::wait, one inside what another one runs
  bool in_callbacks = false;  // of futures, as a thread that reads
};
ThreadState& thread_state() noexcept;

struct Reactor::Thread {
  std::thread handle;
};

// A thread's place to sleep: an eventfd, opened when it first sleeps, and the tasks of its own
// chain that it is to run while it waits.
//
// Threading: wake() from any thread; the inbox is guarded by the mutex of the thread's reactor.
struct Reactor::Slot final : Sleeper {
  Slot() = default;
  ~Slot();
  void open();
  void wake() noexcept override;
  void clear() noexcept;  // forgets wake-ups, before the next sleep

  int fd = -1;
  std::vector<std::unique_ptr<Task>> inbox;
  std::atomic<bool> has_mail{false};
};

// Marks the calling thread as waiting, so that its reactor lets another one run.
class Reactor::Blocked {
 public:
  Blocked(Reactor& waited_on, Slot& slot);
  ~Blocked();
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;

  // Runs a task of the thread's own chain, if one was put into its inbox; turns it away when the
  // stack has no room for it.
  void run_inbox();

 private:
  void enter(Station from);
  // Back to work; tasks left in the inbox return to the queue.
  void leave(Station to);

  const ThreadState outer_;
  Reactor& reactor_;       // the thread's own; for a thread from outside, the one it waits on
  const Station waiting_;  // kWaiting; a thread from outside is not counted
  Slot& slot_;
  const CallbackPause pause_;
};

}  // namespace farspan::net
