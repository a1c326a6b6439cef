// Who runs what: the queue, the number of threads, and what happens at its limit.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/net/reactor_state.h>

namespace farspan::net {
namespace {

// Work left in the queue that takes longer than this is worth waking another thread for.
constexpr int64_t kWorthAWakeUpNs = 50'000;
// Two threads that take such tasks are in each other's way, which makes the tasks longer: only
// where there is a processor for it. Who sends tiny ones needs one, too, and finds it taken.
constexpr int64_t kSmallTaskNs = 20'000, kTinyTaskNs = 5'000;
// How often to try again after the system has given no thread.
constexpr std::chrono::milliseconds kShortageLooks{100};
// How long no blocked thread may have moved before work is turned away: until then one may come
// back, and take it.
constexpr std::chrono::seconds kStalledAfter{1};
// How often to say that patient work lies there.
constexpr std::chrono::seconds kWarnEvery{60};

void keep_clock(TimePoint& since, bool stalled) noexcept {
  if (!stalled) {
    since = TimePoint::max();
  } else if (since == TimePoint::max()) {
    since = Clock::now();
  }
}

}  // namespace

void Reactor::move_locked(Station from, Station to) {
  const int starts = (to == Station::kInTask) - (from == Station::kInTask);
  running_ += starts;
  if (thread_state().beyond_limit) running_beyond_ += starts;
  blocked_ += (to == Station::kWaiting) - (from == Station::kWaiting);
  note_change_locked();
}

// Called whenever the queue, the limit or what threads do has changed.
void Reactor::note_change_locked() {
  queued_.store(queue_.size(), std::memory_order_release);
  runs_tasks_.store(running_ > 0, std::memory_order_relaxed);
  const bool exhausted = exhausted_locked();
  keep_clock(stalled_since_, exhausted && queue_.has_others());
  keep_clock(patient_stalled_since_, exhausted && queue_.has_patient() && !may_take_locked());
  if (std::exchange(chains_called_, at_limit_locked()) || !chains_called_ || queue_.empty()) return;
  for (const auto& [chain, blocked] : waiting_) {
    if (queue_.has_chain(chain)) blocked.back()->call();
  }
}

// Whether a thread may take one of the queue's tasks. One thread more may be alive, which reads:
// what comes in is always read, however long tasks take.
bool Reactor::may_take_locked() const {
  if (queue_.empty() || running_ >= options_.threads) return false;
  if (short_of_threads_ && readers_locked() <= 1) return false;
  const int busy = running_ + blocked_;
  return busy < max_threads_ || (queue_.has_patient() && busy < max_threads_ + patient_threads_);
}

// Tasks that are not patient get a thread only when one comes back.
bool Reactor::at_limit_locked() const { return running_ + blocked_ >= max_threads_; }

// And all that may are blocked. Patient tasks that run beyond the limit do not help the others.
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
    note_change_locked();
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
  note_change_locked();
  share_queue_locked();
}

void Reactor::keep_a_reader_locked() {
  if (readers_locked() < 1) spawn_locked();
}

// Callbacks may be long: when all who read are in some, another one has to, and what lies behind
// them is soon looked after.
void Reactor::begin_callbacks() {
  ThreadState& self = thread_state();
  if (self.station != Station::kLooping || self.in_callbacks++ > 0) return;
  MutexLock lock(mutex_);
  in_callbacks_.fetch_add(1);
  if (alive_ <= max_threads_ + patient_threads_) keep_a_reader_locked();
  if (!queue_.empty()) timers_.nudge(Clock::now() + kRescueAfter);
}

void Reactor::end_callbacks() {
  ThreadState& self = thread_state();
  if (self.station == Station::kLooping && --self.in_callbacks == 0) in_callbacks_.fetch_sub(1);
}

void Reactor::fetch_lent() {
  bool idle = false;
  {
    MutexLock lock(mutex_);
    idle = running_ + in_callbacks_.load() < options_.threads;
  }
  const TimePoint next = timers_.fetch(idle);
  if (next != TimePoint::max()) timers_.nudge(next);
}

void Reactor::wake_one() noexcept {
  wakeups_.fetch_add(1, std::memory_order_relaxed);
  wake(1);
}

void Reactor::wake(uint64_t count) noexcept {
  while (write(wake_fd_.get(), &count, sizeof count) < 0 && errno == EINTR) {
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
  queue(std::move(task), self.reactor == this && self.station == Station::kLooping);
}

void Reactor::run_elsewhere(std::unique_ptr<Task> task) { queue(std::move(task), false); }

// `mine`: the calling thread will soon look at the queue.
void Reactor::queue(std::unique_ptr<Task> task, bool mine) {
  bool stopped = false, at_limit = false;
  {
    MutexLock lock(mutex_);
    stopped = stopping_.load();
    if (!stopped) {
      at_limit = at_limit_locked();
      if (at_limit) call_chain_locked(*task);
      queue_.push(std::move(task));
      note_change_locked();
      if (!mine) {
        share_queue_locked();
      } else if (thread_state().in_callbacks > 0) {
        timers_.nudge(Clock::now() + kRescueAfter);
      }
    }
  }
  if (stopped) return task->reject(Error(Code::kShutdown, "the worker has been shut down"));
  if (at_limit) relieve_at_limit();
}

// False when the next task cannot be run for want of a thread that would read meanwhile.
bool Reactor::take_locked(std::unique_ptr<Task>& task) {
  if (readers_locked() <= 1 && !spawn_locked()) return false;
  thread_state().beyond_limit = running_ + blocked_ >= max_threads_;
  task = thread_state().beyond_limit ? queue_.pop_patient() : queue_.pop();
  move_locked(Station::kLooping, Station::kInTask);
  if (is_worth_a_thread_locked()) {
    share_queue_locked();
  } else if (!queue_.empty()) {
    timers_.nudge(Clock::now() + kRescueAfter);
  }
  return true;
}

// Whether another thread would be done with what is queued much sooner.
bool Reactor::is_worth_a_thread_locked() const {
  const int64_t task_ns = task_ns_.load(std::memory_order_relaxed);
  if (static_cast<int64_t>(queue_.size()) * task_ns <= kWorthAWakeUpNs) return false;
  return task_ns > kSmallTaskNs || has_processor_for(task_ns);
}

// Whether there is one that a second thread would not take from anybody.
bool Reactor::has_processor_for(int64_t task_ns) noexcept {
  return has_idle_processors(Clock::now(), task_ns > kTinyTaskNs ? 1 : 2);
}

// Whether the thread that is at the queue's tasks soon takes the next one, too. It looks again when
// it is done; for when it is held up, whoever goes has another look taken.
bool Reactor::is_left_to_another() const noexcept {
  const int64_t task_ns = task_ns_.load(std::memory_order_relaxed);
  if (!runs_tasks_.load(std::memory_order_relaxed) || task_ns > kSmallTaskNs) return false;
  const size_t queued = queued_.load(std::memory_order_relaxed);
  if (static_cast<int64_t>(queued) * task_ns > kWorthAWakeUpNs && has_processor_for(task_ns)) {
    return false;
  }
  const Clock::duration begun(last_begun_.load(std::memory_order_relaxed));
  return Clock::now().time_since_epoch() - begun < kRescueAfter;
}

// Whether the calling thread has something to take from the queue. What waits for a thread that is
// at another task is nothing to stop polling for: whoever did would be back at once.
bool Reactor::has_task() const noexcept {
  if (queued_.load(std::memory_order_relaxed) == 0 || is_left_to_another()) return false;
  MutexLock lock(mutex_);
  return may_take_locked();
}

// One that was held up, by a thread that took its processor perhaps, says little of the others.
void Reactor::learn_task_time(Clock::duration took) noexcept {
  const int64_t mean = task_ns_.load(std::memory_order_relaxed);
  const int64_t ns = std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
  task_ns_.store(mean + (std::min(ns, 4 * mean + kTinyTaskNs) - mean) / 8,
                 std::memory_order_relaxed);
}

// As long as there are some that the calling thread may take; true when it has run any.
bool Reactor::run_tasks() {
  if (queued_.load(std::memory_order_acquire) == 0 || is_left_to_another()) return false;
  ThreadState& self = thread_state();
  bool has_run = false, none_can_be_had = false;
  TimePoint begun = Clock::now();
  mutex_.lock();
  while (!stopping_.load(std::memory_order_relaxed) && !queue_.empty()) {
    if (has_run && is_left_to_another()) break;
    std::unique_ptr<Task> task;
    if (!may_take_locked() || !take_locked(task)) {
      none_can_be_had = at_limit_locked();
      break;
    }
    mutex_.unlock();
    self.station = Station::kInTask;
    self.chain = task->chain;
    last_begun_.store(begun.time_since_epoch().count(), std::memory_order_relaxed);
    task->run();
    task.reset();
    const TimePoint ended = Clock::now();
    learn_task_time(ended - begun);
    begun = ended;
    self.station = Station::kLooping;
    self.chain = 0;
    has_run = true;
    mutex_.lock();
    move_locked(Station::kInTask, Station::kLooping);
    self.beyond_limit = false;
  }
  mutex_.unlock();
  if (none_can_be_had) relieve_at_limit();
  return has_run;
}

void Reactor::reject_queue(const Error& why) {
  std::vector<std::unique_ptr<Task>> rejected;
  {
    MutexLock lock(mutex_);
    rejected = queue_.take_all();
    note_change_locked();
  }
  for (auto& task : rejected) task->reject(why);
}

// Who waits in this chain, the one that began last; null: nobody does.
Reactor::Blocked* Reactor::waits_in_locked(uint64_t chain) const {
  const auto waiting = chain == 0 ? waiting_.end() : waiting_.find(chain);
  return waiting == waiting_.end() ? nullptr : waiting->second.back();
}

// The thread of the task's own chain, if one waits, is to run it, unless another is free before.
void Reactor::call_chain_locked(const Task& task) {
  if (Blocked* const blocked = waits_in_locked(task.chain)) blocked->call();
}

// No thread can be had for what is queued, but those that wait in its own chains: patient tasks
// stay, the others are turned away when nothing moves.
void Reactor::relieve_at_limit() {
  std::vector<std::unique_ptr<Task>> rejected;
  bool warn = false;
  std::string all;
  {
    MutexLock lock(mutex_);
    if (!at_limit_locked() || queue_.empty()) return;
    const TimePoint now = Clock::now();
    if (stalled_since_ <= now - kStalledAfter) {
      rejected = queue_.take_others([this](const Task& task) FARSPAN_NO_THREAD_SAFETY_ANALYSIS {
        return waits_in_locked(task.chain) != nullptr;
      });
      stalled_since_ = now;
      note_change_locked();
    }
    if (stalled_since_ != TimePoint::max()) timers_.nudge(stalled_since_ + kStalledAfter);
    if (patient_stalled_since_ <= now - kStalledAfter) {
      warn = now >= warn_from_;
      if (warn) warn_from_ = now + kWarnEvery;
    } else if (patient_stalled_since_ != TimePoint::max()) {
      timers_.nudge(patient_stalled_since_ + kStalledAfter);
    }
    share_queue_locked();
    if (warn || !rejected.empty()) all = "all " + std::to_string(blocked_) + " threads are blocked";
  }
  const char* advice = "call less at once, or raise WorkerOptions::max_threads";
  if (warn) {
    log(LogLevel::kWarning, "net",
        all + ", and continuations or one-way requests wait for one: " + advice);
  }
  for (auto& task : rejected) {
    task->reject(
        Error(Code::kOverloaded, all + " in calls of their own, and none has come back for 1 s")
            .advice(advice));
  }
}

}  // namespace farspan::net
