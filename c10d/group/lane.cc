#include <farspan/c10d/group/lane.h>

#include <pthread.h>

#include <system_error>
#include <utility>

#include <farspan/c10d/base/log.h>

namespace farspan::dist {
namespace {

constexpr std::chrono::seconds kIdleTime{2};   // until the thread ends
constexpr std::chrono::seconds kLookAgain{1};  // whether a waiting thread can help

}  // namespace

Lane::~Lane() {
  // Only a lane whose last task let go of it on its own thread still has one.
  if (thread_.joinable()) thread_.detach();
}

uint64_t Lane::try_take() {
  MutexLock lock(mutex_);
  if (taken_ || !queue_.empty() || stopped_) return 0;
  taken_ = true;
  return ++count_;
}

void Lane::release() {
  MutexLock lock(mutex_);
  taken_ = false;
  if (!queue_.empty()) call_thread_locked();
}

void Lane::post(std::shared_ptr<Task> task, bool here) {
  {
    MutexLock lock(mutex_);
    if (!stopped_) {
      // Never what others have posted: their callbacks do not expect the locks of this caller.
      const bool at_once = here && !taken_ && queue_.empty();
      task->sequence_ = ++count_;
      queue_.push_back(task);
      if (at_once) work_off_locked(task.get());
      if (!taken_ && !queue_.empty()) call_thread_locked();
      return;
    }
  }
  task->reject();
}

void Lane::stop() {
  std::deque<std::shared_ptr<Task>> rejected;
  std::thread thread;
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    rejected.swap(queue_);
    work_.notify_all();
    if (thread_.get_id() != std::this_thread::get_id()) thread.swap(thread_);
  }
  for (const auto& task : rejected) task->reject();
  if (thread.joinable()) thread.join();
}

uint64_t Lane::count() const {
  MutexLock lock(mutex_);
  return count_;
}

void Lane::call_thread_locked() {
  if (has_thread_) return work_.notify_one();
  if (thread_.joinable()) thread_.join();  // it has left loop(), and needs no lock any more
  try {
    thread_ = std::thread([self = shared_from_this()] {
      pthread_setname_np(pthread_self(), "farspan-group");
      self->loop();
    });
    has_thread_ = true;
  } catch (const std::system_error& error) {
    // Whoever waits runs it, or the thread that the next call gets.
    log(LogLevel::kWarning, "c10d/group",
        std::string("no thread for asynchronous calls: ") + error.what());
  }
}

void Lane::loop() {
  MutexLock lock(mutex_);
  while (!stopped_) {
    if (!queue_.empty() && !taken_) {
      work_off_locked(nullptr);
    } else if (!work_.wait_until(mutex_, Deadline::after(kIdleTime)) && queue_.empty()) {
      break;
    }
  }
  has_thread_ = false;
}

// Whether a thread that waits for `until`, or for nothing, can run what comes next. Never what is
// behind that: it has been taken, and is about to be ready.
bool Lane::may_take_next_locked(const Task* until) const {
  if (taken_ || queue_.empty()) return false;
  if (!until) return true;
  const Task& next = *queue_.front();
  if (until->ready() || next.sequence_ > until->sequence_) return false;
  if (next.deadline_.at() <= until->deadline_.at()) return true;
  return !has_thread_ || thread_.get_id() == std::this_thread::get_id();  // else that one does it
}

// Runs what is queued until `until` is ready, or nothing is left that this thread may take.
void Lane::work_off_locked(const Task* until) {
  while (may_take_next_locked(until)) {
    const std::shared_ptr<Task> task = std::move(queue_.front());
    queue_.pop_front();
    if (task->deadline_.expired()) {
      mutex_.unlock();
      task->expire(task->sequence_);
      mutex_.lock();
      continue;
    }
    taken_ = true;
    mutex_.unlock();
    task->run(task->sequence_);
    mutex_.lock();
    taken_ = false;
    mutex_.unlock();
    task->complete();
    mutex_.lock();
  }
}

// The caller waits for the task: it runs it itself, with what is before it, if it can.
void Lane::help(Task& task) {
  MutexLock lock(mutex_);
  if (taken_ || queue_.empty()) return;
  if (queue_.front()->deadline_.at() > task.deadline_.at()) call_thread_locked();
  work_off_locked(&task);
  if (!taken_ && !queue_.empty()) call_thread_locked();
}

// False when it has begun, or ended.
bool Lane::withdraw(const Task& task) {
  MutexLock lock(mutex_);
  return std::erase_if(queue_, [&](const auto& one) { return one.get() == &task; }) > 0;
}

bool Lane::Task::block(Deadline deadline) {
  while (true) {
    // A call may take longer than the caller wants to wait.
    if (deadline.is_never()) lane_->help(*this);
    const bool is_due = deadline_.expired();
    if (is_due && lane_->withdraw(*this)) expire(sequence_);
    // Now and then: there may be no thread to be had for the lane.
    const Deadline look = Deadline::after(kLookAgain);
    const Deadline next = is_due ? look : earlier(look, deadline_);  // else the backend ends it
    if (ready() || sleep(earlier(deadline, next))) return true;
    if (deadline.expired()) return false;
  }
}

}  // namespace farspan::dist
