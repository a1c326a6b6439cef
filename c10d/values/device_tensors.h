// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// DeviceTensors: what write_tensors() and read_tensors() need to know of accelerators. Rooms that
// can bring tensors from device to device implement it, and give it by ValueScope.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include <farspan/c10d/base/buffer.h>
#include <farspan/c10d/values/value.capnp.h>

namespace farspan {

// Of one message, and of the receiver's devices by their numbers; kCpu is its memory.
//
// Threading: one thread at a time, as the Writer or Reader that works with it.
class DeviceTensors {
 public:
  static constexpr int kCpu = -1;
  virtual ~DeviceTensors() = default;

  // Writing.

  // Where a tensor arrives.
  //   throws  Error kInvalidArgument: a device of another kind, or one that is mapped to none
  virtual int place_there(at::Device here) = 0;
  // Says where the bytes of a dense tensor of a device lie, which stay there until the message's
  // receiver has copied them. False: they must travel by themselves.
  //   throws  Error as device::Devices
  virtual bool lend(const at::Tensor& dense, schema::DeviceBytes::Builder out) = 0;
  // The same bytes in the processor's memory, once they have been written there: blocks until then.
  //   throws  Error kTimeout: the device was not done in time
  virtual Buffer copy_to_host(const at::Tensor& dense) = 0;

  // Reading: work of the stream that is current for the tensor's device.

  // Where a tensor is to be that arrives at this worker's device.
  //   throws  Error kCorrupt: there is no such device
  virtual at::Device device_here(int place) = 0;
  // Fills a dense tensor of a device with what the sender lends. May block until the sender has
  // given it another way.
  //   throws  Error kCorrupt: it is not as the sender says; kUnavailable: it cannot be opened, and
  //           may come no other way; else what keeps it from coming that way
  virtual void borrow(const at::Tensor& dense, schema::DeviceBytes::Reader from) = 0;
  // The same from the processor's memory.
  virtual void copy_from_host(const at::Tensor& dense, const Buffer& bytes) = 0;
};

}  // namespace farspan
