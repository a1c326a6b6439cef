#include <farspan/c10d/device/cuda/driver.h>

#include <map>
#include <string>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/mutex.h>

namespace farspan::device {
namespace {

Code code_of(cudaError_t error) noexcept {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return Code::kOverloaded;
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
    case cudaErrorInvalidResourceHandle:
      return Code::kInvalidArgument;
    default:
      return Code::kUnavailable;
  }
}

Code code_of(CUresult error) noexcept {
  switch (error) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return Code::kOverloaded;
    case CUDA_ERROR_INVALID_VALUE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_NOT_FOUND:
      return Code::kInvalidArgument;
    default:
      return Code::kUnavailable;
  }
}

template <class Function>
Function driver_function(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check(cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found),
        name);
  if (found == cudaDriverEntryPointSuccess && function) {
    return reinterpret_cast<Function>(function);
  }
  throw Error(Code::kUnavailable, std::string("this driver has no ") + name)
      .advice("install a newer driver");
}

// Of the devices that this process uses by way of OnDevice: the contexts that LibTorch uses, too.
class Contexts {
 public:
  static Contexts& all() {
    static auto* contexts = new Contexts;  // until the process ends, as the contexts are
    return *contexts;
  }

  CUcontext of(int device) {
    MutexLock lock(mutex_);
    const auto known = known_.find(device);
    if (known != known_.end()) return known->second;
    const Driver& driver = Driver::get();
    CUcontext context = nullptr;
    driver.check(driver.retain_context(&context, device), "cuDevicePrimaryCtxRetain");
    return known_[device] = context;
  }
  CUcontext any() const {
    MutexLock lock(mutex_);
    return known_.empty() ? nullptr : known_.begin()->second;
  }

 private:
  mutable Mutex mutex_;
  std::map<int, CUcontext> known_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace

void check(cudaError_t error, const char* function) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // or the next call that LibTorch checks would report it as its own
  Error failed(code_of(error),
               std::string(cudaGetErrorName(error)) + ": " + cudaGetErrorString(error));
  throw failed.operation(function).advice(
      error == cudaErrorMemoryAllocation
          ? "release memory of the device"
          : "look at what the driver has logged (dmesg, nvidia-smi)");
}

void forgive(cudaError_t error) noexcept {
  if (error != cudaSuccess) cudaGetLastError();
}

const Driver& Driver::get() {
  static const Driver driver{
      driver_function<PFN_cuDeviceGetUuid_v11040>("cuDeviceGetUuid", 11040),
      driver_function<PFN_cuPointerGetAttributes_v7000>("cuPointerGetAttributes", 7000),
      driver_function<PFN_cuDevicePrimaryCtxRetain_v7000>("cuDevicePrimaryCtxRetain", 7000),
      driver_function<PFN_cuCtxGetCurrent_v4000>("cuCtxGetCurrent", 4000),
      driver_function<PFN_cuCtxPushCurrent_v4000>("cuCtxPushCurrent", 4000),
      driver_function<PFN_cuCtxPopCurrent_v4000>("cuCtxPopCurrent", 4000),
      driver_function<PFN_cuStreamWaitValue32_v11070>("cuStreamWaitValue32", 11070),
      driver_function<PFN_cuStreamWriteValue32_v11070>("cuStreamWriteValue32", 11070),
      driver_function<PFN_cuGetErrorName_v6000>("cuGetErrorName", 6000),
      driver_function<PFN_cuGetErrorString_v6000>("cuGetErrorString", 6000)};
  return driver;
}

void Driver::check(CUresult result, const char* function) const {
  if (result == CUDA_SUCCESS) return;
  const char *name = nullptr, *text = nullptr;
  error_name(result, &name);
  error_string(result, &text);
  throw Error(code_of(result),
              std::string(name ? name : "unknown error") + ": " + (text ? text : "no text"))
      .operation(function)
      .advice("look at what the driver has logged (dmesg, nvidia-smi)");
}

OnDevice::OnDevice(int device) {
  const Driver& driver = Driver::get();
  const CUcontext wanted = Contexts::all().of(device);
  CUcontext current = nullptr;
  driver.check(driver.current_context(&current), "cuCtxGetCurrent");
  if (current != wanted) {
    driver.check(driver.push_context(wanted), "cuCtxPushCurrent");
    has_pushed_ = true;
  }
  exchange_capture_mode();
}

OnDevice::OnDevice() noexcept {
  const CUcontext any = Contexts::all().any();
  if (!any) return;                      // what is called makes one
  const Driver& driver = Driver::get();  // it is there: it has made that one
  CUcontext current = nullptr;
  if (driver.current_context(&current) != CUDA_SUCCESS) return;
  has_pushed_ = !current && driver.push_context(any) == CUDA_SUCCESS;
  exchange_capture_mode();
}

OnDevice::~OnDevice() {
  if (has_exchanged_) exchange_capture_mode();
  CUcontext popped = nullptr;
  if (has_pushed_) Driver::get().pop_context(&popped);
}

void OnDevice::exchange_capture_mode() noexcept {
  forgive(cudaThreadExchangeStreamCaptureMode(&mode_));
  has_exchanged_ = true;
}

}  // namespace farspan::device
