// How a thread waits: it polls for what it waits for, then sleeps on it.
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include <farspan/c10d/net/reactor_state.h>

namespace farspan::net {
namespace {

// Who waits for longer is not back before a lease has ended, and its end wakes a thread.
constexpr std::chrono::microseconds kSoon{500};

// The callbacks that would lie behind one that blocks. A few threads run them, however many wait.
class CallbackTask final : public Task {
 public:
  CallbackTask(Timers& timers, std::function<void()> callbacks)
      : timers_(timers), callbacks_(std::move(callbacks)) {
    patient = true;
  }
  void run() noexcept override { callbacks_(); }
  // At the end: futures depend on them, and they must not run on top of the one that blocks.
  void reject(const Error&) noexcept override { timers_.add(TimePoint(), std::move(callbacks_)); }

 private:
  Timers& timers_;
  std::function<void()> callbacks_;
};

}  // namespace

bool has_stack_for_task() noexcept {
  constexpr size_t kEnough = size_t{1} << 20;
  struct Stack {
    size_t bottom = 0, size = 0;
    Stack() noexcept {
      pthread_attr_t attributes;
      void* address = nullptr;
      if (pthread_getattr_np(pthread_self(), &attributes) != 0) return;
      if (pthread_attr_getstack(&attributes, &address, &size) == 0) {
        bottom = reinterpret_cast<size_t>(address);
      }
      pthread_attr_destroy(&attributes);
    }
  };
  thread_local const Stack stack;
  const auto here = reinterpret_cast<size_t>(__builtin_frame_address(0));
  return here - stack.bottom > std::min(kEnough, stack.size / 4);
}

Reactor::Slot::~Slot() {
  while (wakers_.load(std::memory_order_acquire) > 0) std::this_thread::yield();
  if (fd_ >= 0) close(fd_);
}

bool Reactor::Slot::open() noexcept {
  if (fd_ < 0) fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  return fd_ >= 0;
}

void Reactor::Slot::expect_wake() noexcept {
  wakers_.fetch_add(1, std::memory_order_relaxed);
  woken_.store(true);
}

void Reactor::Slot::wake() noexcept {
  const uint64_t one = 1;
  while (write(fd_, &one, sizeof one) < 0 && errno == EINTR) {
  }
  wakers_.fetch_sub(1, std::memory_order_release);
}

// In this order: what is expected after the reading is still to come.
void Reactor::Slot::clear() noexcept {
  uint64_t count = 0;
  while (read(fd_, &count, sizeof count) < 0 && errno == EINTR) {
  }
  woken_.store(false);
}

Reactor::Slot& Reactor::thread_slot() {
  thread_local Slot slot;
  return slot;
}

// A thread from outside counts for no reactor, but may be given tasks of the chain it waits in.
Reactor::Blocked::Blocked(Reactor& waited_on, Slot& slot)
    : outer_(thread_state()),
      reactor_(outer_.reactor ? *outer_.reactor : waited_on),
      waiting_(outer_.reactor ? Station::kWaiting : Station::kOutside),
      slot_(slot),
      pause_([this](std::function<void()> row) {
        reactor_.run(std::make_unique<CallbackTask>(reactor_.timers_, std::move(row)));
      }) {
  if (outer_.chain != 0) {
    MutexLock lock(reactor_.mutex_);
    reactor_.waiting_[outer_.chain].push_back(this);
  }
  enter(outer_.station);
}

Reactor::Blocked::~Blocked() {
  leave(outer_.station);
  if (outer_.chain == 0) return;
  {
    MutexLock lock(reactor_.mutex_);
    const auto waiting = reactor_.waiting_.find(outer_.chain);
    std::erase(waiting->second, this);
    if (waiting->second.empty()) {
      reactor_.waiting_.erase(waiting);
    } else if (is_called()) {
      waiting->second.back()->call();
    }
  }
  if (is_called()) reactor_.relieve_at_limit();  // nobody else looks after what it was called for
}

void Reactor::Blocked::call() noexcept {
  called_.store(true, std::memory_order_release);
  slot_.wake_now();
}

void Reactor::Blocked::enter(Station from) {
  if (outer_.reactor) thread_state().station = waiting_;
  {
    MutexLock lock(reactor_.mutex_);
    if (outer_.reactor) reactor_.move_locked(from, waiting_);
    if (outer_.in_callbacks > 0 && from == Station::kLooping) reactor_.in_callbacks_.fetch_sub(1);
    const bool needed = outer_.chain != 0 && reactor_.at_limit_locked() &&
                        !reactor_.queue_.empty() && reactor_.queue_.has_chain(outer_.chain);
    if (needed) called_.store(true);
    reactor_.share_queue_locked();
  }
  reactor_.relieve_at_limit();
}

void Reactor::Blocked::leave(Station to) {
  if (outer_.reactor) thread_state().station = to;
  MutexLock lock(reactor_.mutex_);
  if (outer_.in_callbacks > 0 && to == Station::kLooping) reactor_.in_callbacks_.fetch_add(1);
  if (outer_.reactor) reactor_.move_locked(waiting_, to);
  reactor_.share_queue_locked();
}

void Reactor::Blocked::run_own() {
  std::unique_ptr<Task> task;
  {
    MutexLock lock(reactor_.mutex_);
    if (reactor_.at_limit_locked()) task = reactor_.queue_.pop_of_chain(outer_.chain);
    if (!task) return called_.store(false);
    reactor_.note_change_locked();
  }
  if (!has_stack_for_task()) {
    return task->reject(Error(Code::kOverloaded, "calls are nested too deeply for a thread's stack")
                            .advice("recurse less deeply, or raise the stack's limit (ulimit -s)"));
  }
  leave(Station::kInTask);
  task->run();
  task.reset();
  enter(Station::kInTask);
}

// The calling thread inside wait(): callbacks that it runs there may block as those of the
// reactor's own threads do.
class Reactor::Inside {
 public:
  explicit Inside(Reactor& reactor) : waiter_(reactor), outer_(current_waiter()) {
    ++thread_state().waits;
    if (!on_reactor_thread()) set_current_waiter(&waiter_);
  }
  ~Inside() {
    set_current_waiter(outer_);
    --thread_state().waits;
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  ThreadWaiter waiter_;
  Waiter* const outer_;
};

bool Reactor::wait(FutureCore& future, Deadline deadline, Source* hint, const WaitPlan& plan) {
  if (future.ready()) {
    if (hint) stop_waiting_for(*hint);  // which expect_answer() may have kept another one from
    return true;
  }
  const Inside inside(*this);
  const TimePoint start = Clock::now();
  Role role;
  // Whoever called after a while is not back in no time, and the other end has gone to sleep, too.
  const bool was_idle = hint && hint->was_idle();
  role.may_lease(plan.back_soon && hint && !was_idle);
  role.hands_over();
  Slot& slot = thread_slot();
  const Expected expected = hint ? within_limits(plan.expected, start) : Expected{};
  // A wait of which more is known says nothing of the others.
  SpinGovernor* polling = hint ? plan.polling : nullptr;
  if (hint && !polling && expected.empty()) polling = &hint->answers();
  const bool polls = polling || !hint;
  TimePoint seen;  // when there was last something to read: what that leads to may take long
  const bool ready =
      (polls && spin_wait(future, start, deadline, hint, polling, was_idle, role, seen)) ||
      (slot.open() ? sleep_wait(future, start, deadline, hint, expected, role, slot, seen)
                   : sleep_without_slot(future, deadline, hint, role, slot));
  if (!hint) return ready;
  const TimePoint now = Clock::now();
  hint->last_wait_.store(now.time_since_epoch().count(), std::memory_order_relaxed);
  if (polling) {
    if (seen == TimePoint()) seen = now;
    polling->learn(ready ? seen - start : Clock::duration::max());
  }
  role.release();
  stop_waiting_for(*hint);
  return ready;
}

void Reactor::run_here(std::unique_ptr<Task> task) noexcept {
  const Inside inside(*this);
  const InChain chain(task->chain);
  task->run();
}

// Empty: as if nobody knew.
Expected Reactor::within_limits(Expected expected, TimePoint start) const noexcept {
  if (expected.until <= start || (was_crowded() && is_crowded(start))) return {};
  // For so little nobody sleeps.
  if (expected.from <= start + kLongSpinLimit) expected.from = start;
  const auto most = Forecast::kLongestInSpins * options_.max_spin;
  return {expected.from, std::min(expected.until, expected.from + most)};
}

void Reactor::stop_waiting_for(Source& source) noexcept {
  source.hand_over();
  flush_and_tell(source);
}

// What is left others write.
void Reactor::flush_and_tell(Source& source) noexcept {
  if (source.flush()) flush_when_writable(source);
  if (source.has_news()) source.tell_news();
}

bool Reactor::spin_wait(FutureCore& future, TimePoint start, Deadline deadline, Source* hint,
                        SpinGovernor* polling, bool was_idle, Role& role, TimePoint& seen) {
  const auto budget = std::min(polling ? polling->budget() : kSpinLimit, options_.max_spin);
  if (budget.count() <= 0) return false;
  const SpinPermit permit(is_crowded(start));
  if (!permit) return hint && look_between_turns(future, start, deadline, *hint, role);
  SpinTime time(start, budget, deadline.at());
  if (was_idle) {
    // What the call has woken is most likely behind this thread. The turn comes before: to signal
    // would be in vain.
    role.take(*this, *hint, false);
    let_others_go_first();
  }
  bool ready = false;
  while (!ready && !time.is_over()) {
    if (hint) {
      look_at(*hint, role);
    } else {
      cpu_relax();
    }
    ready = future.ready();
  }
  seen = time.now();
  count_spin(seen - start, ready);
  return ready;
}

// Whoever of those that wait gets the processor first reads for all.
bool Reactor::look_between_turns(FutureCore& future, TimePoint start, Deadline deadline,
                                 Source& source, Role& role) {
  bool has_looked = false, ready = false;
  for (TurnsOfOthers turns(start, source.questions_);
       !ready && !deadline.expired() && turns.pass();) {
    look_at(source, role);
    if (role.leases()) role.release();
    has_looked = true;
    ready = future.ready();
  }
  if (has_looked) count_spin(Clock::duration::zero(), ready);
  return ready;
}

// Moves what there is, in both directions, as far as nobody else does.
void Reactor::look_at(Source& source, Role& role) noexcept {
  source.flush();
  if (source.has_news()) {
    role.release();
    source.tell_news();
  }
  if (!role.held()) role.take(*this, source, false);
  if (role.held()) {
    source.pump(role);
  } else {
    cpu_relax();
  }
}

// While a large message passes, which is quicker than being woken for each part of it. The thread
// counts as blocked meanwhile, so others run what it waits for.
void Reactor::look_while_bytes_pass(FutureCore& future, Deadline deadline, Source& source,
                                    Role& role, const Blocked& blocked) {
  const TimePoint start = Clock::now();
  const auto budget = std::min(kSpinLimit, options_.max_spin);
  const SpinPermit permit(was_crowded() && is_crowded(start));  // a look disproves
  if (permit) look_on(future, {start, budget, deadline.at()}, deadline, source, role, blocked);
}

// Its other end need not wake this thread, which takes it as long as the thread.
void Reactor::look_when_expected(FutureCore& future, TimePoint until, Deadline deadline,
                                 Source& source, Role& role, const Blocked& blocked) {
  const TimePoint start = Clock::now();
  const SpinPermit permit(start >= until || lacks_processors(start));
  if (!permit) return;
  if (role.held()) source.expect_no_input();
  look_on(future, {start, until - start, deadline.at()}, deadline, source, role, blocked);
}

// And on, as long as bytes pass.
void Reactor::look_on(FutureCore& future, SpinTime time, Deadline deadline, Source& source,
                      Role& role, const Blocked& blocked) {
  const TimePoint start = time.now();
  const auto budget = std::min(kSpinLimit, options_.max_spin);
  uint64_t passed = source.passed_bytes();
  while (!future.ready() && !blocked.is_called() && !source.removed()) {
    look_at(source, role);
    if (!time.is_over()) continue;
    const uint64_t before = std::exchange(passed, source.passed_bytes());
    if (passed == before || deadline.expired() || is_crowded(time.now())) break;
    time = SpinTime(time.now(), budget, deadline.at());
  }
  count_spin(time.now() - start, future.ready());
}

bool Reactor::sleep_wait(FutureCore& future, TimePoint start, Deadline deadline, Source* hint,
                         Expected expected, Role& role, Slot& slot, TimePoint& seen) {
  Blocked blocked(*this, slot);
  uint64_t passed = hint ? hint->passed_bytes() : 0;
  const bool may_poll = options_.max_spin.count() > 0;
  while (!future.ready()) {
    if (blocked.is_called()) {
      role.release();  // a task may take long, and wait for this very source
      if (hint) stop_waiting_for(*hint);
      blocked.run_own();
      continue;
    }
    if (hint && hint->removed()) {
      role.release();
      hint = nullptr;
      expected = {};
    }
    if (hint && may_poll && hint->passed_bytes() != passed) {
      look_while_bytes_pass(future, deadline, *hint, role, blocked);
      passed = hint->passed_bytes();
      continue;
    }
    if (hint && !expected.empty() && Clock::now() >= expected.from) {
      const TimePoint until = std::exchange(expected, {}).until;
      look_when_expected(future, until, deadline, *hint, role, blocked);
      continue;
    }
    const bool left_to_write = hint && hint->flush();
    if (hint && hint->has_news()) {
      role.release();
      hint->tell_news();
      continue;
    }
    if (!future.add_sleeper(slot)) break;
    const bool follows = hint && !role.held() && !role.take(*this, *hint, false);
    if (follows) {
      hint->follow(slot);
      role.take(*this, *hint, false);  // the reader may have left just before
    }
    pollfd fds[3] = {{slot.descriptor(), POLLIN, 0}, {-1, POLLIN, 0}, {-1, POLLOUT, 0}};
    if (role.held()) fds[1].fd = hint->descriptor();
    if (left_to_write) fds[2].fd = hint->write_descriptor();
    const bool has_input = role.held() && !hint->expect_input();
    const bool at_once = has_input || (left_to_write && !hint->expect_room());
    const Deadline next = expected.empty() ? deadline : earlier(deadline, Deadline(expected.from));
    timespec left{};
    if (!at_once && !next.is_never()) {
      const auto ns = std::chrono::ceil<std::chrono::nanoseconds>(next.remaining()).count();
      left.tv_sec = ns / 1'000'000'000;
      left.tv_nsec = ns % 1'000'000'000;
    }
    ppoll(fds, 3, next.is_never() && !at_once ? nullptr : &left, nullptr);
    future.remove_sleeper(slot);
    if (follows) hint->unfollow(slot);
    if (fds[0].revents) slot.clear();
    seen = Clock::now();
    if (seen - start > kSoon) role.may_lease(false);
    if (fds[1].revents || has_input) {
      if (left_to_write) flush_when_writable(*hint);  // what is read may run for long
      hint->pump(role);
    }
    if (deadline.expired()) break;
  }
  return future.ready();
}

// Without a descriptor of its own a thread cannot read while it sleeps: others do.
bool Reactor::sleep_without_slot(FutureCore& future, Deadline deadline, Source* hint, Role& role,
                                 Slot& slot) {
  const Blocked blocked(*this, slot);
  role.may_lease(false);
  role.release();
  if (hint) stop_waiting_for(*hint);
  return future.sleep(deadline);
}

}  // namespace farspan::net
