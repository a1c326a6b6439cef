// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Reactor: a handful of threads that sleep in one epoll, poll what is hot, read, and run tasks.
// The rules (why, and what was rejected) are in c10d/net/README.md, "Threads".
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/future_core.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/net/forecast.h>
#include <farspan/c10d/net/owned_descriptor.h>
#include <farspan/c10d/net/source.h>
#include <farspan/c10d/net/task_queue.h>
#include <farspan/c10d/net/timers.h>

namespace farspan::net {

enum class Station;

struct ReactorOptions {
  int threads = 0;        // tasks that run at once and are not blocked; 0: the cores, from 2 to 16
  int max_threads = 256;  // with those that are blocked
  // The longest that one polls, unless bytes pass; 0: never. Less where that does not pay. Up to
  // Forecast::kLongestInSpins times as long around the time when an answer is expected.
  std::chrono::microseconds max_spin = kLongSpinLimit;
  std::string name = "farspan";  // of the threads, for debuggers: at most 15 characters
};

// What is known of a wait before it begins.
struct WaitPlan {
  // When what it waits for is likely to come: the thread sleeps until then, and polls from then on.
  Expected expected;
  // Whether it pays to poll from the beginning; it learns. Null: the source's answers(), where
  // nothing is expected.
  SpinGovernor* polling = nullptr;
  // The thread may be about to wait for the same source again: others leave that alone for a while.
  bool back_soon = true;
};

struct ReactorCounters {
  int threads = 0;         // alive
  int blocked = 0;         // waiting inside a task
  int running = 0;         // inside a task, and not blocked
  uint64_t wakeups = 0;    // idle threads woken on purpose
  uint64_t spin_hits = 0;  // times that polling has found something
  uint64_t spin_misses = 0;
  std::chrono::nanoseconds spin_time{};  // in both, but for looks between the turns of others
};

// Threading: every method from any thread, but stop() and the destructor only from outside.
// Lifetime:  sources are shared; tasks that never ran are rejected by stop().
class Reactor {
 public:
  explicit Reactor(ReactorOptions options = {});
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  void add(const std::shared_ptr<Source>& source);
  // After this the source is not pumped again, but a pump under way may go on.
  void remove(Source& source) noexcept;
  // Calls source.flush() from a reactor thread when there is room to write.
  void flush_when_writable(Source& source) noexcept;

  // Queues a task. From within pump() on a reactor's thread, that thread runs it itself, soon.
  void run(std::unique_ptr<Task> task);
  // The same, for a thread that is busy itself: wakes another one if there is one that sleeps.
  void run_elsewhere(std::unique_ptr<Task> task);

  // Before the calling thread writes what it will wait() for: the answer then wakes nobody else,
  // unless it comes at once after a pause, or after answers that took long.
  void expect_answer(Source& source) noexcept;
  // Waits for `future` while reading `hint`, whose traffic is expected to bring it; null: none. It
  // is not about to be added by another thread.
  //   returns  false when the deadline passed first
  bool wait(FutureCore& future, Deadline deadline, Source* hint, const WaitPlan& plan = {});

  // Runs what was queued for no thread yet in the calling one, as a thread of its own would.
  void run_here(std::unique_ptr<Task> task) noexcept;

  // Polling of somebody else that counts here, and whether it found what it polled for.
  void count_spin(Clock::duration took, bool hit) noexcept;

  Timers& timers() noexcept { return timers_; }
  std::chrono::microseconds max_spin() const noexcept { return options_.max_spin; }

  // Ends every thread; tasks that have not begun are rejected. Waits for those that run.
  void stop();

  ReactorCounters counters() const;

 private:
  friend class Role;
  class Blocked;
  class ThreadWaiter;
  class Inside;
  class Events;
  class Unused;
  struct Thread;
  class Slot;

  static constexpr int kForPatientTasks = 16;  // threads beyond max_threads

  // The life of a thread: reactor.cc.
  void loop(const std::shared_ptr<Thread>& self);
  bool run_tasks();
  void learn_task_time(Clock::duration took) noexcept;
  void queue(std::unique_ptr<Task> task, bool mine);
  class Hot;
  bool spin(Source& hot);
  bool read_between_turns(Source& hot, TurnsOfOthers& turns, Role& role);
  bool sleep(Hot& hot);
  void dispatch_event(uint64_t key, Hot& hot);
  std::shared_ptr<Source> give_back_event(uint64_t key) noexcept;
  bool retire(Thread& self);
  bool leave();

  // Who runs what: reactor_tasks.cc.
  int readers_locked() const FARSPAN_REQUIRES(mutex_) {
    return alive_ - running_ - blocked_ - in_callbacks_.load();
  }
  void begin_callbacks();
  void end_callbacks();
  void fetch_lent();
  void keep_a_reader_locked() FARSPAN_REQUIRES(mutex_);
  void move_locked(Station from, Station to) FARSPAN_REQUIRES(mutex_);
  bool may_take_locked() const FARSPAN_REQUIRES(mutex_);
  bool at_limit_locked() const FARSPAN_REQUIRES(mutex_);
  bool exhausted_locked() const FARSPAN_REQUIRES(mutex_);
  void note_change_locked() FARSPAN_REQUIRES(mutex_);
  bool spawn_locked() FARSPAN_REQUIRES(mutex_);
  void look_at_shortage();
  bool take_locked(std::unique_ptr<Task>& task) FARSPAN_REQUIRES(mutex_);
  static bool has_processor_for(int64_t task_ns) noexcept;
  bool is_worth_a_thread_locked() const FARSPAN_REQUIRES(mutex_);
  bool is_left_to_another() const noexcept;
  bool has_task() const noexcept;
  void share_queue_locked() FARSPAN_REQUIRES(mutex_);
  Blocked* waits_in_locked(uint64_t chain) const FARSPAN_REQUIRES(mutex_);
  void call_chain_locked(const Task& task) FARSPAN_REQUIRES(mutex_);
  void relieve_at_limit();
  void reject_queue(const Error& why);
  void wake_one() noexcept;
  void wake(uint64_t count) noexcept;
  void hear_wake() noexcept;

  // How a thread waits: reactor_wait.cc.
  bool spin_wait(FutureCore& future, TimePoint start, Deadline deadline, Source* hint,
                 SpinGovernor* polling, bool was_idle, Role& role, TimePoint& seen);
  bool look_between_turns(FutureCore& future, TimePoint start, Deadline deadline, Source& source,
                          Role& role);
  void look_at(Source& source, Role& role) noexcept;
  void look_while_bytes_pass(FutureCore& future, Deadline deadline, Source& source, Role& role,
                             const Blocked& blocked);
  void look_when_expected(FutureCore& future, TimePoint until, Deadline deadline, Source& source,
                          Role& role, const Blocked& blocked);
  void look_on(FutureCore& future, SpinTime time, Deadline deadline, Source& source, Role& role,
               const Blocked& blocked);
  Expected within_limits(Expected expected, TimePoint start) const noexcept;
  bool sleep_wait(FutureCore& future, TimePoint start, Deadline deadline, Source* hint,
                  Expected expected, Role& role, Slot& slot, TimePoint& seen);
  bool sleep_without_slot(FutureCore& future, Deadline deadline, Source* hint, Role& role,
                          Slot& slot);
  static Slot& thread_slot();
  void stop_waiting_for(Source& source) noexcept;
  void flush_and_tell(Source& source) noexcept;

  // Who reads a source: role.cc.
  void arm(Source& source) noexcept;
  // By another thread, which arms it then.
  void read_soon(uint64_t key);
  void disarm(Source& source) noexcept;
  void lease(Source& source);
  void look_at_leases_in(std::chrono::microseconds time) noexcept;
  void put_off_leases() noexcept;
  bool tasks_are_short() const noexcept;
  std::shared_ptr<Source> find(uint64_t key);

  const ReactorOptions options_;
  const OwnedDescriptor epoll_;
  const OwnedDescriptor wake_fd_;  // counts the threads that are to wake up
  const OwnedDescriptor stop_fd_;
  const QuickLooks quick_looks_;
  Timers timers_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> wakeups_{0}, spin_hits_{0}, spin_misses_{0}, spin_ns_{0};
  std::atomic<int> in_callbacks_{0};       // threads that would read, and run callbacks of futures
  std::atomic<size_t> queued_{0};          // queue_.size(), for a look without the lock
  std::atomic<int64_t> task_ns_{0};        // running mean of what a task takes
  std::atomic<bool> runs_tasks_{false};    // running_ > 0
  std::atomic<Clock::rep> last_begun_{0};  // a task, whichever thread's

  mutable Mutex mutex_;
  TaskQueue queue_ FARSPAN_GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::vector<Blocked*>> waiting_
      FARSPAN_GUARDED_BY(mutex_);  // by chain
  std::vector<std::shared_ptr<Thread>> threads_ FARSPAN_GUARDED_BY(mutex_);
  std::vector<std::thread> ended_ FARSPAN_GUARDED_BY(mutex_);  // retired, to be joined
  int max_threads_
      FARSPAN_GUARDED_BY(mutex_);  // fewer than the option's when the system gives less
  int patient_threads_ FARSPAN_GUARDED_BY(mutex_);            // beyond that, for patient tasks
  bool short_of_threads_ FARSPAN_GUARDED_BY(mutex_) = false;  // look_at_shortage() will come
  bool stopped_ FARSPAN_GUARDED_BY(mutex_) = false;           // no thread is left, and none comes
  int alive_ FARSPAN_GUARDED_BY(mutex_) = 0;
  int running_ FARSPAN_GUARDED_BY(mutex_) = 0;         // inside a task, and not blocked
  int running_beyond_ FARSPAN_GUARDED_BY(mutex_) = 0;  // of those: patient ones beyond the limit
  int blocked_ FARSPAN_GUARDED_BY(mutex_) = 0;         // waiting, inside a task or a callback
  int sleeping_ FARSPAN_GUARDED_BY(mutex_) = 0;        // in epoll_wait
  // When all threads were blocked and work waited; max: it is not so.
  TimePoint stalled_since_ FARSPAN_GUARDED_BY(mutex_) = TimePoint::max();
  TimePoint patient_stalled_since_ FARSPAN_GUARDED_BY(mutex_) = TimePoint::max();
  TimePoint warn_from_ FARSPAN_GUARDED_BY(mutex_) = TimePoint::min();  // of patient tasks that wait
  // At the limit: the threads that wait know of what is queued of their chains.
  bool chains_called_ FARSPAN_GUARDED_BY(mutex_) = false;

  std::atomic<Clock::rep> leases_end_{0};  // of those that are not in use by then
  Mutex leases_mutex_;
  int put_offs_ FARSPAN_GUARDED_BY(leases_mutex_) = 0;  // in a row
  std::vector<std::shared_ptr<Source>> leases_ FARSPAN_GUARDED_BY(leases_mutex_);

  Mutex sources_mutex_;
  uint64_t next_key_ FARSPAN_GUARDED_BY(sources_mutex_);
  std::unordered_map<uint64_t, std::shared_ptr<Source>> sources_ FARSPAN_GUARDED_BY(sources_mutex_);
};

// Whether the calling thread is one of a reactor's own.
bool on_reactor_thread() noexcept;
// Whether it is, or runs a callback while it waits by means of a reactor, which must outlive that.
bool inside_reactor() noexcept;

// How many Reactor::wait() the calling thread is in, one inside what another one runs.
int depth_of_waits() noexcept;
// Whether the calling thread has the stack for one task more.
bool has_stack_for_task() noexcept;

// The chain of nested calls that the calling thread is in; 0: none.
uint64_t current_chain() noexcept;
void set_current_chain(uint64_t chain) noexcept;
// That of the thread while it exists.
class InChain {
 public:
  explicit InChain(uint64_t chain) noexcept : outer_(current_chain()) { set_current_chain(chain); }
  ~InChain() { set_current_chain(outer_); }
  InChain(const InChain&) = delete;
  InChain& operator=(const InChain&) = delete;

 private:
  const uint64_t outer_;
};

}  // namespace farspan::net
