// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Streams of accelerators, of whatever kind.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <farspan/c10d/base/device_order.h>

namespace farspan {

// What `later` is given from now on comes after what `earlier` has been given by now.
void follow(const c10::Stream& later, const c10::Stream& earlier);

// The calling thread's, of a device.
c10::Stream current_stream_of(c10::Device device);

// The tensor's memory is not used again before `by` has come so far. One of the CPU: nothing.
void record_use(const at::Tensor& tensor, const c10::Stream& by);

// What of a tensor lies on a device: itself, or the parts of a sparse one; nothing of the CPU's.
std::vector<at::Tensor> dense_parts(const at::Tensor& tensor);

// DeviceOrder::installed() is that of devices of this type from now on. Whatever uses a device
// calls it before.
//
// Threading: any thread.
void keep_device_order(c10::DeviceType type);

}  // namespace farspan
