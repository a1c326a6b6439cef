#include <farspan/c10d/group/work.h>

namespace farspan::dist {

void Work::wait(Millis timeout) const {
  if (!valid()) {
    throw Error(Code::kInvalidArgument, "nothing is under way: this Work was made empty")
        .operation("Work::wait")
        .advice("look at valid() first, or take what an _async function returns");
  }
  if (timeout > kNoTimeout && !done_.wait_for(timeout)) {
    throw Error(Code::kTimeout, "the operation has not ended")
        .operation("Work::wait")
        .elapsed(timeout)
        .advice("it goes on: wait again, or do without a timeout; its own deadline ends it");
  }
  done_.wait();
}

int Work::source_rank() const {
  const int rank = done_.value();
  if (rank >= 0) return rank;
  throw Error(Code::kInvalidArgument, "a collective has no source").operation("source_rank");
}

}  // namespace farspan::dist
