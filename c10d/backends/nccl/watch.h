// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What a device does wakes nobody: whoever waits for it looks himself, and a thread does for all
// others.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/future.h>
#include <farspan/c10d/base/time.h>
#include <farspan/c10d/device/devices.h>

namespace farspan::dist::nccl {

inline constexpr std::chrono::milliseconds kBetweenLooks{2};

// Ended by the owner's look(), whoever calls it first.
template <class Owner>
class Watched final : public farspan::detail::FutureState<int> {
 public:
  explicit Watched(std::weak_ptr<Owner> owner) : owner_(std::move(owner)) {}

 protected:
  bool block(Deadline deadline) override {
    Micros pause{20};
    for (;;) {
      if (const auto owner = owner_.lock()) owner->look();
      if (ready()) return true;
      if (deadline.expired()) return false;
      if (sleep(earlier(deadline, Deadline::after(pause)))) return true;
      pause = std::min<Micros>(pause * 2, kBetweenLooks);
    }
  }

 private:
  const std::weak_ptr<Owner> owner_;
};

// Calls the owner's wait_and_look() until that is false, or the owner gone.
//   throws  std::system_error: no thread can be had
template <class Owner>
std::thread start_watching(std::weak_ptr<Owner> owner, std::shared_ptr<device::Devices> devices,
                           int device) {
  return std::thread([owner = std::move(owner), devices = std::move(devices), device] {
    pthread_setname_np(pthread_self(), "farspan-nccl");
    try {
      devices->enter(device);
    } catch (const Error&) {  // whoever uses the device is told
    }
    for (;;) {
      const auto one = owner.lock();
      if (!one || !one->wait_and_look()) return;
    }
  });
}

}  // namespace farspan::dist::nccl
