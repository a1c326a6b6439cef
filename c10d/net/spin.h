// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Spinning, bounded: how long a thread polls before it sleeps, and how many may at once.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#include <farspan/c10d/base/time.h>

namespace farspan::net {

// A sleeping thread costs about 45 us to wake, so polling for that long at most doubles the cost of
// a miss, and makes a hit twenty times cheaper.
inline constexpr std::chrono::microseconds kSpinLimit{50};

// Says whether polling one source has paid lately. Misses switch it off, and now and then one more
// try finds out whether traffic is back.
//
// Threading: any thread; races only blur the estimate.
class SpinGovernor {
 public:
  std::chrono::microseconds budget() noexcept {
    if (credit_.load(std::memory_order_relaxed) > 0) return kSpinLimit;
    const uint32_t tries = tries_.fetch_add(1, std::memory_order_relaxed);
    return tries % kProbeEvery == 0 ? kSpinLimit : std::chrono::microseconds{0};
  }
  void hit() noexcept { credit_.store(kFullCredit, std::memory_order_relaxed); }
  void miss() noexcept {
    const int32_t credit = credit_.load(std::memory_order_relaxed);
    if (credit > 0) credit_.store(credit - 1, std::memory_order_relaxed);
  }

 private:
  static constexpr int32_t kFullCredit = 8;
  static constexpr uint32_t kProbeEvery = 16;
  std::atomic<int32_t> credit_{kFullCredit};
  std::atomic<uint32_t> tries_{0};
};

// A place among the process's spinning threads: one fewer than there are cores, at least one, so
// that polling never keeps the last core from the thread that is polled for.
class SpinPermit {
 public:
  SpinPermit() noexcept : granted_(spinning().fetch_add(1) < limit()) {
    if (!granted_) spinning().fetch_sub(1);
  }
  ~SpinPermit() {
    if (granted_) spinning().fetch_sub(1);
  }
  SpinPermit(const SpinPermit&) = delete;
  SpinPermit& operator=(const SpinPermit&) = delete;
  explicit operator bool() const noexcept { return granted_; }

 private:
  static std::atomic<int>& spinning() noexcept {
    static std::atomic<int> count{0};
    return count;
  }
  static int limit() noexcept {
    static const int cores = static_cast<int>(std::thread::hardware_concurrency());
    return std::max(1, cores - 1);
  }
  bool granted_;
};

// How long one goes on looking: for a while, and not beyond a deadline.
class SpinTime {
 public:
  explicit SpinTime(Clock::duration budget, TimePoint latest = TimePoint::max()) noexcept
      : end_(std::min(Clock::now() + budget, latest)) {}
  // Looks at the clock at every eighth call only.
  bool is_over() noexcept { return ++calls_ % 8 == 0 && Clock::now() >= end_; }

 private:
  TimePoint end_;
  uint32_t calls_ = 0;
};

inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace farspan::net
