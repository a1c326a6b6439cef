// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// SharedEvent: an event whose state is in memory that other processes of this host can map, so that
// each sees what another one's device has done, also when that process has ended. DeathWatch: has
// what a dead process never did come.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/device/devices.h>
#include <farspan/c10d/device/host_name.h>
#include <farspan/c10d/net/owned_descriptor.h>
#include <farspan/c10d/net/shared_memory.h>

namespace farspan::device {

// Records of one event may be on several streams, and so come in any order. Each has a word until
// so many more have been made; it has come when its word holds its number, or a later one.
//
// Threading: every method from any thread, but record() by one at a time.
class SharedEvent {
 public:
  //   instance  tells its devices from all others
  SharedEvent(uint64_t instance, Reach reach);
  // Another instance's.
  //   throws  Error kInvalidArgument: it is of this one; kUnavailable, kCorrupt
  SharedEvent(uint64_t instance, const EventName& name);

  //   throws  Error kInvalidArgument: it is not for others, or another one's
  EventName name() const;
  bool is_own() const noexcept { return !maker_; }
  // The number of this record.
  uint32_t record() noexcept;
  void come(uint32_t record) noexcept;
  uint32_t last_record() const noexcept;
  // Also when who recorded it is dead.
  bool has_come(uint32_t record) const noexcept;
  // No device will write it any more, as far as it was recorded.
  bool has_all_come() const noexcept;

  // For devices that read and write the words themselves. Numbers are compared as of a circle.
  std::byte* memory() const noexcept { return memory_.data(); }
  size_t bytes() const noexcept { return memory_.size(); }
  size_t offset_of(uint32_t record) const noexcept;

  // Of another process: the descriptor that can be polled for its end.
  int maker() const noexcept { return maker_.get(); }
  // All that was recorded, whatever the device does. For who knows that it does nothing any more.
  void come_all() noexcept;

 private:
  struct Words {
    std::atomic<uint32_t> recorded{0};
    std::array<std::atomic<uint32_t>, 512> come{};  // a power of two, as numbers go round
    std::atomic<uint32_t>& of(uint32_t record) noexcept { return come[record % come.size()]; }
  };
  static_assert(std::atomic<uint32_t>::is_always_lock_free);
  explicit SharedEvent(const HostName& name);
  Words& words() const noexcept;

  const Reach reach_;
  const uint64_t instance_;           // its maker's
  const net::OwnedDescriptor maker_;  // of its process; none: itself
  const uint64_t id_;
  net::SharedMemory memory_;  // constant
};

// A device that waits for a word sees nobody's end: a thread here does, and writes the word.
//
// Threading: every method from any thread.
class DeathWatch {
 public:
  DeathWatch() = default;
  ~DeathWatch();
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;

  // Of another process.
  //   throws  Error kOverloaded: no thread or descriptor left
  void add(std::shared_ptr<SharedEvent> event);
  void remove(const std::shared_ptr<SharedEvent>& event) noexcept;

 private:
  void run();
  void wake() const noexcept;

  Mutex mutex_;
  bool ended_ FARSPAN_GUARDED_BY(mutex_) = false;
  std::set<std::shared_ptr<SharedEvent>> events_ FARSPAN_GUARDED_BY(mutex_);
  net::OwnedDescriptor woken_;  // set before the thread begins
  std::thread thread_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::device
