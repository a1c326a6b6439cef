#include <farspan/c10d/group/work.h>

namespace farspan::dist {

int Work::source_rank() const {
  const int rank = done_.value();
  if (rank >= 0) return rank;
  throw Error(Code::kInvalidArgument, "a collective has no source").operation("source_rank");
}

}  // namespace farspan::dist
