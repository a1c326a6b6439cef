// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// DeviceCarrier: how the room that brings tensors from accelerator to accelerator is seen by rpc,
// which knows no more of devices than this.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include <farspan/c10d/base/device_order.h>
#include <farspan/c10d/base/future.h>
#include <farspan/c10d/base/time.h>
#include <farspan/c10d/values/device_tensors.h>
#include <farspan/rpc/agent/route.h>
#include <farspan/rpc/wire/frame.h>

namespace farspan {

// Whether a message asks, or answers: answers go back to where requests came from.
enum class MessageWay { kRequest, kReply };

// What a message lends: alive until its receiver has let go of it, or is gone.
class LentMemory : public wire::Lent {
 public:
  LentMemory() = default;
  ~LentMemory() override { over_.set_value(); }  // unless its line has ended
  void line_ended() noexcept final {
    stay_lent();
    over_.set_error(Error(Code::kDisconnected,
                          "the line ended before the other worker's devices had copied all"));
  }
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;
  // Ready when the memory is its owner's again. kDisconnected: the line has ended, and nobody knows
  // whether the other worker still reads it.
  Future<void> over() const { return over_.future(); }

 private:
  // Its receiver may still have it, and nobody says so by that line.
  virtual void stay_lent() noexcept {}

  const Promise<void> over_;
};

// What a message lends has to be had another way, for which its reader would have to wait, and must
// not: it is to be read again, on a thread that may block.
struct WouldBlock {};

// How the tensors of one message are written, or read.
struct DeviceTerms {
  Deadline deadline;  // at most so long it waits for devices
  // To write: all arrive there, whatever the maps say.
  std::optional<int> place;
  // One that the maps send nowhere arrives in the processor's memory.
  bool host_if_unmapped = false;
  // To read: the calling thread is thrown WouldBlock instead of being held up by another worker. It
  // may still have to wait for devices.
  bool must_not_block = false;
  // What is waited for of other workers is given up when this is ready.
  std::optional<Future<void>> given_up;
  // They are of no interest, and get no bytes.
  bool drops_bytes = false;
};

// The tensors of one message.
class MessageDevices : public DeviceTensors {
 public:
  // Of one that was written: what it lends, to be kept until its receiver has copied it; null:
  // nothing.
  virtual std::shared_ptr<LentMemory> lent() = 0;
  // Of one that is to be read: kept until everything it lends has been copied.
  virtual void keep_until_copied(std::shared_ptr<void> borrowed) = 0;
};

// The streams that a thread works with for one message: of a pool, not those that others use.
//
// Threading: made, used and destroyed by the same thread, on its stack; the innermost one counts.
class DeviceStreams {
 public:
  virtual ~DeviceStreams() = default;
  // All that they have been given by now. Null: they were not used.
  //   tensors  what that work is about, so that their memory is not used again before it is done
  virtual std::shared_ptr<DeviceWork> work_so_far(std::vector<at::Tensor> tensors) = 0;
};

// Threading: every method from any thread.
class DeviceCarrier {
 public:
  virtual ~DeviceCarrier() = default;
  //   terms  outlive what is returned, and may change meanwhile
  virtual std::unique_ptr<MessageDevices> open(int peer, MessageWay way,
                                               const DeviceTerms& terms) = 0;
  // From now on, and until it is destroyed, devices that open()ed messages use have streams of
  // their own.
  virtual std::unique_ptr<DeviceStreams> use_own_streams() = 0;
  // What is known of the devices of a route's worker, for Worker::routes().
  virtual void describe(Route& route) const = 0;
  // The worker has ended: nobody hears any more of what it has lent.
  virtual void end() noexcept = 0;
  // That have come here from others' devices to this worker's.
  virtual uint64_t bytes_come() const noexcept = 0;
};

}  // namespace farspan
