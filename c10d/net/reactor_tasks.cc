// Who runs what: the queue, the number of threads, and what happens at its limit.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <farspan/c10d/net/reactor_state.h>

namespace farspan::net {
namespace {

// Work left in the queue that takes longer than this is worth waking another thread for.
constexpr int64_t kWorthAWakeUpNs = 50'000;
// How long work may lie behind a task that takes longer than expected.
constexpr std::chrono::milliseconds kRescueAfter{1};
// How often to try again after the system has given no thread.
constexpr std::chrono::milliseconds kShortageLooks{100};
// How long no blocked thread may have moved before work is turned away: until then one may come
// back, and take it.
constexpr std::chrono::seconds kStalledAfter{1};

}  // namespace

void Reactor::move_locked(Station from, Station to) {
  const int starts = (to == Station::kInTask) - (from == Station::kInTask);
  running_ += starts;
  if (thread_state().beyond_limit) running_beyond_ += starts;
  blocked_ += (to == Station::kWaiting) - (from == Station::kWaiting);
  note_exhaustion_locked();
}

void Reactor::note_exhaustion_locked() {
  if (!exhausted_locked()) {
    exhausted_since_ = TimePoint::max();
  } else if (exhausted_since_ == TimePoint::max()) {
    exhausted_since_ = Clock::now();
    offered_ = false;
  }
}

// Whether a thread may take one of the queue's tasks. One thread more may be alive, which reads:
// what comes in is always read, however long tasks take.
bool Reactor::may_take_locked() const {
  if (queue_.empty() || running_ >= options_.threads) return false;
  const int busy = running_ + blocked_;
  return busy < max_threads_ || (queue_.has_patient() && busy < max_threads_ + patient_threads_);
}

// All that may are blocked. Patient tasks that run beyond the limit do not help the others.
bool Reactor::exhausted_locked() const {
  return running_ == running_beyond_ && blocked_ >= max_threads_;
}

// False when there can be no more threads.
bool Reactor::spawn_locked() {
  if (stopped_) return false;
  auto thread = std::make_shared<Thread>();
  threads_.push_back(thread);
  ++alive_;
  try {
    thread->handle = std::thread([this, thread] { loop(thread); });
    return true;
  } catch (const std::system_error&) {
    threads_.pop_back();
    --alive_;
    max_threads_ = std::max(alive_ - 1, 0);  // the system's limit is ours, and one thread reads
    patient_threads_ = 0;
    note_exhaustion_locked();
    if (!std::exchange(short_of_threads_, true)) {
      timers_.add(Clock::now() + kShortageLooks, [this] { look_at_shortage(); });
    }
    return false;
  }
}

// The options' limits hold again as soon as the system gives a thread.
void Reactor::look_at_shortage() {
  MutexLock lock(mutex_);
  short_of_threads_ = false;
  if (!spawn_locked()) return;
  max_threads_ = options_.max_threads;
  patient_threads_ = kForPatientTasks;
  note_exhaustion_locked();
  share_queue_locked();
}

void Reactor::keep_a_reader_locked() {
  if (readers_locked() < 1) spawn_locked();
}

// Callbacks may be long: when all who read are in some, another one has to.
void Reactor::begin_callbacks() {
  MutexLock lock(mutex_);
  in_callbacks_.fetch_add(1);
  if (alive_ <= max_threads_ + patient_threads_) keep_a_reader_locked();
}

void Reactor::wake_one() noexcept {
  wakeups_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t one = 1;
  while (write(wake_fd_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

// Called after a thread took a task, or became blocked: does what is left need another thread?
void Reactor::share_queue_locked() {
  keep_a_reader_locked();
  if (!may_take_locked()) return;
  if (sleeping_ > 0) {
    wake_one();
  } else if (readers_locked() <= 1) {
    spawn_locked();
  }
}

void Reactor::run(std::unique_ptr<Task> task) {
  const ThreadState& self = thread_state();
  const bool mine = self.reactor == this && self.station == Station::kLooping;
  bool stopped = false, exhausted = false;
  {
    MutexLock lock(mutex_);
    stopped = stopping_.load();
    if (!stopped) {
      const bool first = !queue_.has_others();
      if (!exhausted_locked() || !give_to_chain_locked(task)) queue_.push(std::move(task));
      if (first && queue_.has_others() && exhausted_locked()) {
        exhausted_since_ = Clock::now();  // for nobody has waited before
      }
      queued_.store(queue_.size(), std::memory_order_release);
      if (!mine) share_queue_locked();
      exhausted = exhausted_locked();
    }
  }
  if (stopped) return task->reject(Error(Code::kShutdown, "the worker has been shut down"));
  if (exhausted) relieve_if_exhausted();
}

// False when the next task cannot be run for want of a thread that would read meanwhile.
bool Reactor::take_locked(std::unique_ptr<Task>& task) {
  if (readers_locked() <= 1 && !spawn_locked()) return false;
  thread_state().beyond_limit = running_ + blocked_ >= max_threads_;
  task = thread_state().beyond_limit ? queue_.pop_patient() : queue_.pop();
  queued_.store(queue_.size(), std::memory_order_release);
  move_locked(Station::kLooping, Station::kInTask);
  const auto left = static_cast<int64_t>(queue_.size());
  if (left * task_ns_.load(std::memory_order_relaxed) > kWorthAWakeUpNs) {
    share_queue_locked();
  } else if (left > 0) {
    timers_.nudge(Clock::now() + kRescueAfter);
  }
  return true;
}

bool Reactor::run_one_task() {
  std::unique_ptr<Task> task;
  bool taken = false;
  {
    MutexLock lock(mutex_);
    taken = may_take_locked() && take_locked(task);
    if (!taken && !exhausted_locked()) return false;
  }
  if (!taken) {
    relieve_if_exhausted();
    return false;
  }
  ThreadState& self = thread_state();
  self.station = Station::kInTask;
  self.chain = task->chain;
  const TimePoint begun = Clock::now();
  task->run();
  task.reset();
  const int64_t took =
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begun).count();
  const int64_t mean = task_ns_.load(std::memory_order_relaxed);
  task_ns_.store(mean + (took - mean) / 8, std::memory_order_relaxed);
  self.station = Station::kLooping;
  self.chain = 0;
  MutexLock lock(mutex_);
  move_locked(Station::kInTask, Station::kLooping);
  self.beyond_limit = false;
  return true;
}

void Reactor::reject_queue(const Error& why) {
  std::vector<std::unique_ptr<Task>> rejected;
  {
    MutexLock lock(mutex_);
    rejected = queue_.take_all();
    queued_.store(0);
  }
  for (auto& task : rejected) task->reject(why);
}

// To the thread of the task's own chain that began to wait here last; false when there is none.
bool Reactor::give_to_chain_locked(std::unique_ptr<Task>& task) {
  const auto waiting = task->chain == 0 ? waiting_.end() : waiting_.find(task->chain);
  if (waiting == waiting_.end()) return false;
  Slot& innermost = *waiting->second.back();
  innermost.inbox.push_back(std::move(task));
  innermost.has_mail.store(true, std::memory_order_release);
  innermost.wake();
  return true;
}

// No thread can be had for what is queued: tasks whose chains have threads that wait here run on
// those, patient ones stay, the others are turned away when nothing moves.
void Reactor::relieve_if_exhausted() {
  std::vector<std::unique_ptr<Task>> rejected;
  int threads = 0;
  {
    MutexLock lock(mutex_);
    if (!exhausted_locked() || queue_.empty()) return;
    threads = blocked_;
    if (!std::exchange(offered_, true)) {
      for (auto& task : queue_.take_all()) {
        if (!give_to_chain_locked(task)) queue_.push(std::move(task));
      }
    }
    const TimePoint stalled_at = exhausted_since_ + kStalledAfter;
    if (Clock::now() >= stalled_at) {
      rejected = queue_.take_others();
    } else if (queue_.has_others()) {
      timers_.nudge(stalled_at);
    }
    queued_.store(queue_.size());
    share_queue_locked();
  }
  for (auto& task : rejected) {
    task->reject(Error(Code::kOverloaded, "all " + std::to_string(threads) +
                                              " threads are blocked in calls of their own, and "
                                              "none has come back for 1 s")
                     .advice("call less at once, or raise WorkerOptions::max_threads"));
  }
}

}  // namespace farspan::net
