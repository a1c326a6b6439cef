// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// SimulatedStream: a thread that does what it is given, in order, and late. SimulatedEvent: a place
// in a stream, in memory that other processes can map.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <thread>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/device/devices.h>
#include <farspan/c10d/device/simulated/name.h>
#include <farspan/c10d/net/owned_descriptor.h>
#include <farspan/c10d/net/shared_memory.h>

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

// Threading: every method from any thread, but record() by one at a time.
class SimulatedEvent {
 public:
  //   instance  tells its devices from all others
  SimulatedEvent(uint64_t instance, Reach reach);
  // Another instance's.
  SimulatedEvent(uint64_t instance, const EventName& name);

  EventName name() const;
  bool is_own() const noexcept { return !maker_; }
  // The number of this record: it has come when come() is told of it.
  uint64_t record() noexcept;
  void come(uint64_t record) noexcept;
  uint64_t last_record() const noexcept;
  // Also when who recorded it is dead.
  bool has_come(uint64_t record) const noexcept;

 private:
  // Records of one event may be on several streams, and so come in any order. Each has a word until
  // so many more have been made.
  struct Words {
    std::atomic<uint64_t> recorded{0};
    std::array<std::atomic<uint64_t>, 1023> come{};
    std::atomic<uint64_t>& of(uint64_t record) noexcept { return come[record % come.size()]; }
  };
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  explicit SimulatedEvent(const Name& name);
  Words& words() const noexcept;

  const Reach reach_;
  const uint64_t instance_;           // its maker's
  const net::OwnedDescriptor maker_;  // of its process; none: itself
  const uint64_t id_;
  const net::SharedMemory memory_;
};

}  // namespace farspan::device
