#include <farspan/c10d/device/cuda/cuda.h>

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <unordered_map>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/device/arrival.h>

namespace farspan::device {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(MemoryName));
static_assert(sizeof(cudaIpcEventHandle_t) == sizeof(EventName));

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

// Of what must not throw: an error of it is nobody's, also not LibTorch's.
void forgive(cudaError_t error) noexcept {
  if (error != cudaSuccess) cudaGetLastError();
}

// For as long as this lives, the calling thread does not break the capture of a graph by another
// one: much that allocates, makes or asks does, where a capture is as strict as it is by default.
class BesideCaptures {
 public:
  BesideCaptures() noexcept { exchange(); }
  ~BesideCaptures() { exchange(); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  void exchange() noexcept { forgive(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// The calling thread's current device, for as long as this lives.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    if (device == before_) return;
    check(cudaSetDevice(device), "cudaSetDevice");
    has_changed_ = true;
  }
  ~OnDevice() {
    if (has_changed_) forgive(cudaSetDevice(before_));  // else that would make a context of it
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  const BesideCaptures beside_;
  int before_ = 0;
  bool has_changed_ = false;
};

// Of the driver, which is not linked: a machine without one runs all that needs none.
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

struct Driver {
  PFN_cuDeviceGetUuid_v11040 uuid =
      driver_function<PFN_cuDeviceGetUuid_v11040>("cuDeviceGetUuid", 11040);
  PFN_cuPointerGetAttributes_v7000 attributes =
      driver_function<PFN_cuPointerGetAttributes_v7000>("cuPointerGetAttributes", 7000);
  PFN_cuGetErrorName_v6000 error_name =
      driver_function<PFN_cuGetErrorName_v6000>("cuGetErrorName", 6000);
  PFN_cuGetErrorString_v6000 error_string =
      driver_function<PFN_cuGetErrorString_v6000>("cuGetErrorString", 6000);

  void check(CUresult result, const char* function) const {
    if (result == CUDA_SUCCESS) return;
    const char *name = nullptr, *text = nullptr;
    error_name(result, &name);
    error_string(result, &text);
    const bool is_argument = result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_FOUND;
    throw Error(is_argument ? Code::kInvalidArgument : Code::kUnavailable,
                std::string(name ? name : "unknown error") + ": " + (text ? text : "no text"))
        .operation(function)
        .advice("look at what the driver has logged (dmesg, nvidia-smi)");
  }
};

cudaStream_t raw(Stream stream) noexcept { return static_cast<cudaStream_t>(stream.handle); }
cudaEvent_t raw(Event event) noexcept { return static_cast<cudaEvent_t>(event); }

class CudaDevices final : public Devices {
 public:
  std::string_view kind() const noexcept override { return "cuda"; }
  int count() const override {
    int count = 0;
    check(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    return count;
  }
  std::string uuid(int device) const override;
  void enter(int device) override { check(cudaSetDevice(device), "cudaSetDevice"); }

  void* allocate(int device, size_t bytes) override {
    const OnDevice on(device);
    void* memory = nullptr;
    check(cudaMalloc(&memory, bytes), "cudaMalloc");
    return memory;
  }
  void release(void* memory) noexcept override {
    const BesideCaptures beside;
    forgive(cudaFree(memory));
  }
  void* allocate_host(size_t bytes) override {
    const BesideCaptures beside;
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), "cudaHostAlloc");
    return memory;
  }
  void release_host(void* memory) noexcept override {
    const BesideCaptures beside;
    forgive(cudaFreeHost(memory));
  }
  Region region_of(const void* address) const override;

  Stream new_stream(int device) override {
    const OnDevice on(device);
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    return {device, stream};
  }
  void end_stream(Stream stream) noexcept override {
    const BesideCaptures beside;
    forgive(cudaStreamDestroy(raw(stream)));
  }
  void copy(Stream stream, void* to, const void* from, size_t bytes) override {
    const OnDevice on(stream.device);
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, raw(stream)), "cudaMemcpyAsync");
  }
  void then(Stream stream, std::function<void()> done) override;
  bool synchronize(Stream stream, Deadline deadline) override {
    const auto arrival = std::make_shared<Arrival>();
    then(stream, [arrival] { arrival->come(); });
    return arrival->wait(deadline);
  }

  Event new_event(int device, Reach reach) override {
    const OnDevice on(device);
    const unsigned flags =
        cudaEventDisableTiming | (reach == Reach::kThisHost ? cudaEventInterprocess : 0U);
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreate");
    return event;
  }
  void end_event(Event event) noexcept override {
    const BesideCaptures beside;
    forgive(cudaEventDestroy(raw(event)));
  }
  void record(Event event, Stream stream) override {
    const OnDevice on(stream.device);
    check(cudaEventRecord(raw(event), raw(stream)), "cudaEventRecord");
  }
  void wait(Stream stream, Event event) override {
    const OnDevice on(stream.device);
    check(cudaStreamWaitEvent(raw(stream), raw(event), cudaEventWaitDefault),
          "cudaStreamWaitEvent");
  }
  bool has_come(Event event) override {
    const BesideCaptures beside;
    const cudaError_t state = cudaEventQuery(raw(event));
    if (state == cudaErrorNotReady) return cudaGetLastError(), false;
    check(state, "cudaEventQuery");
    return true;
  }

  MemoryName name_memory(void* base) override {
    const BesideCaptures beside;
    cudaIpcMemHandle_t handle;
    check(cudaIpcGetMemHandle(&handle, base), "cudaIpcGetMemHandle");
    return bytes_of<MemoryName>(handle);
  }
  void* open_memory(int device, const MemoryName& name) override;
  void close_memory(void* opened) noexcept override;
  EventName name_event(Event event) override {
    const BesideCaptures beside;
    cudaIpcEventHandle_t handle;
    check(cudaIpcGetEventHandle(&handle, raw(event)), "cudaIpcGetEventHandle");
    return bytes_of<EventName>(handle);
  }
  Event open_event(int device, const EventName& name) override {
    const OnDevice on(device);
    cudaIpcEventHandle_t handle;
    std::memcpy(&handle, name.data(), sizeof handle);
    cudaEvent_t event = nullptr;
    check(cudaIpcOpenEventHandle(&event, handle), "cudaIpcOpenEventHandle");
    return event;
  }

 private:
  struct Opened {
    int device;
    int times;
  };
  template <class Name, class Handle>
  static Name bytes_of(const Handle& handle) noexcept {
    Name name;
    std::memcpy(name.data(), &handle, sizeof handle);
    return name;
  }

  const Driver driver_{};
  mutable Mutex mutex_;
  std::unordered_map<void*, Opened> opened_ FARSPAN_GUARDED_BY(mutex_);
};

// As nvidia-smi writes it.
std::string CudaDevices::uuid(int device) const {
  CUuuid uuid;
  driver_.check(driver_.uuid(&uuid, device), "cuDeviceGetUuid");
  std::string text = "GPU-";
  for (size_t i = 0; i < sizeof uuid.bytes; ++i) {
    std::array<char, 4> hex;
    std::snprintf(hex.data(), hex.size(), "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += hex.data();
  }
  return text;
}

Region CudaDevices::region_of(const void* address) const {
  const auto at = reinterpret_cast<CUdeviceptr>(address);
  int device = 0;
  unsigned long long id = 0;
  int can_be_named = 0;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  // cuMemGetAddressRange() would want the thread to have a context of that device.
  std::array<CUpointer_attribute, 5> names{
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_BUFFER_ID,
      CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
      CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  std::array<void*, 5> values{&device, &id, &can_be_named, &base, &bytes};
  driver_.check(driver_.attributes(names.size(), names.data(), values.data(), at),
                "cuPointerGetAttributes");
  if (base == 0) {
    throw Error(Code::kInvalidArgument, "this is no memory of a GPU")
        .operation("cuPointerGetAttributes");
  }
  Region region{device, reinterpret_cast<std::byte*>(base), bytes, id, can_be_named != 0};
  MutexLock lock(mutex_);
  if (opened_.count(region.base) > 0) region.can_be_named = false;
  return region;
}

// By this function, since the one that replaces it is not called when the device has failed.
void CudaDevices::then(Stream stream, std::function<void()> done) {
  const OnDevice on(stream.device);
  auto kept = std::make_unique<std::function<void()>>(std::move(done));
  const auto call = [](cudaStream_t, cudaError_t, void* given) {
    const std::unique_ptr<std::function<void()>> mine(static_cast<std::function<void()>*>(given));
    (*mine)();
  };
  check(cudaStreamAddCallback(raw(stream), call, kept.get(), 0), "cudaStreamAddCallback");
  kept.release();
}

void* CudaDevices::open_memory(int device, const MemoryName& name) {
  const OnDevice on(device);
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, name.data(), sizeof handle);
  void* memory = nullptr;
  MutexLock lock(mutex_);  // or another thread may close it before it is counted
  check(cudaIpcOpenMemHandle(&memory, handle, cudaIpcMemLazyEnablePeerAccess),
        "cudaIpcOpenMemHandle");
  ++opened_.try_emplace(memory, Opened{device, 0}).first->second.times;
  return memory;
}

void CudaDevices::close_memory(void* opened) noexcept {
  MutexLock lock(mutex_);
  const auto found = opened_.find(opened);
  if (found == opened_.end()) return;
  try {
    const OnDevice on(found->second.device);
    forgive(cudaIpcCloseMemHandle(opened));
  } catch (const Error&) {  // the device has failed, and its mappings are gone with it
  }
  if (--found->second.times == 0) opened_.erase(found);
}

}  // namespace

std::string why_no_cuda_devices() noexcept {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (error != cudaSuccess) return cudaGetErrorString(error);
  return count > 0 ? "" : "there is no GPU that this process may use";
}

std::unique_ptr<Devices> make_cuda_devices() {
  const std::string why_not = why_no_cuda_devices();
  if (!why_not.empty()) {
    throw Error(Code::kUnavailable, why_not)
        .operation("look for GPUs")
        .advice("look at nvidia-smi and at CUDA_VISIBLE_DEVICES");
  }
  return std::make_unique<CudaDevices>();
}

}  // namespace farspan::device
