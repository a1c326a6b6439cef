// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// DevicePlace: a device that the backend of a group performs collectives and messages on, as far as
// the order of calls needs to know of it.
#pragma once

#include <functional>
#include <memory>

#include <farspan/c10d/base/device_order.h>
#include <farspan/c10d/group/backend.h>

namespace farspan::dist {

// Threading: every method from any thread; of the calling thread's current stream.
class DevicePlace {
 public:
  // While it lives, what the calling thread gives the device belongs to the collective.
  //
  // Threading: made and destroyed by one thread.
  class Turn {
   public:
    virtual ~Turn() = default;
    DeviceCall call;
  };

  virtual ~DevicePlace() = default;
  // What the current stream has been given by now.
  virtual std::shared_ptr<DeviceWork> work_so_far() const = 0;
  virtual device::Stream current_stream() const = 0;
  // What `hold_up` has a stream wait for.
  virtual std::shared_ptr<DeviceWork> work_of(
      std::function<void(device::Stream)> hold_up) const = 0;
  // On the current stream: what that is given next waits for the collective.
  virtual std::unique_ptr<Turn> turn() const = 0;
  // On another one, which goes on when `after` is done, and is the current one meanwhile. It is the
  // group's own (KeptStream): collectives of other groups, which other ranks may begin in another
  // order, do not stand behind it.
  virtual std::unique_ptr<Turn> turn_after(DeviceWork& after) const = 0;
  // The same, on one that the group's collectives do not stand behind, either.
  virtual std::unique_ptr<Turn> turn_beside(DeviceWork& after) const = 0;
};

}  // namespace farspan::dist
