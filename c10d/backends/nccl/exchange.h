// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Exchange: one end of a message between devices, from its call until a device has been given it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/device/devices.h>
#include <farspan/c10d/group/backend.h>

namespace farspan::dist::nccl {

// Ended when the last that holds it lets go.
using SharedEvent = std::shared_ptr<void>;
SharedEvent make_event(const std::shared_ptr<device::Devices>& devices, int device);

// The future of who sends or receives; its value is the other rank. First another backend finds out
// which send goes to which receive, then a task of a lane gives the device the message.
//
// Threading: as FutureState; the rest by one thread at a time, but for what is constant.
class Exchange final : public farspan::detail::FutureState<int> {
 public:
  enum class End { kSend, kRecv };
  // What the message's stream has been given by now comes before it.
  Exchange(const std::shared_ptr<device::Devices>& devices, End which, const Message& what,
           Block memory);

  const End end;
  const Message message;
  const Block data;
  const TimePoint called = Clock::now();
  const SharedEvent begins;

  bool is_kept = false;   // a send to itself whose end does not wait for its receive
  uint64_t number = 0;    // of the message, among all that its sender sends from devices
  Future<int> announced;  // the other backend's
  std::optional<Error> failure = {};  // why no device has been given it

  size_t bytes() const noexcept { return data.count * size_of(message.type); }
  DeviceMessage& on_device() const noexcept { return *message.on_device; }
  // "send of 3 elements of float32, tag 1".
  std::string description() const;

  // For one that no task gives to a device.
  void fail(const Error& why) {
    on_device().memory.reset();
    set_error(why);
  }
  // What gives it to the device: whoever waits helps with that.
  void set_task(Future<int> task);
  // Whether the calling thread is one that waits, and helps.
  static bool is_helping() noexcept;

 protected:
  bool block(Deadline deadline) override;

 private:
  Future<int> task() const;

  mutable Mutex mutex_;
  Future<int> task_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::dist::nccl
