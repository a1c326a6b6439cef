// A machine on which others want every processor.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include <farspan/c10d/net/spin.h>

namespace farspan::testing {

// Threads that want every processor, and more.
class Crowd {
 public:
  Crowd() {
    const unsigned count = std::thread::hardware_concurrency() + 2;
    for (unsigned i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        while (!is_over_) {
        }
      });
    }
  }
  ~Crowd() {
    is_over_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Crowd(const Crowd&) = delete;
  Crowd& operator=(const Crowd&) = delete;

 private:
  std::atomic<bool> is_over_{false};
  std::vector<std::thread> threads_;
};

// How many times of something were while others wanted every processor, and in how many of these it
// polled, as it says.
struct InCrowd {
  int times = 0, polled = 0;
};
inline InCrowd polls_in_crowd(const std::function<bool()>& polls) {
  InCrowd result;
  const Deadline give_up = Deadline::after(std::chrono::seconds(20));
  while (result.times < 30 && !give_up.expired()) {
    const bool begins_in_crowd =
        net::is_crowded(Clock::now()) && net::lacks_processors(Clock::now());
    const bool polled = polls();
    if (!begins_in_crowd || !net::is_crowded(Clock::now())) continue;
    ++result.times;
    result.polled += polled;
  }
  return result;
}

// Nobody may poll while it is there.
class NoPermits {
 public:
  NoPermits() {
    while (permits_.emplace_back(false)) {
    }
  }

 private:
  std::deque<net::SpinPermit> permits_;
};

}  // namespace farspan::testing
