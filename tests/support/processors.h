// Which processors a thread may run on.
#pragma once

#include <gtest/gtest.h>
#include <sched.h>

#include <vector>

namespace farspan::testing {

// Those of the calling thread.
inline std::vector<int> processors() {
  cpu_set_t allowed;
  EXPECT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  std::vector<int> numbers;
  for (int number = 0; number < CPU_SETSIZE; ++number) {
    if (CPU_ISSET(number, &allowed)) numbers.push_back(number);
  }
  return numbers;
}

// From now on the calling thread, and those that it starts, run on these only.
inline void stay_on(const std::vector<int>& numbers) {
  cpu_set_t only;
  CPU_ZERO(&only);
  for (const int number : numbers) CPU_SET(number, &only);
  ASSERT_EQ(sched_setaffinity(0, sizeof only, &only), 0);
}

}  // namespace farspan::testing
