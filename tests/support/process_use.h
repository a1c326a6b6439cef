// What this process has taken of the machine.
#pragma once

#include <time.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <stdexcept>
#include <string>

#include <farspan/c10d/base/time.h>

namespace farspan::testing {

// Of all its threads, also of those that have ended.
inline Clock::duration processor_time(clockid_t of = CLOCK_PROCESS_CPUTIME_ID) {
  timespec used{};
  clock_gettime(of, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}
inline Clock::duration processor_time_of_thread() {
  return processor_time(CLOCK_THREAD_CPUTIME_ID);
}

//   what  a row of /proc/self/status: "VmRSS", now; "VmHWM", the most so far
inline int64_t memory_bytes(const std::string& what) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kibibytes = 0;
    if (word == what + ":" && status >> kibibytes) return kibibytes << 10;
  }
  throw std::runtime_error("/proc/self/status does not say " + what);
}

// What this process has grown by at its peak since it was last asked, in MiB.
inline int64_t peak_growth() {
  static int64_t before = 0;
  const auto mebibytes = [](const char* what) { return memory_bytes(what) >> 20; };
  const int64_t grown = mebibytes("VmHWM") - before;
  before = mebibytes("VmRSS");
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak begins anew
  return grown;
}

}  // namespace farspan::testing
