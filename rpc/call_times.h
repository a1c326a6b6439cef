// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// CallTimes: how long a worker's calls took, as a histogram that travels and adds up.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <farspan/c10d/base/time.h>
#include <farspan/c10d/values/codec_struct.h>

namespace farspan {

// From the call to the end of its answer, failed calls included. A bucket is a sixteenth as wide as
// the times in it are long, or less: quantiles are right to 4 %.
//
// Threading: a value.
struct CallTimes {
  std::vector<uint64_t> counts;  // of calls, by bucket; empty ones at the end are left out

  uint64_t count() const noexcept;
  // The time within which `share` of the calls ended, 0 to 1: 0.5 is the median. 0 without calls.
  Clock::duration quantile(double share) const noexcept;
  // Those of another worker as well.
  CallTimes& operator+=(const CallTimes& other);
};
FARSPAN_STRUCT(CallTimes, counts);

// Threading: every method from any thread; none waits for another.
class CallTimesRecorder {
 public:
  static constexpr size_t kBuckets = 960;  // up to the longest Clock::duration

  void add(Clock::duration took) noexcept;
  CallTimes read() const;

 private:
  std::array<std::atomic<uint64_t>, kBuckets> counts_{};
};

}  // namespace farspan
