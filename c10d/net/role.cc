// Who reads a source: the turn, the lease, and the threads that follow.
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include <farspan/c10d/net/reactor_state.h>

namespace farspan::net {
namespace {

constexpr std::chrono::microseconds kLease{1000};
// Of sources that have been in use without a break for some ends of a lease: setting a timer may
// take 20 us in a virtual machine.
constexpr std::chrono::microseconds kLongLease{4000};
constexpr int kUntilLong = 8;
// How often who uses a lease looks whether it is time to put off its end.
constexpr uint32_t kUsesToALook = 8;
// How many releases must arm after a lease kept something waiting.
constexpr uint32_t kLeaseBan = 256;
// Tasks that take longer than this give up the turn for good while they run.
constexpr int64_t kShortTaskNs = 50'000;

void rearm(int epoll, int fd, uint32_t events, uint64_t key) noexcept {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event);  // fails only for a source that is being removed
}

}  // namespace

void Reactor::arm(Source& source) noexcept {
  source.armed_.store(true, std::memory_order_relaxed);
  if (source.removed_.load(std::memory_order_acquire)) return;
  rearm(epoll_.get(), source.descriptor(), EPOLLIN | EPOLLONESHOT, source.key_);
  if (source.expect_input()) return;
  // Something has come that nobody signals. There is room to write a signal, unless the other end
  // takes none of many, so this fires.
  rearm(epoll_.get(), source.descriptor(), EPOLLIN | EPOLLOUT | EPOLLONESHOT, source.key_);
}

void Reactor::disarm(Source& source) noexcept {
  source.armed_.store(false, std::memory_order_relaxed);
  if (source.removed_.load(std::memory_order_acquire)) return;
  // Not zero: a hang-up is always reported, and must be reported once only.
  rearm(epoll_.get(), source.descriptor(), EPOLLONESHOT, source.key_);
  source.expect_no_input();
}

void Reactor::expect_answer(Source& source) noexcept {
  const bool is_leased = source.leased_.load(std::memory_order_relaxed);
  if (is_leased && !source.armed_.load(std::memory_order_relaxed)) return;
  const Clock::duration last_wait(source.last_wait_.load(std::memory_order_relaxed));
  const bool was_idle = !is_leased && Clock::now() - TimePoint(last_wait) > kLease;
  source.was_idle_.store(was_idle, std::memory_order_relaxed);
  // The other end sleeps, too, or needs long: it is soon enough to take the turn when the request
  // is on its way, and a lease would be over before the answer.
  if (was_idle || !source.answers().comes_soon()) return;
  if (source.no_leases_.load(std::memory_order_relaxed) > 0) return;
  Role role;
  role.may_lease(true);
  role.hands_over();  // when its wait is over
  role.take(*this, source, false);
}

bool Role::take(Reactor& reactor, Source& source, bool fired) noexcept {
  uint32_t free = 0;
  if (!source.turn_.compare_exchange_strong(free, Source::kHeld)) {
    if (!fired) return false;
    // The holder learns that epoll is disarmed, unless it has just gone: then the turn is ours.
    const uint32_t before = source.turn_.fetch_or(Source::kFired, std::memory_order_acq_rel);
    if (before & Source::kHeld) return false;
    uint32_t marked = Source::kFired;
    if (!source.turn_.compare_exchange_strong(marked, Source::kHeld, std::memory_order_acquire)) {
      return false;
    }
  }
  reactor_ = &reactor;
  source_ = &source;
  if (fired) {
    source.armed_.store(false, std::memory_order_relaxed);
  } else if (source.armed_.load(std::memory_order_relaxed)) {
    reactor.disarm(source);
  }
  return true;
}

bool Role::take_disarmed(Reactor& reactor, Source& source) noexcept {
  uint32_t free = 0;
  if (!source.turn_.compare_exchange_strong(free, Source::kHeld)) return false;
  if (source.armed_.load(std::memory_order_relaxed)) {
    if (!(source.turn_.exchange(0, std::memory_order_acq_rel) & Source::kFired)) return false;
    // Epoll fired meanwhile, and whoever got it went away.
    free = 0;
    if (!source.turn_.compare_exchange_strong(free, Source::kHeld, std::memory_order_acquire)) {
      return false;
    }
    source.armed_.store(false, std::memory_order_relaxed);
  }
  reactor_ = &reactor;
  source_ = &source;
  return true;
}

void Role::release() noexcept {
  if (!source_) return;
  Source& source = *std::exchange(source_, nullptr);
  if (may_lease_ && release_on_lease(source)) return;
  const uint64_t key = source.key_;  // the source may be gone as soon as its turn is free
  source.turn_.fetch_and(~Source::kFired, std::memory_order_relaxed);
  reactor_->arm(source);
  if (source.turn_.exchange(0, std::memory_order_acq_rel) & Source::kFired) {
    // Epoll fired between arm() and the exchange, and whoever got it went away. Arming once more
    // would fire once more, for as long as there is something to be read.
    reactor_->read_soon(key);
  }
}

void Reactor::read_soon(uint64_t key) {
  timers_.add(TimePoint(), [this, key] {
    const std::shared_ptr<Source> source = find(key);
    Role role;
    if (source && role.take(*this, *source, true)) source->pump(role);
  });
}

bool Role::release_on_lease(Source& source) noexcept {
  if (source.no_leases_.load(std::memory_order_relaxed) > 0) {
    source.no_leases_.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }
  if (!hands_over_ && source.follower_count_.load() > 0) return false;
  const uint32_t uses = source.uses_.fetch_add(1, std::memory_order_relaxed);
  if (uses % kUsesToALook == 0) reactor_->put_off_leases();
  if (source.turn_.exchange(0) & Source::kFired) {
    uint32_t free = 0;  // an event was lost on the way: arm, unless a new holder will
    return !source.turn_.compare_exchange_strong(free, Source::kHeld, std::memory_order_acquire);
  }
  // Only now that the turn is free: Unused ends the lease first and then tries the turn, so
  // either it gets the turn or the lease is seen to have ended here.
  if (!source.leased_.load()) reactor_->lease(source);
  // To one that came after the look above, and did not get the turn.
  if (!hands_over_) source.hand_over();
  return true;
}

bool Reactor::tasks_are_short() const noexcept {
  return task_ns_.load(std::memory_order_relaxed) < kShortTaskNs;
}

// From now on Unused looks after the source.
void Reactor::lease(Source& source) {
  {
    MutexLock lock(leases_mutex_);
    if (source.leased_.exchange(true)) return;
    source.uses_seen_ = source.uses_.load(std::memory_order_relaxed);
    leases_.push_back(source.shared_from_this());
    put_offs_ = 0;
    const TimePoint::duration end(leases_end_.load(std::memory_order_relaxed));
    if (leases_.size() > 1 && TimePoint(end) <= Clock::now() + kLease) return;  // for it, too
  }
  look_at_leases_in(kLease);
}

void Reactor::look_at_leases_in(std::chrono::microseconds time) noexcept {
  const TimePoint at = Clock::now() + time;
  leases_end_.store(at.time_since_epoch().count(), std::memory_order_relaxed);
  timers_.watch(at);
}

// While all are in use, who uses them says so, and no thread needs to wake up to see it.
void Reactor::put_off_leases() noexcept {
  const TimePoint now = Clock::now();
  const Clock::duration left(leases_end_.load(std::memory_order_relaxed) -
                             now.time_since_epoch().count());
  if (left > kLease / 4 || left <= Clock::duration::zero()) return;
  bool long_used = false;
  {
    MutexLock lock(leases_mutex_);
    const auto in_use = [](const std::shared_ptr<Source>& source) {
      return source->uses_seen_ != source->uses_.load(std::memory_order_relaxed);
    };
    if (leases_.empty() || !std::all_of(leases_.begin(), leases_.end(), in_use)) return;
    for (const auto& source : leases_) {
      source->uses_seen_ = source->uses_.load(std::memory_order_relaxed);
    }
    long_used = ++put_offs_ > kUntilLong;
  }
  look_at_leases_in(long_used ? kLongLease : kLease);
}

// Sources that are in use keep their lease.
Reactor::Unused::Unused(Reactor& reactor) : Unfinished(reactor.timers_), reactor_(reactor) {
  bool some_left = false;
  {
    MutexLock lock(reactor.leases_mutex_);
    std::erase_if(reactor.leases_, [&](const std::shared_ptr<Source>& source) {
      const uint32_t uses = source->uses_.load(std::memory_order_relaxed);
      const bool in_use = std::exchange(source->uses_seen_, uses) != uses;
      if (!in_use) {
        source->leased_.store(false);
        sources_.push_back(source);
      }
      return !in_use;
    });
    some_left = !reactor.leases_.empty();
    reactor.put_offs_ = 0;
  }
  if (some_left) reactor.look_at_leases_in(kLease);
}

void Reactor::Unused::pump() {
  while (next_ < sources_.size()) {
    Source& source = *sources_[next_++];
    Role role;
    if (source.removed() || !role.take_disarmed(reactor_, source)) continue;  // its holder arms it
    // Who runs tasks will poll it again, and was only held up.
    const bool is_polled = source.hot_for_.load(std::memory_order_relaxed) > 0 &&
                           reactor_.runs_tasks_.load(std::memory_order_relaxed);
    if (source.pump(role) && !is_polled) source.no_leases_.store(kLeaseBan);
  }
}

void Reactor::Unused::hand_over() noexcept {
  while (next_ < sources_.size()) {
    Role role;
    role.take(reactor_, *sources_[next_++], false);  // and arms it
  }
}

void Source::follow(Follower& follower) {
  MutexLock lock(followers_mutex_);
  followers_.push_back(&follower);
  follower_count_.store(static_cast<int>(followers_.size()));
}

void Source::unfollow(Follower& follower) {
  MutexLock lock(followers_mutex_);
  const auto mine = std::find(followers_.begin(), followers_.end(), &follower);
  if (mine != followers_.end()) followers_.erase(mine);
  follower_count_.store(static_cast<int>(followers_.size()));
}

// One that wakes up anyhow tries the turn itself, or hands over when it goes. It is woken without
// the lock, which it takes first of all.
void Source::hand_over() noexcept {
  if (follower_count_.load() == 0 || (turn_.load() & kHeld)) return;
  Follower* next = nullptr;
  {
    MutexLock lock(followers_mutex_);
    const auto asleep = std::find_if(followers_.begin(), followers_.end(),
                                     [](const Follower* one) { return !one->is_woken(); });
    if (asleep == followers_.end()) return;
    next = *asleep;
    next->expect_wake();
  }
  next->wake();
}

}  // namespace farspan::net
