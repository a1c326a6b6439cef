// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Time: one monotonic clock, units in the names, and a Deadline that travels through calls.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

namespace farspan {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using Micros = std::chrono::microseconds;
using Millis = std::chrono::milliseconds;

// As a timeout in the public API: wait for ever. Zero, as in PyTorch.
inline constexpr Millis kNoTimeout{0};

// A point in time after which an operation gives up, or never.
//
// Threading: a value; copy it freely.
class Deadline {
 public:
  // Never expires.
  constexpr Deadline() noexcept : at_(TimePoint::max()) {}
  explicit constexpr Deadline(TimePoint at) noexcept : at_(at) {}

  static constexpr Deadline never() noexcept { return Deadline(); }

  // `timeout` from now; kNoTimeout (zero or less) never expires.
  template <class Rep, class Period>
  static Deadline in(std::chrono::duration<Rep, Period> timeout) noexcept {
    return timeout.count() <= 0 ? never() : after(timeout);
  }

  // `delay` from now; zero or less has expired already.
  template <class Rep, class Period>
  static Deadline after(std::chrono::duration<Rep, Period> delay) noexcept {
    using Seconds = std::chrono::duration<double>;
    const auto now = Clock::now();
    // Compared in double, since hours::max() and the like overflow in nanoseconds.
    if (Seconds(delay) >= Seconds(TimePoint::max() - now)) return never();
    if (delay.count() <= 0) return Deadline(now);
    return Deadline(now + std::chrono::duration_cast<Clock::duration>(delay));
  }

  constexpr TimePoint at() const noexcept { return at_; }
  constexpr bool is_never() const noexcept { return at_ == TimePoint::max(); }
  bool expired() const noexcept { return !is_never() && Clock::now() >= at_; }

  // What is left, never negative; Clock::duration::max() when it never expires.
  Clock::duration remaining(TimePoint now = Clock::now()) const noexcept {
    if (is_never()) return Clock::duration::max();
    return std::max(at_ - now, Clock::duration::zero());
  }

  // For poll(2) and epoll_wait(2): whole milliseconds, rounded up; -1 when it never expires.
  int poll_ms(TimePoint now = Clock::now()) const noexcept {
    if (is_never()) return -1;
    const auto left = std::chrono::ceil<Millis>(remaining(now)).count();
    return static_cast<int>(std::min<int64_t>(left, 1'000'000'000));
  }

  friend constexpr bool operator==(Deadline a, Deadline b) noexcept { return a.at_ == b.at_; }
  friend constexpr Deadline earlier(Deadline a, Deadline b) noexcept {
    return a.at_ < b.at_ ? a : b;
  }

 private:
  TimePoint at_;
};

// "850 us", "12.3 ms", "4.20 s": for messages.
std::string describe(Clock::duration d);

}  // namespace farspan
