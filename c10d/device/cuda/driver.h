// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// How calls of the CUDA runtime and driver are made here: on which device, and what their errors
// become.
#pragma once

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

namespace farspan::device {

//   throws  Error kUnavailable, kInvalidArgument, kOverloaded, with CUDA's words
void check(cudaError_t error, const char* function);
// Of what must not throw: an error of it is nobody's, also not LibTorch's.
void forgive(cudaError_t error) noexcept;

// Functions of the driver, which is not linked: a machine without one runs all that needs none.
struct Driver {
  // Threading: any thread.
  //   throws  Error kUnavailable: there is none, or it is too old
  static const Driver& get();
  //   throws  Error kUnavailable, kInvalidArgument
  void check(CUresult result, const char* function) const;

  PFN_cuDeviceGetUuid_v11040 uuid;
  PFN_cuPointerGetAttributes_v7000 attributes;
  PFN_cuDevicePrimaryCtxRetain_v7000 retain_context;
  PFN_cuCtxGetCurrent_v4000 current_context;
  PFN_cuCtxPushCurrent_v4000 push_context;
  PFN_cuCtxPopCurrent_v4000 pop_context;
  PFN_cuStreamWaitValue32_v11070 wait_value;
  PFN_cuStreamWriteValue32_v11070 write_value;
  PFN_cuGetErrorName_v6000 error_name;
  PFN_cuGetErrorString_v6000 error_string;
};

// For as long as this lives, what the calling thread calls is of this device; then all is as it
// was. By contexts, since cudaSetDevice() would make one of the device that is set back to: some
// hundred MB of one that this process may not use at all. And the thread does not break the capture
// of a graph by another one meanwhile: much that allocates, makes or asks does, where a capture is
// as strict as it is by default.
class OnDevice {
 public:
  //   throws  Error kInvalidArgument: there is no such device; kUnavailable, kOverloaded
  explicit OnDevice(int device);
  // The thread's own device, or, where it has used none yet, any that this process uses.
  OnDevice() noexcept;
  ~OnDevice();
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  void exchange_capture_mode() noexcept;

  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  bool has_pushed_ = false, has_exchanged_ = false;
};

}  // namespace farspan::device
