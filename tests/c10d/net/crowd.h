// A machine on which others want every processor.
#pragma once

#include <atomic>
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

// Whether it is seen now, and by one more look.
inline bool sees_crowd() {
  return net::is_crowded(Clock::now()) && net::lacks_processors(Clock::now());
}

}  // namespace farspan::testing
