// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// SimulatedStream: a thread that does what it is given, in order, and late.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <random>
#include <thread>

#include <farspan/c10d/base/mutex.h>

namespace farspan::device {

// Threading: every method from any thread; the destructor does what is left.
class SimulatedStream {
 public:
  //   most_late  how long it may take until a piece of work begins
  SimulatedStream(uint64_t seed, std::chrono::microseconds most_late);
  ~SimulatedStream();
  SimulatedStream(const SimulatedStream&) = delete;
  SimulatedStream& operator=(const SimulatedStream&) = delete;

  void add(std::function<void()> work);
  // No more will come.
  void end() noexcept;
  // Whether it has ended and done all.
  bool is_done() const;

 private:
  void run();
  void be_late();

  const std::chrono::microseconds most_late_;
  std::mt19937_64 random_;  // of its thread
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> work_ FARSPAN_GUARDED_BY(mutex_);
  bool ended_ FARSPAN_GUARDED_BY(mutex_) = false;
  bool done_ FARSPAN_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace farspan::device
