// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Figures: how every benchmark program here takes times and prints what it found.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace bench {

// Microseconds since it was made.
class Stopwatch {
 public:
  double microseconds() const {
    return std::chrono::duration<double, std::micro>(Clock::now() - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start_ = Clock::now();
};

// How long `work()` takes, in microseconds, `times` times.
template <class Work>
std::vector<double> times_of(size_t times, const Work& work) {
  std::vector<double> taken;
  taken.reserve(times);
  for (size_t i = 0; i < times; ++i) {
    const Stopwatch stopwatch;
    work();
    taken.push_back(stopwatch.microseconds());
  }
  return taken;
}

// The same where nothing happens for 5 ms before each: whoever waits has gone to sleep.
template <class Work>
std::vector<double> times_after_pauses(size_t times, const Work& work) {
  std::vector<double> taken;
  for (size_t i = 0; i < times; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    taken.push_back(times_of(1, work).front());
  }
  return taken;
}

inline constexpr int kThreads = 8;
inline constexpr size_t kInFlight = 128;

// How often so many threads together do their work in a second, of half a second. Each does that of
// an object of its own that `make()` returns.
template <class Make>
double rate_of_each(int threads, const Make& make) {
  std::atomic<bool> is_over{false};
  std::atomic<size_t> done{0};
  std::vector<std::thread> running;
  const Stopwatch stopwatch;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&] {
      auto work = make();
      size_t mine = 0;
      for (; !is_over.load(std::memory_order_relaxed); ++mine) work();
      done.fetch_add(mine);
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(500));  // what is measured
  is_over.store(true);
  for (std::thread& thread : running) thread.join();
  return static_cast<double>(done.load()) / (stopwatch.microseconds() / 1e6);
}

// Of `work()`.
template <class Work>
double rate_of_threads(int threads, const Work& work) {
  return rate_of_each(threads, [&] { return std::cref(work); });
}

// Begins a call, and waits for the oldest one when `most` are unanswered.
template <class Begin, class End>
class InFlight {
 public:
  InFlight(size_t most, const Begin& begin, const End& end)
      : most_(most), begin_(begin), end_(end) {}
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;
  ~InFlight() {
    while (!unanswered_.empty()) end_oldest();
  }
  void operator()() {
    unanswered_.push_back(begin_());
    if (unanswered_.size() == most_) end_oldest();
  }

 private:
  void end_oldest() {
    end_(unanswered_.front());
    unanswered_.pop_front();
  }

  const size_t most_;
  const Begin& begin_;
  const End& end_;
  std::deque<std::invoke_result_t<const Begin&>> unanswered_;
};

// Calls in a second, with kInFlight unanswered of all threads together.
//   begin  returns what `end` waits for
template <class Begin, class End>
double rate_in_flight(int threads, const Begin& begin, const End& end) {
  const size_t each = kInFlight / static_cast<size_t>(threads);
  return rate_of_each(threads, [&] { return InFlight<Begin, End>(each, begin, end); });
}

// The value that a `share` of the others, 0 to 1, is not above. `values` is not empty.
inline double percentile(std::vector<double> values, double share) {
  const auto last = static_cast<double>(values.size() - 1);
  const auto at = values.begin() + static_cast<ptrdiff_t>(std::ceil(share * last));
  std::nth_element(values.begin(), at, values.end());
  return *at;
}
inline double median(const std::vector<double>& values) { return percentile(values, 0.5); }

// One line of JSON on standard output. The names of the cases are fixed: tests/bench/README.md.
inline void report(const std::string& name, double value, const char* unit) {
  std::printf("{\"case\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n", name.c_str(), value, unit);
  std::fflush(stdout);
}

inline constexpr size_t kCallsAfterPauses = 200, kHandOvers = 200;

struct TensorSize {
  const char* name;
  size_t bytes;
  size_t calls;  // that are timed
};
inline constexpr std::array<TensorSize, 6> kTensorSizes{{{"4 KiB", 4UL << 10, 2000},
                                                         {"64 KiB", 64UL << 10, 2000},
                                                         {"1 MiB", 1UL << 20, 500},
                                                         {"16 MiB", 16UL << 20, 60},
                                                         {"64 MiB", 64UL << 20, 40},
                                                         {"256 MiB", 256UL << 20, 8}}};

// Of the tensors that are sent there and back, too.
inline bool is_echoed(const TensorSize& size) { return size.bytes >= 16UL << 20; }
// Of the one that goes through a ring.
inline constexpr TensorSize kThroughRing = kTensorSizes[4];

// "tensor 4 KiB shm" in gigabytes (10^9 bytes) per second, from the median time of a call.
inline void report_tensor(const TensorSize& size, const std::string& transport,
                          const std::vector<double>& microseconds,
                          const std::string& what = "tensor ") {
  report(what + size.name + " " + transport,
         static_cast<double>(size.bytes) / median(microseconds) / 1e3, "GB/s");
}

// "hand over 256 MiB shm": of a program that cannot, what the call takes all the same.
inline void report_hand_over(const std::string& transport,
                             const std::vector<double>& microseconds) {
  if (transport != "shm") return;
  report(std::string("hand over ") + kTensorSizes.back().name + " shm", median(microseconds), "us");
}

// "echo 64 MiB shm": the bytes of both ways.
inline void report_echo(const TensorSize& size, const std::string& transport,
                        const std::vector<double>& microseconds) {
  report("echo " + std::string(size.name) + " " + transport,
         2 * static_cast<double>(size.bytes) / median(microseconds) / 1e3, "GB/s");
}

}  // namespace bench
