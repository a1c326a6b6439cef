#include <farspan/c10d/backends/cpu/team.h>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include <farspan/c10d/backends/absence.h>
#include <farspan/c10d/backends/late.h>
#include <farspan/c10d/base/processors.h>
#include <farspan/c10d/net/spin.h>

namespace farspan::dist::cpu {
namespace {

constexpr int kPolls = 4000;  // some 50 us, when every rank has a core
constexpr int kPollsWhenCrowded = 50;
constexpr int kYields = 100;
constexpr Millis kLongestSleep{100};  // then the deadline and the others' failures are looked at
constexpr int kSleepsUntilWatch = 4;  // from then on the end of the other process is noticed

void futex_wait(std::atomic<uint32_t>& word, uint32_t value, Millis timeout) noexcept {
  const timespec time{timeout.count() / 1000, timeout.count() % 1000 * 1'000'000};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t>& word) noexcept {
  syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0);
}

}  // namespace

Team::Team(std::shared_ptr<Segment> segment, size_t small_bytes, int rank, World world)
    : segment_(std::move(segment)),
      small_bytes_(small_bytes),
      rank_(rank),
      world_(std::move(world)),
      crowded_(segment_->ranks() > available_processors()) {}

void Team::enter(const Signature& signature, Deadline deadline, uint64_t chunks) {
  call_ = signature.sequence;
  if (has_failed(call())) throw failure();
  deadline_ = deadline;
  entered_ = Clock::now();
  ++epoch_;
  const size_t turn = epoch_ % 2;
  own().signature[turn] = signature;
  own().chunks[turn] = chunks;
  publish(Stage::kEntered, mark(0));
  for (int rank = 0; rank < size(); ++rank) {
    if (rank == rank_) continue;
    wait_for(rank, Stage::kEntered, mark(0));
    const auto differs =
        difference(name_of(rank_), signature, name_of(rank), segment_->seat(rank).signature[turn]);
    if (!differs) continue;
    fail_call(Error(Code::kShapeMismatch, *differs));
    throw failure();
  }
  met_.store(true, std::memory_order_relaxed);
}

uint64_t Team::most_chunks() const noexcept {
  uint64_t most = 0;
  for (int rank = 0; rank < size(); ++rank) {
    most = std::max(most, chunks(rank));
  }
  return most;
}

void Team::raise(Stage stage, uint64_t chunks) noexcept { publish(stage, mark(chunks)); }

void Team::await(int rank, Stage stage, uint64_t chunks) { wait_for(rank, stage, mark(chunks)); }

void Team::await_others(Stage stage, uint64_t chunks) {
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != rank_) wait_for(rank, stage, mark(chunks));
  }
}

// An exchange, for it orders the look at the sleepers behind it.
void Team::publish(Stage stage, uint64_t value) noexcept {
  own().flags[stage].value.exchange(value, std::memory_order_seq_cst);
  for (int rank = 0; rank < size(); ++rank) {
    if (rank != rank_) wake(rank);
  }
}

void Team::wake(int rank) noexcept {
  std::atomic<uint32_t>& asleep = segment_->seat(rank).asleep;
  if (asleep.load(std::memory_order_seq_cst) == 0) return;
  asleep.store(0);
  futex_wake(asleep);
}

void Team::wait_for(int rank, Stage stage, uint64_t value) {
  const int polls = crowded_ ? kPollsWhenCrowded : kPolls;
  for (int poll = 0; poll < polls; ++poll) {
    if (reached(rank, stage, value)) return;
    net::cpu_relax();
  }
  for (int turn = 0; crowded_ && turn < kYields; ++turn) {
    sched_yield();
    if (reached(rank, stage, value)) return;
  }
  sleep_until(rank, stage, value);
}

void Team::sleep_until(int rank, Stage stage, uint64_t value) {
  std::atomic<uint32_t>& asleep = own().asleep;
  waits_.begin(whom(rank, stage));
  for (int sleeps = 0;; ++sleeps) {
    asleep.store(1, std::memory_order_seq_cst);
    if (segment_->seat(rank).flags[stage].value.load(std::memory_order_seq_cst) >= value) {
      asleep.store(0);
      waits_.end();
      return;
    }
    try {
      check(rank, stage, value);
    } catch (...) {
      asleep.store(0);
      throw;
    }
    const Millis left =
        std::chrono::ceil<Millis>(std::min<Clock::duration>(deadline_.remaining(), kLongestSleep));
    futex_wait(asleep, 1, left);
    const bool is_long = sleeps % kSleepsUntilWatch == kSleepsUntilWatch - 1;
    if (is_long && world_.on_long_wait) world_.on_long_wait(rank);
  }
}

// While this rank waits for another: whether it makes sense to wait on.
void Team::check(int waited_for, Stage stage, uint64_t value) {
  if (has_failed(call())) throw failure();
  if (left_.load()) throw left_error();
  for (int rank = 0; rank < size(); ++rank) {
    const auto absence = static_cast<Absence>(segment_->seat(rank).absence.load());
    if (absence == Absence::kNone) continue;
    // It may have done its part before it went: then whoever needs more of it finds out.
    const bool has_done =
        rank == waited_for ? reached(rank, stage, value) : reached(rank, Stage::kEntered, mark(0));
    if (has_done) continue;
    fail_call(absence == Absence::kGone ? gone_error(name_of(rank)) : left_error(name_of(rank)));
    throw failure();
  }
  if (!deadline_.expired()) return;
  fail_call(late(whom(waited_for, stage), entered_));
  throw failure();
}

// The first word counts: that of a process that has left must stay when its end is noticed.
void Team::lose(int rank, Absence how) noexcept {
  auto none = static_cast<uint32_t>(Absence::kNone);
  segment_->seat(rank).absence.compare_exchange_strong(none, static_cast<uint32_t>(how));
  for (int other = 0; other < size(); ++other) wake(other);
}

void Team::leave() noexcept {
  left_ = true;
  lose(rank_, Absence::kLeft);
}

WaitsFor Team::whom(int rank, Stage stage) const {
  return {world_.ranks[static_cast<size_t>(rank)], stage != Stage::kEntered};
}

Error Team::late(WaitsFor whom, TimePoint since) const {
  const auto found = std::find(world_.ranks.begin(), world_.ranks.end(), whom.rank);
  const auto place = static_cast<size_t>(found - world_.ranks.begin());
  const Late late =
      world_.find_late ? world_.find_late(whom) : Late{world_.names.at(place), whom.has_called};
  return late_error(name_of(rank_), since, late.name, late.has_called);
}

// Under a lock, so that whoever comes second finds the failure there.
void Team::fail(const Error& why, uint64_t since) noexcept {
  {
    MutexLock lock(telling_);
    std::atomic<uint64_t>& failed = segment_->header().failed;
    uint64_t known = failed.load();
    const auto counts = [&] { return known == 0 || since < Failed::of(known).since; };
    if (counts() && told_ < SharedSeat::kTold) {
      own().why[told_] = messages::ToldError::of(why);
      const uint64_t word = Failed{since, rank_, told_++}.word();
      while (counts() && !failed.compare_exchange_weak(known, word)) {
      }
    }
  }
  for (int rank = 0; rank < size(); ++rank) wake(rank);
}

Error Team::failure() const {
  const Failed failed = this->failed();
  FARSPAN_ASSERT(failed.rank >= 0 && failed.rank < size() && failed.told < SharedSeat::kTold,
                 "there is no failure");
  return segment_->seat(failed.rank).why[failed.told].error();
}

}  // namespace farspan::dist::cpu
