#include <farspan/rpc/call_times.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

namespace farspan {
namespace {

// Sixteen buckets for each power of two, and below 32 ns one for each nanosecond.
constexpr uint64_t kPerOctave = 16;
// Those that a time can fall into. What came from another worker may have any number.
constexpr size_t kBuckets = CallTimesRecorder::kBuckets;

size_t bucket_of(uint64_t ns) noexcept {
  const int width = std::bit_width(ns);
  const auto octave = static_cast<uint64_t>(std::max(width - 5, 0));
  return octave * kPerOctave + (ns >> octave);
}

// The middle of it, in nanoseconds.
uint64_t time_of(size_t bucket) noexcept {
  if (bucket < 2 * kPerOctave) return bucket;
  const uint64_t octave = bucket / kPerOctave - 1;
  return ((bucket - octave * kPerOctave) << octave) + (uint64_t{1} << octave) / 2;
}

}  // namespace

uint64_t CallTimes::count() const noexcept {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

Clock::duration CallTimes::quantile(double share) const noexcept {
  const auto wanted =
      static_cast<uint64_t>(std::ceil(std::clamp(share, 0.0, 1.0) * double(count())));
  uint64_t seen = 0;
  for (size_t bucket = 0; bucket < counts.size(); ++bucket) {
    seen += counts[bucket];
    if (seen > 0 && seen >= wanted) {
      return std::chrono::nanoseconds(time_of(std::min(bucket, kBuckets - 1)));
    }
  }
  return {};
}

CallTimes& CallTimes::operator+=(const CallTimes& other) {
  counts.resize(std::max(counts.size(), other.counts.size()));
  for (size_t bucket = 0; bucket < other.counts.size(); ++bucket) {
    counts[bucket] += other.counts[bucket];
  }
  return *this;
}

void CallTimesRecorder::add(Clock::duration took) noexcept {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(took).count();
  counts_[bucket_of(static_cast<uint64_t>(std::max<int64_t>(ns, 0)))].fetch_add(
      1, std::memory_order_relaxed);
}

CallTimes CallTimesRecorder::read() const {
  CallTimes times;
  for (size_t bucket = 0; bucket < counts_.size(); ++bucket) {
    const uint64_t count = counts_[bucket].load(std::memory_order_relaxed);
    if (count == 0) continue;
    times.counts.resize(bucket + 1);
    times.counts[bucket] = count;
  }
  return times;
}

}  // namespace farspan
