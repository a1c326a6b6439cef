// A program that links this has the nccl backend's library in it.
#include <farspan/c10d/backends/nccl/cuda/library.h>
#include <farspan/c10d/device/cuda/cuda.h>

namespace {

// Not before a group needs it: the driver does not survive a fork(). Throws what
// why_no_cuda_devices() says.
std::shared_ptr<farspan::dist::nccl::Library> open_nccl() {
  return farspan::dist::nccl::make_nccl_library(farspan::device::make_cuda_devices());
}

const bool registered = (farspan::dist::nccl::register_library(open_nccl), true);

}  // namespace

extern "C" bool farspan_registers_nccl() { return registered; }
