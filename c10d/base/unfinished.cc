#include <farspan/c10d/base/unfinished.h>

#include <algorithm>
#include <utility>

namespace farspan {
namespace {
thread_local Unfinished* innermost = nullptr;
thread_local Unfinished* lent_top = nullptr;  // it and what is outside of it are lent
}  // namespace

Unfinished::Unfinished(Lending& lending) noexcept : lending_(lending), outer_(innermost) {
  innermost = this;
}

Unfinished::~Unfinished() { innermost = outer_; }

bool Unfinished::is_lent() const noexcept {
  const Unfinished* work = lent_top;
  while (work && work != this) work = work->outer_;
  return work != nullptr;
}

bool Unfinished::any_has_more(const Unfinished* inner, const Unfinished* outer) noexcept {
  for (; inner != outer; inner = inner->outer_) {
    if (inner->has_more()) return true;
  }
  return false;
}

void Unfinished::hand_over_all() noexcept {
  for (Unfinished* work = innermost; work; work = work->outer_) {
    MutexLock lock(work->lending_.mutex_);
    work->hand_over();
  }
}

Unfinished::Lent::Lent(bool needed) noexcept
    : outer_top_(lent_top),
      top_(needed || any_has_more(innermost, lent_top) ? innermost : lent_top) {
  if (top_ == outer_top_) return;
  lent_top = top_;
  const TimePoint now = Clock::now();
  for (Unfinished* work = top_; work != outer_top_; work = work->outer_) {
    work->lending_.lend(*work, now);
  }
}

Unfinished::Lent::~Lent() {
  lent_top = outer_top_;
  for (Unfinished* work = top_; work != outer_top_; work = work->outer_) {
    work->lending_.take_back(*work);
  }
}

void Lending::lend(Unfinished& work, TimePoint now) noexcept {
  {
    MutexLock lock(mutex_);
    work.lent_at_ = now;
    work.previous_ = nullptr;
    work.next_ = std::exchange(first_, &work);
    if (work.next_) work.next_->previous_ = &work;
  }
  look_at(now + kFetchAfter);
}

void Lending::take_back(Unfinished& work) noexcept {
  MutexLock lock(mutex_);
  (work.previous_ ? work.previous_->next_ : first_) = work.next_;
  if (work.next_) work.next_->previous_ = work.previous_;
}

TimePoint Lending::fetch(bool idle) noexcept {
  MutexLock lock(mutex_);
  if (!first_) return TimePoint::max();
  const TimePoint now = Clock::now();
  TimePoint next = TimePoint::max();
  for (Unfinished* work = first_; work; work = work->next_) {
    const Clock::duration age = now - work->lent_at_;
    if (age < kFetchAfter) {
      next = std::min(next, work->lent_at_ + kFetchAfter);
    } else if (idle || work->urgent()) {
      work->hand_over();
    } else {
      next = std::min(next, now + std::min<Clock::duration>(age, kLookEvery));
    }
  }
  return next;
}

}  // namespace farspan
