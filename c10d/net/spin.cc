#include <farspan/c10d/net/spin.h>

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/processors.h>
#include <farspan/c10d/net/owned_descriptor.h>

namespace farspan::net {
namespace {

// Somebody else has run for at least so long: nothing else makes a yield take that long.
constexpr std::chrono::microseconds kTurn{3};
constexpr int kManyTurns = 16;
thread_local int shared_turns = 0;  // in a row

constexpr int kTurnsToPass = 32;
constexpr std::chrono::milliseconds kLongTurn{1};
constexpr int kRestAfterLongTurn = 20;  // times what it took
// Threads that ask so often do little else, nor does who answers them.
constexpr std::chrono::microseconds kOfAQuestion{10};
std::atomic<Clock::rep> no_turns_before{0};

OwnedDescriptor open_load() noexcept {
  return OwnedDescriptor(open("/proc/loadavg", O_RDONLY | O_CLOEXEC));
}

// What reactors keep open. Never destroyed: threads that end late may look.
struct KeptOpen {
  Mutex mutex;
  int users FARSPAN_GUARDED_BY(mutex) = 0;
  OwnedDescriptor file FARSPAN_GUARDED_BY(mutex);
};
KeptOpen& kept_open() noexcept {
  static KeptOpen& all = *new KeptOpen;
  return all;
}

// Negative: there is none.
ssize_t read_load(char* text, size_t size) noexcept {
  KeptOpen& kept = kept_open();
  MutexLock lock(kept.mutex);
  if (kept.file) return pread(kept.file.get(), text, size, 0);
  return pread(open_load().get(), text, size, 0);
}

// The fourth field of "0.42 0.31 0.25 2/341 1234": those on a processor, and those that wait for
// one, wherever they may run.
int count_running() noexcept {
  static const bool counts_all = has_all_processors();
  if (!counts_all) return -1;
  char text[128];
  const ssize_t size = read_load(text, sizeof text - 1);
  if (size <= 0) return -1;
  text[size] = '\0';
  int running = 0;
  return std::sscanf(text, "%*f %*f %*f %d/", &running) == 1 ? running : -1;
}

}  // namespace

QuickLooks::QuickLooks() noexcept {
  KeptOpen& kept = kept_open();
  MutexLock lock(kept.mutex);
  if (++kept.users == 1) kept.file = open_load();
}

QuickLooks::~QuickLooks() {
  KeptOpen& kept = kept_open();
  MutexLock lock(kept.mutex);
  if (--kept.users == 0) kept.file.reset();
}

void CrowdWatch::look(TimePoint now) noexcept {
  const Clock::rep at = now.time_since_epoch().count();
  Clock::rep next = next_.load(std::memory_order_relaxed);
  if (at < next || !next_.compare_exchange_strong(next, at + Clock::duration(kEvery).count(),
                                                  std::memory_order_relaxed)) {
    return;
  }
  const auto suppose_there_is_room = [this] {
    too_many_.store(0, std::memory_order_relaxed);
    running_.store(1, std::memory_order_relaxed);
  };
  const bool is_first_after_pause = at - next > Clock::duration(kStale).count();
  if (is_first_after_pause && !was_crowded()) return suppose_there_is_room();
  const int running = count_();
  if (running < 0) {
    if (at >= seen_until_.load(std::memory_order_relaxed)) suppose_there_is_room();
    return;
  }
  running_.store(running, std::memory_order_relaxed);
  const int more = running > processors_ ? 1 : -1;
  too_many_.store(std::clamp(too_many_.load(std::memory_order_relaxed) + more, 0, kMost),
                  std::memory_order_relaxed);
}

bool CrowdWatch::is_crowded(TimePoint now) noexcept {
  look(now);
  return was_crowded();
}

void CrowdWatch::saw_crowd(TimePoint now) noexcept {
  seen_until_.store((now + kSeenLasts).time_since_epoch().count(), std::memory_order_relaxed);
  too_many_.store(std::max(kCrowd, too_many_.load(std::memory_order_relaxed)),
                  std::memory_order_relaxed);
  running_.store(processors_ + 1, std::memory_order_relaxed);
  next_.store((now + kEvery).time_since_epoch().count(), std::memory_order_relaxed);
}

bool CrowdWatch::lacks_processors(TimePoint now) noexcept {
  const int running = count_();
  if (running < 0) return is_crowded(now);
  if (running <= processors_) return false;
  saw_crowd(now);
  return true;
}

bool CrowdWatch::has_idle(TimePoint now, int processors) noexcept {
  look(now);
  return running_.load(std::memory_order_relaxed) + processors <= processors_;
}

namespace {

CrowdWatch& machine() noexcept {
  static CrowdWatch watch(count_running, available_processors());
  return watch;
}

}  // namespace

TurnsOfOthers::TurnsOfOthers(TimePoint now, const std::atomic<uint64_t>& questions,
                             void (*yield)() noexcept) noexcept
    : questions_(questions),
      yield_(yield),
      left_(now.time_since_epoch().count() < no_turns_before.load(std::memory_order_relaxed)
                ? 0
                : kTurnsToPass) {}

bool TurnsOfOthers::pass() noexcept {
  if (!any()) return false;
  --left_;
  const TimePoint before = Clock::now();
  const uint64_t asked = questions_.load(std::memory_order_relaxed);
  yield_();
  const TimePoint now = Clock::now();
  if (now - before <= kLongTurn) return true;
  machine().saw_crowd(now);
  left_ = 0;
  const uint64_t meanwhile = questions_.load(std::memory_order_relaxed) - asked;
  if (meanwhile * kOfAQuestion > now - before) return true;
  const TimePoint rested = now + kRestAfterLongTurn * (now - before);
  no_turns_before.store(rested.time_since_epoch().count(), std::memory_order_relaxed);
  return true;
}

void let_others_go_first() noexcept {
  const TimePoint before = Clock::now();
  std::this_thread::yield();
  const TimePoint now = Clock::now();
  shared_turns = now - before > kTurn ? shared_turns + 1 : 0;
  if (now - before > kLongTurn) machine().saw_crowd(now);
}

bool shares_processor() noexcept { return shared_turns >= kManyTurns; }

void leave_processor() noexcept {
  shared_turns = 0;
  cpu_set_t allowed;
  const int here = sched_getcpu();
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0 || here < 0 || here >= CPU_SETSIZE)
    return;
  cpu_set_t others = allowed;
  CPU_CLR(here, &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof others, &others) != 0) return;
  sched_setaffinity(0, sizeof allowed, &allowed);
}

bool is_crowded(TimePoint now) noexcept { return machine().is_crowded(now); }
bool was_crowded() noexcept { return machine().was_crowded(); }
bool lacks_processors(TimePoint now) noexcept { return machine().lacks_processors(now); }
bool has_idle_processors(TimePoint now, int processors) noexcept {
  return machine().has_idle(now, processors);
}

}  // namespace farspan::net
