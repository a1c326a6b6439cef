// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Forecast: when an answer is likely to come, where that takes longer than one would poll.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>

#include <farspan/c10d/base/time.h>
#include <farspan/c10d/net/spin.h>

namespace farspan::net {

// Who waits sleeps before `from`, and polls from then on until `until`. Empty: nobody knows.
struct Expected {
  TimePoint from, until;
  bool empty() const noexcept { return from >= until; }
};

// From how long the answers to questions of one kind took lately. Where they take about the same
// time, who waits for one wakes up shortly before it and finds it at once; else it is the answer
// that wakes a thread, and perhaps a processor, which takes time at both ends.
//
// Threading: any thread; races only blur it.
class Forecast {
 public:
  // So many times ReactorOptions::max_spin is the longest that anybody polls because of it.
  static constexpr int kLongestInSpins = 5;

  void learn(Clock::duration took) noexcept {
    const int64_t mean = mean_.load(std::memory_order_relaxed), ns = in_ns(took);
    if (mean == 0) {
      if (ns < kShortest) return;
      deviation_.store(ns / 2, std::memory_order_relaxed);  // one says too little
      return mean_.store(ns, std::memory_order_relaxed);
    }
    // One that takes much longer, for whatever reason, says little of the next one.
    const int64_t deviation = deviation_.load(std::memory_order_relaxed);
    const int64_t most = 4 * deviation + kLeastStep;
    const int64_t error = std::clamp(ns - mean, -most, most);
    const int64_t next = mean + error / 8;
    mean_.store(next < kShortest ? 0 : next, std::memory_order_relaxed);
    deviation_.store(deviation + (std::abs(error) - deviation) / 8, std::memory_order_relaxed);
  }

  // For a question that was asked then.
  Expected after(TimePoint asked) const noexcept {
    const int64_t mean = mean_.load(std::memory_order_relaxed);
    if (mean == 0) return {};
    const int64_t deviation = deviation_.load(std::memory_order_relaxed);
    if (2 * deviation > std::max(mean / 8, kToWakeUp)) return {};  // anybody's guess
    return {asked + std::chrono::nanoseconds(mean - 2 * deviation - kToWakeUp),
            asked + std::chrono::nanoseconds(mean + 4 * deviation)};
  }

 private:
  static constexpr int64_t in_ns(Clock::duration time) noexcept {
    using namespace std::chrono;
    return duration_cast<nanoseconds>(std::clamp<Clock::duration>(time, {}, hours(1))).count();
  }
  static constexpr int64_t kShortest =
      kLongSpinLimit / std::chrono::nanoseconds(1);  // else one polls from the beginning
  static constexpr int64_t kToWakeUp = 150'000;      // of a thread, by a timer
  static constexpr int64_t kLeastStep = 50'000;

  std::atomic<int64_t> mean_{0}, deviation_{0};  // in ns; a mean of 0: too short, or not known
};

// For many kinds of questions. Two may have one in common, which blurs it.
class Forecasts {
 public:
  Forecast& of(int peer, uint64_t question) noexcept {
    constexpr uint64_t kSpread = 0x9e3779b97f4a7c15;
    return forecasts_[((question + static_cast<uint64_t>(peer)) * kSpread) >> (64 - kBits)];
  }

 private:
  static constexpr int kBits = 8;
  std::array<Forecast, size_t{1} << kBits> forecasts_;
};

}  // namespace farspan::net
