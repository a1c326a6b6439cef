// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The NCCL of NVIDIA, on the GPUs of this process.
#pragma once

#include <memory>

#include <farspan/c10d/backends/nccl/library.h>

namespace farspan::dist::nccl {

// Communicators are non-blocking ones. A call returns when it has been given to the stream: the
// first between two ranks waits for both, since NCCL connects them then, and ends at once, in Error
// kUnavailable, when another thread aborts the communicator.
//   devices  of CUDA
std::shared_ptr<Library> make_nccl_library(std::shared_ptr<device::Devices> devices);

}  // namespace farspan::dist::nccl
