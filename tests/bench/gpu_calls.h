// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The calls of `./dev bench gpu`, the same for farspan and for PyTorch.
#pragma once

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "bench/gpu.h"

namespace bench {

// Of both processes.
inline const c10::Device kGpu{c10::kCUDA, 0};

// Until the GPU has done all that this thread's current stream was given.
inline void await_gpu() { c10::impl::VirtualGuardImpl(kGpu.type()).getStream(kGpu).synchronize(); }

// What the callee does with a tensor: it answers when the bytes are there.
inline int64_t numel_on_arrival(const at::Tensor& x) {
  await_gpu();
  return x.numel();
}

inline at::Tensor ones_on(const c10::Device& device, int64_t numel, at::ScalarType type) {
  at::Tensor x = at::ones({numel}, at::TensorOptions(type).device(device));
  if (!x.is_cpu()) await_gpu();
  return x;
}

// `add(x)`: the callee adds x to itself; returns when the call is over.
template <class Add>
void report_small_calls(const Add& add) {
  constexpr size_t kWarmUp = 500, kCalls = 5000;
  const auto time_of = [&](const c10::Device& device) {
    const at::Tensor one = ones_on(device, 1, at::kFloat);
    const auto call = [&] {
      add(one);
      if (!one.is_cpu()) await_gpu();  // the result may be on its way yet
    };
    times_of(kWarmUp, call);
    return median(times_of(kCalls, call));
  };
  report("small CPU call p50", time_of(c10::kCPU), "us");
  report("small CUDA call p50", time_of(kGpu), "us");
}

// `send(x)`: the callee does numel_on_arrival(x); returns when the call is over.
template <class Send>
void report_gpu_tensors(const Send& send) {
  for (const TensorSize& size : kGpuTensorSizes) {
    const at::Tensor x = ones_on(kGpu, static_cast<int64_t>(size.bytes), at::kByte);
    const auto call = [&] { send(x); };
    times_of(3, call);
    report_gpu_tensor(size, times_of(size.calls, call));
  }
}

}  // namespace bench
