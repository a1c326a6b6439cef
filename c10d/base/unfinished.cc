#include <farspan/c10d/base/unfinished.h>

namespace farspan {
namespace {
thread_local Unfinished* innermost = nullptr;
}

Unfinished::Unfinished() noexcept : outer_(innermost) { innermost = this; }

Unfinished::~Unfinished() { innermost = outer_; }

void Unfinished::hand_over_all() noexcept {
  for (Unfinished* work = innermost; work; work = work->outer_) work->hand_over();
}

}  // namespace farspan
