// A program that links this sends tensors of GPUs.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <farspan/c10d/device/cuda/cuda.h>
#include <farspan/rpc/device/accelerator.h>

namespace {

// Not before a worker joins: the driver does not survive a fork().
farspan::Accelerator open_cuda() {
  std::string why = farspan::device::why_no_cuda_devices();
  if (why.empty() && !c10::impl::hasDeviceGuardImpl(c10::kCUDA)) {
    why = "this LibTorch was built without CUDA, or torch_cuda is not linked";
  }
  if (!why.empty()) return {c10::kCUDA, nullptr, why};
  return {c10::kCUDA, farspan::device::make_cuda_devices(), ""};
}

const bool registered = (farspan::register_accelerator(open_cuda), true);

}  // namespace

extern "C" bool farspan_registers_cuda() { return registered; }
