#include <farspan/c10d/group/work.h>

namespace farspan::dist {

void Work::wait(Millis timeout) const {
  if (!valid()) {
    throw Error(Code::kInvalidArgument, "nothing is under way: this Work was made empty")
        .operation("Work::wait")
        .advice("look at valid() first, or take what an _async function returns");
  }
  const Deadline deadline = Deadline::in(timeout);
  if (timeout > kNoTimeout && !(done_.wait_until(deadline) && has_ended(deadline))) {
    throw Error(Code::kTimeout, "the operation has not ended")
        .operation("Work::wait")
        .elapsed(timeout)
        .advice("it goes on: wait again, or do without a timeout; its own deadline ends it");
  }
  done_.wait();
  if (timeout > kNoTimeout && ended_ && ended_->valid()) ended_->wait();
}

// On its device: for one whose done_ is ready.
bool Work::has_ended(Deadline deadline) const {
  return !ended_ || done_.has_error() || !ended_->valid() || ended_->wait_until(deadline);
}

bool Work::is_completed() const noexcept {
  return done_.ready() && has_ended(Deadline(Clock::now()));
}

bool Work::is_success() const noexcept {
  return is_completed() && !done_.has_error() &&
         !(ended_ && ended_->valid() && ended_->has_error());
}

int Work::source_rank() const {
  const int rank = done_.value();
  if (rank >= 0) return rank;
  throw Error(Code::kInvalidArgument, "a collective has no source").operation("source_rank");
}

}  // namespace farspan::dist
