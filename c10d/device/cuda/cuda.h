// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The GPUs of this process, by the CUDA runtime.
#pragma once

#include <memory>
#include <string>

#include <farspan/c10d/device/devices.h>

namespace farspan::device {

// Why make_cuda_devices() would throw, in the driver's words; empty: it would not.
std::string why_no_cuda_devices() noexcept;

// Those that CUDA_VISIBLE_DEVICES leaves. A device's context is made when it is first used.
//   throws  Error kUnavailable: there is no GPU here, or no driver that is new enough
std::unique_ptr<Devices> make_cuda_devices();

}  // namespace farspan::device
