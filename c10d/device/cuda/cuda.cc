#include <farspan/c10d/device/cuda/cuda.h>

#include <cuda_runtime_api.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <list>
#include <new>
#include <random>
#include <unordered_map>
#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/device/arrival.h>
#include <farspan/c10d/device/cuda/driver.h>
#include <farspan/c10d/device/shared_event.h>

namespace farspan::device {
namespace {

static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(MemoryName));

// An event of this process is CUDA's own. One that others wait for has a word in memory which they
// share, too, written and waited for by devices: what CUDA offers for that (cudaIpcGetEventHandle)
// may never come when the process that made it has ended.
struct CudaEvent {
  cudaEvent_t local = nullptr;          // null: it is another process's
  std::shared_ptr<SharedEvent> shared;  // null: it is of this process only
  CUdeviceptr words = 0;                // as devices see the shared memory

  CUdeviceptr word_of(uint32_t record) const noexcept { return words + shared->offset_of(record); }
};

cudaStream_t raw(Stream stream) noexcept { return static_cast<cudaStream_t>(stream.handle); }
CudaEvent& of(Event event) noexcept { return *static_cast<CudaEvent*>(event); }

class CudaDevices final : public Devices {
 public:
  ~CudaDevices() override;

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
    const OnDevice on;
    forgive(cudaFree(memory));
  }
  void* allocate_host(size_t bytes) override {
    const OnDevice on;
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), "cudaHostAlloc");
    return memory;
  }
  void release_host(void* memory) noexcept override {
    const OnDevice on;
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
    const OnDevice on;
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

  bool is_captured(Stream stream) override {
    const OnDevice on(stream.device);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t error = cudaStreamIsCapturing(raw(stream), &status);
    // The default stream, while one that it waits for is captured.
    if (error == cudaErrorStreamCaptureImplicit) return cudaGetLastError(), true;
    check(error, "cudaStreamIsCapturing");
    return status != cudaStreamCaptureStatusNone;
  }

  Event new_event(int device, Reach reach) override;
  void end_event(Event event) noexcept override;
  void record(Event event, Stream stream) override;
  void wait(Stream stream, Event event) override;
  bool has_come(Event event) override;

  MemoryName name_memory(void* base) override {
    const OnDevice on(region_of(base).device);
    cudaIpcMemHandle_t handle;
    check(cudaIpcGetMemHandle(&handle, base), "cudaIpcGetMemHandle");
    MemoryName name;
    std::memcpy(&name, &handle, sizeof handle);
    return name;
  }
  void* open_memory(int device, const MemoryName& name) override;
  void close_memory(void* opened) noexcept override;
  EventName name_event(Event event) override {
    if (of(event).shared) return of(event).shared->name();
    throw Error(Code::kInvalidArgument, "this event is of one process only");
  }
  Event open_event(int device, const EventName& name) override;

 private:
  struct Opened {
    int device;
    int times;
  };
  // Has devices see its shared memory.
  static void share(CudaEvent& event);
  static void unshare(const CudaEvent& event) noexcept;
  // Of what has ended: what no device will write any more.
  void take_written_locked(std::list<std::unique_ptr<CudaEvent>>& done) noexcept
      FARSPAN_REQUIRES(mutex_);

  const uint64_t instance_ = uint64_t{std::random_device()()} << 32 | std::random_device()();
  const Driver& driver_ = Driver::get();
  DeathWatch deaths_;
  mutable Mutex mutex_;
  std::list<std::unique_ptr<CudaEvent>> ended_ FARSPAN_GUARDED_BY(mutex_);  // but written still
  std::unordered_map<void*, Opened> opened_ FARSPAN_GUARDED_BY(mutex_);
};

// As nvidia-smi writes it (but for instances of MIG, which it calls otherwise).
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

void CudaDevices::share(CudaEvent& event) {
  const SharedEvent& shared = *event.shared;
  check(cudaHostRegister(shared.memory(), shared.bytes(),
                         cudaHostRegisterPortable | cudaHostRegisterMapped),
        "cudaHostRegister");
  void* seen = nullptr;
  const cudaError_t error = cudaHostGetDevicePointer(&seen, shared.memory(), 0);
  event.words = reinterpret_cast<CUdeviceptr>(seen);
  if (error == cudaSuccess) return;
  unshare(event);
  check(error, "cudaHostGetDevicePointer");
}

void CudaDevices::unshare(const CudaEvent& event) noexcept {
  forgive(cudaHostUnregister(event.shared->memory()));
}

Event CudaDevices::new_event(int device, Reach reach) {
  const OnDevice on(device);
  auto event = std::make_unique<CudaEvent>();
  if (reach == Reach::kThisHost) {
    event->shared = std::make_shared<SharedEvent>(instance_, reach);
    share(*event);
  }
  const cudaError_t error = cudaEventCreateWithFlags(&event->local, cudaEventDisableTiming);
  if (error != cudaSuccess && event->shared) unshare(*event);
  check(error, "cudaEventCreate");
  return event.release();
}

Event CudaDevices::open_event(int device, const EventName& name) {
  const OnDevice on(device);
  auto event = std::make_unique<CudaEvent>();
  event->shared = std::make_shared<SharedEvent>(instance_, name);
  share(*event);
  try {
    deaths_.add(event->shared);
  } catch (...) {
    unshare(*event);
    throw;
  }
  return event.release();
}

// What a device is to write still stays until it has.
void CudaDevices::end_event(Event ended) noexcept {
  const OnDevice on;
  std::list<std::unique_ptr<CudaEvent>> done;
  std::unique_ptr<CudaEvent> event(&of(ended));
  if (event->local) {
    const cudaError_t state = cudaEventQuery(event->local);
    forgive(state);
    const bool has_failed = state != cudaSuccess && state != cudaErrorNotReady;
    if (event->shared && has_failed) event->shared->come_all();
    forgive(cudaEventDestroy(event->local));
  }
  if (!event->shared) return;
  if (!event->local) deaths_.remove(event->shared);
  std::list<std::unique_ptr<CudaEvent>> mine;
  try {
    mine.push_back(std::move(event));
  } catch (const std::bad_alloc&) {
    return static_cast<void>(event.release());  // better than that a device writes what is no more
  }
  {
    MutexLock lock(mutex_);
    ended_.splice(ended_.end(), mine);
    take_written_locked(done);
  }
  for (const auto& one : done) unshare(*one);
}

void CudaDevices::take_written_locked(std::list<std::unique_ptr<CudaEvent>>& done) noexcept {
  for (auto one = ended_.begin(); one != ended_.end();) {
    const auto here = one++;
    const SharedEvent& shared = *(*here)->shared;
    if (!shared.is_own() || shared.has_all_come()) done.splice(done.end(), ended_, here);
  }
}

// What a device is to write still is left to the end of the process.
CudaDevices::~CudaDevices() {
  const OnDevice on;
  std::list<std::unique_ptr<CudaEvent>> done;
  MutexLock lock(mutex_);
  take_written_locked(done);
  for (const auto& one : done) unshare(*one);
  for (auto& one : ended_) static_cast<void>(one.release());
}

void CudaDevices::record(Event event, Stream stream) {
  const OnDevice on(stream.device);
  const CudaEvent& one = of(event);
  if (!one.local) {
    throw Error(Code::kInvalidArgument, "an event of another process cannot be recorded here");
  }
  if (one.shared) {  // the word first: it has been written when the local one has come
    const uint32_t number = one.shared->record();
    const CUresult given = driver_.write_value(raw(stream), one.word_of(number), number,
                                               CU_STREAM_WRITE_VALUE_DEFAULT);
    if (given != CUDA_SUCCESS) one.shared->come(number);  // nobody is to wait for what is not there
    driver_.check(given, "cuStreamWriteValue32");
  }
  check(cudaEventRecord(one.local, raw(stream)), "cudaEventRecord");
}

void CudaDevices::wait(Stream stream, Event event) {
  const OnDevice on(stream.device);
  const CudaEvent& one = of(event);
  if (one.local) {
    return check(cudaStreamWaitEvent(raw(stream), one.local, cudaEventWaitDefault),
                 "cudaStreamWaitEvent");
  }
  // Should its process end now, deaths_ writes the word.
  const uint32_t number = one.shared->last_record();
  if (one.shared->has_come(number)) return;
  driver_.check(
      driver_.wait_value(raw(stream), one.word_of(number), number, CU_STREAM_WAIT_VALUE_GEQ),
      "cuStreamWaitValue32");
}

bool CudaDevices::has_come(Event event) {
  const OnDevice on;
  const CudaEvent& one = of(event);
  if (!one.local) return one.shared->has_come(one.shared->last_record());
  const cudaError_t state = cudaEventQuery(one.local);
  if (state == cudaErrorNotReady) return cudaGetLastError(), false;
  check(state, "cudaEventQuery");
  return true;
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
