#include <farspan/rpc/agent/pull.h>

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include <farspan/c10d/base/busy_time.h>
#include <farspan/c10d/net/process_memory.h>
#include <farspan/c10d/net/spin.h>

namespace farspan::agent {
namespace {

// Reading so much takes several times as long as waking a thread.
constexpr size_t kLargeBytes = 2 << 20;
// How often who reads lets others go first, among whom the one that is to help may be. No more: on
// a crowded machine there are many.
constexpr int kTurnsForHelp = 2;
// Those who read begin at the two ends, with pieces that are worth their system call, and meet in
// the middle, where small ones let them end at the same time. The first ones are small, too, since
// after each of them who is to help may have its turn.
constexpr size_t kLeastPiece = 128 << 10, kMostPiece = 1 << 20;
constexpr size_t kPiecesToTheMiddle = 2;
// Of a whole of `bytes`, the one that begins `at` so many of them.
size_t piece_bytes(size_t at, size_t bytes) {
  if (bytes < kLargeBytes) return bytes;  // nobody helps
  if (at < kTurnsForHelp * kLeastPiece) return kLeastPiece;
  const size_t middle = bytes / 2;
  const size_t to_middle = at < middle ? middle - at : at - middle;
  const size_t piece = to_middle / kPiecesToTheMiddle / kLeastPiece * kLeastPiece;
  return std::clamp(piece, kLeastPiece, kMostPiece);
}

// For the pieces that others still read: what one takes, and some.
constexpr std::chrono::microseconds kPatience{200};

bool is_read(const wire::InFrame& frame, size_t segment) {
  return frame.offered[segment] != 0 && !frame.is_handed_over(segment);
}
size_t bytes_to_read(const wire::InFrame& frame) noexcept {
  size_t bytes = 0;
  for (size_t i = 0; i < frame.offered.size(); ++i) {
    if (is_read(frame, i)) bytes += frame.segments[i].size();
  }
  return bytes;
}

}  // namespace

Pull::Pull(pid_t process, wire::InFrame frame, std::chrono::microseconds patience, OnEnd on_end)
    : process_(process),
      frame_(std::move(frame)),
      patience_(std::min(patience, kPatience)),
      on_end_(std::move(on_end)),
      bytes_(bytes_to_read(frame_)) {
  size_t before = 0;
  for (size_t i = 0; i < frame_.segments.size(); ++i) {
    if (!is_read(frame_, i)) continue;
    const Buffer& segment = frame_.segments[i];
    for (size_t at = 0; at < segment.size();) {
      const size_t bytes = std::min(piece_bytes(before + at, bytes_), segment.size() - at);
      pieces_.push_back({frame_.offered[i] + at, segment.data() + at, bytes});
      at += bytes;
    }
    before += segment.size();
  }
  left_ = pieces_.size() + 1;
}

bool Pull::is_long(const wire::InFrame& frame) noexcept {
  return bytes_to_read(frame) >= kLargeBytes;
}

// Whether it is worth waking a second thread.
bool Pull::is_large() const noexcept { return bytes_ >= kLargeBytes; }

std::optional<Pull::Polled> Pull::run(const std::function<void()>& call_helper) {
  std::optional<Polled> polled;
  {
    const BusyTime others_read(/*outermost=*/true, /*lend_all=*/false);
    if (is_large() && call_helper) call_helper();
    processor_.store(sched_getcpu(), std::memory_order_relaxed);
    read_from(true);
    polled = poll_for_others();
  }
  leave();
  return polled;
}

// Who has the last piece may have no processor but this one.
std::optional<Pull::Polled> Pull::poll_for_others() const noexcept {
  const auto others_read = [this] { return left_.load(std::memory_order_acquire) > 1; };
  if (!others_read() || patience_.count() == 0 || net::was_crowded()) return std::nullopt;
  const TimePoint start = Clock::now();
  net::SpinTime time(start, patience_);
  while (others_read() && !time.is_over()) net::cpu_relax();
  return Polled{Clock::now() - start, others_read()};
}

// The system may have put this thread behind the one that reads, for want of an idle processor at
// that moment, and leave it there for milliseconds.
void Pull::help() {
  is_helped_.store(true);
  if (sched_getcpu() == processor_.load(std::memory_order_relaxed)) net::leave_processor();
  read_from(false);
}

// As many begin as there are pieces, so those from the front and those from the back do not meet.
void Pull::read_from(bool front) {
  for (int own = 1; begun_.fetch_add(1) < pieces_.size(); ++own) {
    read(front ? pieces_[from_front_.fetch_add(1)]
               : pieces_[pieces_.size() - 1 - from_back_.fetch_add(1)]);
    leave();
    const bool may_yield = front && own <= kTurnsForHelp && patience_.count() > 0;
    if (may_yield && is_large() && !is_helped_.load()) {
      std::this_thread::yield();
    }
  }
}

// After the first that fails the others are only counted.
void Pull::read(const Piece& piece) noexcept {
  if (error_.load(std::memory_order_relaxed) != 0) return;
  const int error = net::read_process_memory(process_, piece.from, piece.to, piece.bytes);
  if (error != 0) error_.store(error, std::memory_order_relaxed);
}

// 0: it stands; ESTALE: it does not; else why that cannot be seen, which counts where nothing else
// was read.
int Pull::look_at_mark() const noexcept {
  uint64_t mark = 0;
  const uint64_t at = frame_.offer.mark_address;
  const int error = net::read_process_memory(process_, at, &mark, sizeof mark);
  if (error == 0) return mark == frame_.offer.mark ? 0 : ESTALE;
  return error == EFAULT ? ESTALE : error;
}

void Pull::leave() {
  if (left_.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  int error = error_.load(std::memory_order_relaxed);
  // Memory that is there no more was withdrawn, as a rule.
  if (error == 0 || error == EFAULT) {
    if (const int at_mark = look_at_mark()) error = at_mark;
  }
  on_end_(std::move(frame_), error);
}

}  // namespace farspan::agent
