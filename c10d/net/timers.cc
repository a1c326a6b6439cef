#include <farspan/c10d/net/timers.h>

#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::net {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

int64_t to_ns(TimePoint at) noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

}  // namespace

Timers::Timers()
    : fd_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)), armed_for_(kNever) {
  if (fd_ < 0) {
    throw Error(Code::kOverloaded, std::string("timerfd_create: ") + std::strerror(errno))
        .advice("raise the limit of open files (ulimit -n)");
  }
}

Timers::~Timers() { close(fd_); }

TimerId Timers::add(TimePoint at, std::function<void()> callback) {
  MutexLock lock(mutex_);
  const TimerId id = next_id_++;
  insert_locked(at, {id, std::move(callback)});
  if (to_ns(at) < armed_for_.load(std::memory_order_relaxed)) set_descriptor_locked();
  return id;
}

bool Timers::cancel(TimerId id) {
  std::function<void()> dropped;  // destroyed outside the lock
  MutexLock lock(mutex_);
  const auto found = by_id_.find(id);
  if (found == by_id_.end()) return false;
  dropped = std::move(found->second->second.callback);
  entries_.erase(found->second);
  by_id_.erase(found);
  return true;
}

void Timers::nudge(TimePoint at) noexcept {
  if (to_ns(at) >= armed_for_.load(std::memory_order_relaxed)) return;
  MutexLock lock(mutex_);
  nudge_ = std::min(nudge_, at);
  set_descriptor_locked();
}

void Timers::watch(TimePoint at) noexcept {
  MutexLock lock(mutex_);
  watch_ = at;
  set_descriptor_locked();
}

Timers::Due::Due(Timers& timers) : Unfinished(timers), timers_(timers) {
  uint64_t expirations = 0;
  // What is due is decided by the clock alone; reading only makes the descriptor quiet again.
  if (read(timers_.fd_, &expirations, sizeof expirations) < 0 && errno != EAGAIN) return;
  MutexLock lock(timers_.mutex_);
  const TimePoint now = Clock::now();
  auto& entries = timers_.entries_;
  while (!entries.empty() && entries.begin()->first <= now) {
    due_.push_back(std::move(entries.begin()->second));
    timers_.by_id_.erase(due_.back().id);
    entries.erase(entries.begin());
  }
  if (timers_.nudge_ <= now) timers_.nudge_ = TimePoint::max();
  if (timers_.watch_ <= now) timers_.watch_ = TimePoint::max();
  if (timers_.next_locked() == TimePoint::max() && timers_.armed_for_.load() <= to_ns(now)) {
    timers_.armed_for_.store(kNever, std::memory_order_relaxed);  // it has fired: nothing to unset
  } else {
    timers_.set_descriptor_locked();
  }
}

void Timers::Due::run() {
  while (next_ < due_.size()) {
    const std::function<void()> callback = std::move(due_[next_++].callback);
    callback();
  }
}

void Timers::Due::hand_over() noexcept {
  if (next_ == due_.size()) return;
  MutexLock lock(timers_.mutex_);
  while (next_ < due_.size()) timers_.insert_locked(TimePoint(), std::move(due_[next_++]));
  timers_.set_descriptor_locked();
}

bool Timers::has_due() {
  MutexLock lock(mutex_);
  return !entries_.empty() && entries_.begin()->first <= Clock::now();
}

void Timers::run_due() { Due(*this).run(); }

void Timers::insert_locked(TimePoint at, Entry entry) {
  const TimerId id = entry.id;
  by_id_[id] = entries_.emplace(at, std::move(entry));
}

TimePoint Timers::next_locked() const {
  const TimePoint next = std::min(nudge_, watch_);
  return entries_.empty() ? next : std::min(next, entries_.begin()->first);
}

void Timers::set_descriptor_locked() {
  const TimePoint next = next_locked();
  itimerspec spec{};
  if (next == TimePoint::max()) {
    armed_for_.store(kNever, std::memory_order_relaxed);
  } else {
    const int64_t ns = std::max<int64_t>(to_ns(next), 1);  // zero would disarm it
    spec.it_value.tv_sec = ns / 1'000'000'000;
    spec.it_value.tv_nsec = ns % 1'000'000'000;
    armed_for_.store(ns, std::memory_order_relaxed);
  }
  timerfd_settime(fd_, TFD_TIMER_ABSTIME, &spec, nullptr);
}

}  // namespace farspan::net
