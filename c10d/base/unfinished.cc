#include <farspan/c10d/base/unfinished.h>

#include <utility>

#include <farspan/c10d/base/mutex.h>

namespace farspan {
namespace {

thread_local Unfinished* innermost = nullptr;
thread_local Unfinished* lent_top = nullptr;  // it and what is outside of it are lent

// What the threads of the process have lent. Held while work is given away, so that nobody uses his
// Unfinished meanwhile.
constinit Mutex lent_mutex;
constinit Unfinished::Lent* first_lent FARSPAN_GUARDED_BY(lent_mutex) = nullptr;

}  // namespace

Unfinished::Unfinished() noexcept : outer_(innermost) { innermost = this; }

Unfinished::~Unfinished() { innermost = outer_; }

void Unfinished::hand_over_all() noexcept {
  if (!innermost) return;
  MutexLock lock(lent_mutex);
  for (Unfinished* work = innermost; work; work = work->outer_) work->hand_over();
}

void Unfinished::fetch_lent() noexcept {
  MutexLock lock(lent_mutex);
  for (Lent* lent = first_lent; lent; lent = lent->next_) {
    for (Unfinished* work = lent->top_; work; work = work->outer_) work->hand_over();
  }
}

Unfinished::Lent::Lent() noexcept
    : top_(innermost), outer_top_(lent_top), lends_(top_ != outer_top_) {
  if (!lends_) return;
  lent_top = top_;
  MutexLock lock(lent_mutex);
  next_ = std::exchange(first_lent, this);
  if (next_) next_->previous_ = this;
}

Unfinished::Lent::~Lent() {
  if (!lends_) return;
  lent_top = outer_top_;
  MutexLock lock(lent_mutex);
  (previous_ ? previous_->next_ : first_lent) = next_;
  if (next_) next_->previous_ = previous_;
}

}  // namespace farspan
