// Waiting for what other threads or processes bring about.
#pragma once

#include <chrono>
#include <thread>

#include <farspan/c10d/base/time.h>

namespace farspan::testing {

// Looks until `condition` holds; false when it did not within `limit`.
template <class Condition>
bool eventually(Condition condition, Clock::duration limit = std::chrono::seconds(10)) {
  const Deadline deadline = Deadline::after(limit);
  while (!condition()) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return true;
}

}  // namespace farspan::testing
