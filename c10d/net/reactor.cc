#include <farspan/c10d/net/reactor.h>

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <farspan/c10d/base/processors.h>
#include <farspan/c10d/base/unfinished.h>
#include <farspan/c10d/net/reactor_state.h>

namespace farspan::net {
namespace {

constexpr uint64_t kWakeKey = 1, kStopKey = 2, kTimersKey = 3, kFirstSourceKey = 16;
constexpr uint64_t kWriteBit = uint64_t{1} << 63;
// By their edges: by its level, each thread that epoll wakes for one would wake another one.
constexpr uint32_t kByEdge = EPOLLIN | EPOLLET;
constexpr int kIdleLoopers = 2;        // kept asleep, so that one reads while another runs a task
constexpr int kRetireAfterMs = 2'000;  // how long a superfluous thread stays idle

OwnedDescriptor checked(int fd, const char* what) {
  if (fd >= 0) return OwnedDescriptor(fd);
  throw Error(Code::kOverloaded, std::string(what) + ": " + std::strerror(errno))
      .operation("start of a reactor")
      .advice("raise the limit of open files (ulimit -n)");
}

ReactorOptions completed(ReactorOptions options) {
  if (options.threads <= 0) {
    options.threads = std::clamp(available_processors(), 2, 16);
  }
  options.max_threads = std::max(options.max_threads, options.threads);
  return options;
}

void watch(int epoll, int operation, int fd, uint32_t events, uint64_t key) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  epoll_ctl(epoll, operation, fd, &event);  // fails only for a source that is being removed
}

}  // namespace

ThreadState& thread_state() noexcept {
  thread_local ThreadState state;
  return state;
}

bool on_reactor_thread() noexcept { return thread_state().reactor != nullptr; }
bool inside_reactor() noexcept { return on_reactor_thread() || thread_state().waits > 0; }
int depth_of_waits() noexcept { return thread_state().waits; }
uint64_t current_chain() noexcept { return thread_state().chain; }
void set_current_chain(uint64_t chain) noexcept { thread_state().chain = chain; }

Reactor::Reactor(ReactorOptions options)
    : options_(completed(std::move(options))),
      epoll_(checked(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
      wake_fd_(checked(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")),
      stop_fd_(checked(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd")),
      max_threads_(options_.max_threads),
      patient_threads_(kForPatientTasks),
      next_key_(kFirstSourceKey) {
  watch(epoll_.get(), EPOLL_CTL_ADD, wake_fd_.get(), kByEdge, kWakeKey);
  watch(epoll_.get(), EPOLL_CTL_ADD, stop_fd_.get(), EPOLLIN, kStopKey);
  watch(epoll_.get(), EPOLL_CTL_ADD, timers_.descriptor(), kByEdge, kTimersKey);
  MutexLock lock(mutex_);
  for (int i = 0; i < kIdleLoopers; ++i) spawn_locked();
  if (alive_ > 0) return;
  throw Error(Code::kOverloaded, "the system gives no thread")
      .operation("start of a reactor")
      .advice("raise the limit of processes and threads (ulimit -u)");
}

Reactor::~Reactor() { stop(); }

void Reactor::stop() {
  stopping_.store(true);
  const uint64_t one = 1;
  if (write(stop_fd_.get(), &one, sizeof one) < 0) stopping_.store(true);  // full: readable already
  const Error why(Code::kShutdown, "the worker has been shut down");
  reject_queue(why);  // before the joins: a task that runs may wait for one that never will
  {
    MutexLock lock(mutex_);
    if (timers_.has_due()) keep_a_reader_locked();  // those who read may have left already
  }
  for (;;) {
    std::vector<std::thread> ended;
    std::vector<std::shared_ptr<Thread>> threads;
    {
      MutexLock lock(mutex_);
      ended.swap(ended_);
      threads.swap(threads_);
      stopped_ = ended.empty() && threads.empty();
      if (stopped_) break;
    }
    for (auto& thread : threads) thread->handle.join();
    for (auto& thread : ended) thread.join();
  }
  timers_.run_due();  // what threads have handed over, and none took any more
  std::unordered_map<uint64_t, std::shared_ptr<Source>> sources;  // destroyed outside the lock
  MutexLock lock(sources_mutex_);
  sources.swap(sources_);
}

void Reactor::add(const std::shared_ptr<Source>& source) {
  {
    MutexLock lock(sources_mutex_);
    if (source->removed_.load()) return;  // by another thread, already
    source->key_ = next_key_++;
    sources_.emplace(source->key_, source);
  }
  if (source->write_descriptor() >= 0) {
    watch(epoll_.get(), EPOLL_CTL_ADD, source->write_descriptor(), EPOLLONESHOT,
          source->key_ | kWriteBit);
  }
  Role first;  // whose release arms it
  first.take(*this, *source, false);
  watch(epoll_.get(), EPOLL_CTL_ADD, source->descriptor(), EPOLLONESHOT, source->key_);
}

void Reactor::remove(Source& source) noexcept {
  if (source.removed_.exchange(true)) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, source.descriptor(), nullptr);
  if (source.write_descriptor() >= 0) {
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, source.write_descriptor(), nullptr);
  }
  std::shared_ptr<Source> dropped;  // destroyed outside the lock
  MutexLock lock(sources_mutex_);
  const auto found = sources_.find(source.key_);
  if (found == sources_.end()) return;
  dropped = std::move(found->second);
  sources_.erase(found);
}

void Reactor::flush_when_writable(Source& source) noexcept {
  if (source.removed_.load(std::memory_order_acquire)) return;
  source.expect_room();  // when there is some, this fires at once
  watch(epoll_.get(), EPOLL_CTL_MOD, source.write_descriptor(), EPOLLOUT | EPOLLONESHOT,
        source.key_ | kWriteBit);
}

std::shared_ptr<Source> Reactor::find(uint64_t key) {
  MutexLock lock(sources_mutex_);
  const auto found = sources_.find(key);
  return found == sources_.end() ? nullptr : found->second;
}

// What a thread has just read from, and polls before it sleeps.
class Reactor::Hot {
 public:
  Hot() = default;
  ~Hot() { cool(); }
  Hot(const Hot&) = delete;
  Hot& operator=(const Hot&) = delete;

  Source* source() const noexcept { return source_.get(); }
  bool is_for_others_too() const noexcept {
    return source_ && source_->hot_for_.load(std::memory_order_relaxed) > 1;
  }
  void heat(std::shared_ptr<Source> source) noexcept {
    cool();
    source_ = std::move(source);
    source_->hot_for_.fetch_add(1, std::memory_order_relaxed);
  }
  void cool() noexcept {
    if (source_) source_->hot_for_.fetch_sub(1, std::memory_order_relaxed);
    source_.reset();
  }

 private:
  std::shared_ptr<Source> source_;
};

void Reactor::loop(const std::shared_ptr<Thread>& self) {
  pthread_setname_np(pthread_self(), options_.name.substr(0, 15).c_str());
  ThreadWaiter waiter(*this);
  set_current_waiter(&waiter);
  thread_state() = {this, Station::kLooping};
  Hot hot;
  bool retired = false;
  while (!retired) {
    if (stopping_.load(std::memory_order_acquire)) {
      timers_.run_due();
      if (leave()) break;
      continue;
    }
    if (run_tasks()) continue;
    // Who runs the tasks polls the same source as soon as it has done them: two are too many.
    const bool is_others = hot.is_for_others_too() && is_left_to_another();
    if (hot.source() && !is_others && spin(*hot.source())) continue;
    hot.cool();
    if (!sleep(hot)) retired = retire(*self);
  }
  set_current_waiter(nullptr);
  thread_state() = {};
}

// At the end. What blocked threads have handed over to the timers is still run, or they and whoever
// waits for it would never end: a thread that hands over sees that none reads, or is seen here.
bool Reactor::leave() {
  MutexLock lock(mutex_);
  if (timers_.has_due()) return false;
  --alive_;
  return true;
}

// Polls what was just read from; true when there is something to do.
bool Reactor::spin(Source& hot) {
  const TimePoint start = Clock::now();
  hot.reads().begin(start);
  const auto budget = std::min(hot.reads().budget(), options_.max_spin);
  const SpinPermit permit(budget.count() <= 0 || is_crowded(start));
  TurnsOfOthers turns(start, hot.questions_);
  const bool may_look = permit || (budget.count() > 0 && turns.any());
  if (!may_look && hot.armed_.load(std::memory_order_relaxed)) return false;
  Role role;
  if (!role.take(*this, hot, false)) return false;
  if (!may_look) return hot.pump(role);  // once, and arms it: nobody looks after the lease
  if (!permit) return read_between_turns(hot, turns, role);
  if (shares_processor() && !is_crowded(start)) leave_processor();
  role.may_lease(tasks_are_short());
  SpinTime time(start, budget);
  uint64_t passed = hot.passed_bytes();
  while (!stopping_.load(std::memory_order_relaxed) && !hot.removed()) {
    const bool has_come = hot.pump(role);
    if (has_come) hot.reads().arrived(time.now());
    if (has_come || has_task()) {
      count_spin(time.now() - start, true);
      return true;
    }
    if (!time.is_over()) continue;
    const uint64_t before = std::exchange(passed, hot.passed_bytes());
    if (passed == before || is_crowded(time.now())) break;
    time = SpinTime(time.now(), budget);  // a large message is coming
  }
  role.may_lease(false);
  count_spin(time.now() - start, false);
  return false;
}

bool Reactor::read_between_turns(Source& hot, TurnsOfOthers& turns, Role& role) {
  role.may_lease(tasks_are_short());
  do {
    if (hot.pump(role)) {
      hot.reads().arrived(Clock::now());
      count_spin(Clock::duration::zero(), true);
      return true;
    }
    if (has_task()) return true;
  } while (!stopping_.load(std::memory_order_relaxed) && !hot.removed() && turns.pass());
  role.may_lease(false);
  count_spin(Clock::duration::zero(), false);
  return false;
}

void Reactor::count_spin(Clock::duration took, bool hit) noexcept {
  (hit ? spin_hits_ : spin_misses_).fetch_add(1, std::memory_order_relaxed);
  spin_ns_.fetch_add(static_cast<uint64_t>(std::chrono::nanoseconds(took).count()),
                     std::memory_order_relaxed);
}

// What epoll gave to this thread, which nobody else hears of again until it is armed anew.
class Reactor::Events final : Unfinished {
 public:
  explicit Events(Reactor& reactor) : Unfinished(reactor.timers_), reactor_(reactor) {}
  // The number of events; 0 when the time is up, negative when interrupted. The reactor's own come
  // first: nobody else hears of these edges, and what a source brings may take long.
  int wait(int timeout_ms) {
    count_ = epoll_wait(reactor_.epoll_.get(), events_, kMax, timeout_ms);
    const auto is_own = [](const epoll_event& event) { return event.data.u64 < kFirstSourceKey; };
    if (count_ > 1) std::stable_partition(events_, events_ + count_, is_own);
    return count_;
  }
  bool next(uint64_t& key) {
    if (next_ >= count_) return false;
    key = events_[next_++].data.u64;
    return true;
  }

 private:
  bool has_more() const noexcept override { return next_ < count_; }
  void hand_over() noexcept override {
    for (uint64_t key; next(key);) given_back_.push_back(reactor_.give_back_event(key));
  }

  static constexpr int kMax = 16;
  Reactor& reactor_;
  epoll_event events_[kMax];
  int next_ = 0, count_ = 0;
  std::vector<std::shared_ptr<Source>> given_back_;  // perhaps the last to hold them
};

// Returns false when nothing happened for long enough that a superfluous thread may go.
bool Reactor::sleep(Hot& hot) {
  int timeout_ms = -1;
  {
    MutexLock lock(mutex_);
    if (may_take_locked()) {
      if (!is_left_to_another()) return true;
      timers_.nudge(Clock::now() + kRescueAfter);
    }
    ++sleeping_;
    if (readers_locked() > kIdleLoopers) timeout_ms = kRetireAfterMs;
  }
  Events events(*this);
  const int count = events.wait(timeout_ms);
  {
    MutexLock lock(mutex_);
    --sleeping_;
  }
  for (uint64_t key; events.next(key);) dispatch_event(key, hot);
  return count != 0;
}

// This thread is awake; of several that were to wake up the next one is told of the rest.
void Reactor::hear_wake() noexcept {
  uint64_t count = 0;
  while (read(wake_fd_.get(), &count, sizeof count) < 0 && errno == EINTR) {
  }
  if (count > 1) wake(count - 1);
}

void Reactor::dispatch_event(uint64_t key, Hot& hot) {
  if (key == kWakeKey) return hear_wake();
  if (key == kTimersKey) {
    Timers::Due due(timers_);
    fetch_lent();  // after that: see Timers::nudge
    Unused unused(*this);
    due.run();
    unused.pump();
    return;
  }
  if (key == kStopKey) return;
  std::shared_ptr<Source> source = find(key & ~kWriteBit);
  if (!source) return;
  if (key & kWriteBit) {
    flush_and_tell(*source);
    return;
  }
  Role role;
  if (!role.take(*this, *source, true)) return;
  // Setting a lease's timer takes longer than to arm it: only where it is one of many messages.
  const bool is_polled =
      source->hot_for_.load(std::memory_order_relaxed) > 0 && is_left_to_another();
  const bool is_leased = is_polled || source->leased_.load(std::memory_order_relaxed);
  role.may_lease(tasks_are_short() && is_leased);
  source->reads().arrived(Clock::now());
  if (source->pump(role)) {
    if (!source->removed()) hot.heat(std::move(source));
  } else {
    role.may_lease(false);
  }
}

// stop_fd_ stays readable by itself.
std::shared_ptr<Source> Reactor::give_back_event(uint64_t key) noexcept {
  if (key == kTimersKey || key == kWakeKey) {  // whatever is readable by then is an edge
    const int fd = key == kWakeKey ? wake_fd_.get() : timers_.descriptor();
    watch(epoll_.get(), EPOLL_CTL_MOD, fd, kByEdge, key);
    return nullptr;
  }
  std::shared_ptr<Source> source = find(key & ~kWriteBit);
  if (source && (key & kWriteBit)) {
    flush_when_writable(*source);
  } else if (source) {
    Role role;
    role.take(*this, *source, true);  // and arms it again
  }
  return source;
}

bool Reactor::retire(Thread& self) {
  std::vector<std::thread> before;  // joined without the lock: what users keep for a thread ends
  {
    MutexLock lock(mutex_);
    if (stopping_.load() || readers_locked() <= kIdleLoopers) return false;
    const auto found = std::find_if(threads_.begin(), threads_.end(),
                                    [&](const auto& thread) { return thread.get() == &self; });
    if (found == threads_.end()) return false;  // stop() is joining it
    before.swap(ended_);
    ended_.push_back(std::move((*found)->handle));
    threads_.erase(found);
    --alive_;
  }
  for (auto& thread : before) thread.join();
  return true;
}

ReactorCounters Reactor::counters() const {
  ReactorCounters counters;
  counters.wakeups = wakeups_.load();
  counters.spin_hits = spin_hits_.load();
  counters.spin_misses = spin_misses_.load();
  counters.spin_time = std::chrono::nanoseconds(spin_ns_.load());
  MutexLock lock(mutex_);
  counters.threads = alive_;
  counters.running = running_;
  counters.blocked = blocked_;
  return counters;
}

}  // namespace farspan::net
