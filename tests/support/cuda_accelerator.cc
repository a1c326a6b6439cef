#include "support/accelerator.h"

#include <ATen/ATen.h>
#include <c10/core/AllocatorConfig.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/device/cuda/cuda.h>
#include <farspan/c10d/device/cuda/driver.h>
#include <farspan/rpc/device/accelerator.h>
#include <farspan/rpc/device/streams.h>

#include "support/needs_gpu.h"

namespace farspan::testing {
namespace {

using device::Event;
using device::Stream;

constexpr char kVisible[] = "CUDA_VISIBLE_DEVICES";

// The GPUs; counts what is taken of them and not given back, and does not open memory when told so.
class WatchedDevices final : public device::Devices {
 public:
  std::string_view kind() const noexcept override { return gpus_->kind(); }
  int count() const override { return gpus_->count(); }
  std::string uuid(int device) const override { return gpus_->uuid(device); }
  void enter(int device) override { gpus_->enter(device); }

  void* allocate(int device, size_t bytes) override {
    void* const memory = gpus_->allocate(device, bytes);
    const std::lock_guard lock(mutex_);
    allocated_[memory] = bytes;
    return memory;
  }
  void release(void* memory) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      allocated_.erase(memory);
    }
    gpus_->release(memory);
  }
  void* allocate_host(size_t bytes) override {
    if (!may_pin_) throw Error(Code::kOverloaded, "no pinned memory: as the test says");
    return gpus_->allocate_host(bytes);
  }
  void release_host(void* memory) noexcept override { gpus_->release_host(memory); }
  device::Region region_of(const void* address) const override { return gpus_->region_of(address); }

  Stream new_stream(int device) override { return gpus_->new_stream(device); }
  void end_stream(Stream stream) noexcept override { gpus_->end_stream(stream); }
  void copy(Stream stream, void* to, const void* from, size_t bytes) override {
    gpus_->copy(stream, to, from, bytes);
  }
  void then(Stream stream, std::function<void()> done) override {
    gpus_->then(stream, std::move(done));
  }
  bool synchronize(Stream stream, Deadline deadline) override {
    return gpus_->synchronize(stream, deadline);
  }

  Event new_event(int device, device::Reach reach) override {
    const Event event = gpus_->new_event(device, reach);
    ++events_;
    return event;
  }
  void end_event(Event event) noexcept override {
    --events_;
    gpus_->end_event(event);
  }
  void record(Event event, Stream stream) override { gpus_->record(event, stream); }
  void wait(Stream stream, Event event) override { gpus_->wait(stream, event); }
  bool has_come(Event event) override { return gpus_->has_come(event); }
  bool is_captured(Stream stream) override { return gpus_->is_captured(stream); }

  device::MemoryName name_memory(void* base) override { return gpus_->name_memory(base); }
  void* open_memory(int device, const device::MemoryName& name) override {
    if (!may_open_) {
      throw Error(Code::kUnavailable,
                  "memory of other processes cannot be opened: as the test says");
    }
    void* const memory = gpus_->open_memory(device, name);
    ++opened_;
    return memory;
  }
  void close_memory(void* opened) noexcept override {
    --opened_;
    gpus_->close_memory(opened);
  }
  device::EventName name_event(Event event) override { return gpus_->name_event(event); }
  Event open_event(int device, const device::EventName& name) override {
    const Event event = gpus_->open_event(device, name);
    ++events_;
    return event;
  }

  void let_memory_be_opened(bool may) { may_open_ = may; }
  void let_host_memory_be_allocated(bool may) { may_pin_ = may; }
  uint64_t allocated() const {
    const std::lock_guard lock(mutex_);
    return std::accumulate(allocated_.begin(), allocated_.end(), uint64_t{0},
                           [](uint64_t sum, const auto& one) { return sum + one.second; });
  }
  size_t opened() const { return opened_; }
  size_t events() const { return events_; }

 private:
  const std::unique_ptr<device::Devices> gpus_ = device::make_cuda_devices();
  std::atomic<bool> may_open_{true}, may_pin_{true};
  std::atomic<size_t> opened_{0}, events_{0};
  mutable std::mutex mutex_;
  std::map<void*, size_t> allocated_;
};

WatchedDevices& devices() {
  static const auto& watched = *new auto([] {  // until the process ends
    const auto made = std::make_shared<WatchedDevices>();
    at::globalContext().lazyInitDevice(c10::kCUDA);  // its allocator tells nothing before
    register_accelerator([made] { return Accelerator{c10::kCUDA, made, ""}; });
    return made;
  }());
  return *watched;
}

// Words that the devices look at. Each is used once.
class Flags {
 public:
  static Flags& all() {
    static auto* const flags = new Flags;
    return *flags;
  }
  std::atomic<uint32_t>& next() {
    const size_t number = used_++;
    if (number >= kCount) throw std::logic_error("a test holds up more than there are flags");
    return flags_[number];
  }

 private:
  static constexpr size_t kCount = 1 << 14;
  std::atomic<size_t> used_{0};
  std::atomic<uint32_t>* const flags_ =
      new (devices().allocate_host(kCount * sizeof(uint32_t))) std::atomic<uint32_t>[kCount] {};
};

constexpr Millis kMostHeldUp{20'000};

// Unless `done` is ready by then.
void after_a_while(const Future<void>& done, std::function<void()> then) {
  std::thread([done, then = std::move(then)] {
    if (!done.wait_for(3 * kMostHeldUp)) then();
  }).detach();
}

// The first use of a kernel may wait until the device is idle.
void warm_up(at::Device device) {
  static std::mutex mutex;
  static std::set<c10::DeviceIndex> warm;
  const std::lock_guard lock(mutex);
  if (!warm.insert(device.index()).second) return;
  const at::Tensor x = at::ones({1000}, at::kLong).to(device);
  (x + x).clone().cpu();
}

class NeedsGpus final : public ::testing::Environment {
 public:
  void SetUp() override {
    const std::string why = why_no_gpu();
    if (!why.empty()) GTEST_SKIP() << "no GPU: " << why;
  }
};
const ::testing::Environment* const needs_gpus = ::testing::AddGlobalTestEnvironment(new NeedsGpus);

// As many queues as there can be: of two streams that share one, the one that is held up holds up
// the other.
const int have_queues = setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);

}  // namespace

int accelerators() { return devices().count(); }

at::Device accelerator(int number) {
  devices();
  return {c10::kCUDA, static_cast<c10::DeviceIndex>(number)};
}

// By their UUIDs: their numbers here may be other ones than on the machine.
std::pair<std::string, std::string> with_accelerators(const std::vector<int>& numbers) {
  std::string list;
  for (const int number : numbers) list += (list.empty() ? "" : ",") + devices().uuid(number);
  return {kVisible, list};
}

AcceleratorUse accelerator_use() {
  AcceleratorUse use{devices().allocated(), devices().opened(), devices().events(), {}};
  for (int device = 0; device < accelerators(); ++device) {
    const auto statistics =
        c10::cuda::CUDACachingAllocator::getDeviceStats(static_cast<c10::DeviceIndex>(device));
    use.bytes += static_cast<uint64_t>(statistics.allocated_bytes[0].current);  // [0]: all kinds
  }
  return use;
}

void settle_accelerator() {
  const Promise<void> settled;
  after_a_while(settled.future(), [] {
    std::fprintf(stderr, "the devices of process %d hang\n", getpid());
    std::abort();
  });
  for (int device = 0; device < accelerators(); ++device) {
    accelerator_guard().synchronizeDevice(static_cast<c10::DeviceIndex>(device));
  }
  settled.set_value();
}

// By a wait of the device's: a function of the host's would hold up those of all streams. What
// waits for it in the driver, as the release of memory does, goes on after a while.
void hold_up_current_stream(at::Device device, Future<void> until) {
  warm_up(device);
  const c10::DeviceGuard guard(device);  // its default stream has no handle of its own
  std::atomic<uint32_t>& flag = Flags::all().next();
  const Stream stream = current_stream(device);
  const device::Driver& driver = device::Driver::get();
  driver.check(driver.wait_value(static_cast<CUstream>(stream.handle),
                                 reinterpret_cast<CUdeviceptr>(&flag), 1, CU_STREAM_WAIT_VALUE_EQ),
               "cuStreamWaitValue32");
  std::thread([&flag, until] {
    if (!until.wait_for(kMostHeldUp)) std::fprintf(stderr, "a stream was held up for too long\n");
    flag.store(1);
  }).detach();
}

void CapturedStream::begin(at::Device device) {
  const auto stream = static_cast<cudaStream_t>(current_stream(device).handle);
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
}
void CapturedStream::end(at::Device device) {
  const auto stream = static_cast<cudaStream_t>(current_stream(device).handle);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphDestroy(graph);
}

void let_memory_be_opened(bool may) { devices().let_memory_be_opened(may); }

void let_pinned_memory_be_had(bool may) { devices().let_host_memory_be_allocated(may); }

// Small ones share an allocation of LibTorch's.
bool has_a_region_for_each_tensor() { return false; }

std::optional<uint64_t> requests_of_pinned_memory() { return std::nullopt; }

// Of all threads here, and nothing of what is there to be used again.
InUnnamedMemory::InUnnamedMemory() {
  c10::cuda::CUDACachingAllocator::emptyCache();
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:True");
}
InUnnamedMemory::~InUnnamedMemory() {
  c10::CachingAllocator::setAllocatorSettings("expandable_segments:False");
  c10::cuda::CUDACachingAllocator::emptyCache();
}

}  // namespace farspan::testing
