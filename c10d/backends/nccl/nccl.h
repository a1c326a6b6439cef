// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The nccl backend: tensors of GPUs from GPU to GPU, by NCCL; all else by the cpu backend.
// c10d/backends/nccl/README.md has how.
#pragma once

#include <memory>

#include <farspan/c10d/backends/nccl/library.h>
#include <farspan/c10d/group/backend.h>

namespace farspan::dist::nccl {

// For register_backend("nccl", ..).
//   throws  Error kInvalidArgument: the program has no library of NCCL; kUnavailable: no GPU; what
//           make_cpu_backend() throws
std::shared_ptr<Backend> make_nccl_backend(const BackendContext& context);

// The same out of its parts.
//   control  of the same ranks: by it they agree on what they do, and tensors of the processor go
std::shared_ptr<Backend> make_nccl_backend(std::shared_ptr<Library> library,
                                           std::shared_ptr<Backend> control, GroupSpec spec);

}  // namespace farspan::dist::nccl
