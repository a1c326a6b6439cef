#include "support/accelerator.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/NativeFunctions.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/library.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <farspan/c10d/device/simulated/simulated.h>
#include <farspan/c10d/streams/streams.h>
#include <farspan/rpc/device/accelerator.h>

#include "support/seeded_random.h"

namespace farspan::testing {
namespace {

using c10::DeviceIndex;
using c10::DeviceType;

constexpr DeviceType kType = DeviceType::PrivateUse1;
constexpr size_t kMostDevices = 8;
// As CUDA_VISIBLE_DEVICES: the numbers of those that this process sees.
constexpr char kVisible[] = "FARSPAN_SIMULATED_DEVICES";
constexpr char kVisibleUsually[] = "0,1,2";
const std::vector<int>& visible_devices() {
  static const std::vector<int> devices = [] {
    std::vector<int> all;
    const char* const visible = std::getenv(kVisible);
    std::istringstream numbers(visible ? visible : kVisibleUsually);
    for (std::string number; std::getline(numbers, number, ',');) all.push_back(std::stoi(number));
    if (all.empty() || all.size() > kMostDevices) throw std::logic_error(kVisible);
    return all;
  }();
  return devices;
}
thread_local bool allocates_unnamed = false;
constexpr int kStreams = 9;  // of each device: the default one, and a pool

std::shared_ptr<device::SimulatedDevices>& shared_devices() {
  static auto* devices = new std::shared_ptr<device::SimulatedDevices>;  // until the process ends
  return *devices;
}
void open();
device::SimulatedDevices& devices() {
  open();
  return *shared_devices();
}

thread_local DeviceIndex current_device = 0;
thread_local std::array<int, kMostDevices> current_streams{};

device::Stream stream_of(DeviceIndex device, int number) {
  static std::mutex mutex;
  static auto* made = new std::array<std::array<device::Stream, kStreams>, kMostDevices>;
  const std::lock_guard lock(mutex);
  device::Stream& stream = (*made)[static_cast<size_t>(device)][static_cast<size_t>(number)];
  if (!stream.handle) stream = devices().new_stream(device);
  return stream;
}

c10::Stream handle_of(c10::Device device, int number) {
  return c10::Stream(c10::Stream::UNSAFE, device, number);
}

// As LibTorch's allocators do: memory that is let go of can be used again when the streams that
// have used it are done. By looks of a thread of its own, since here it is released, and poisoned.
class StreamOrderedAllocator final : public c10::Allocator {
 public:
  static StreamOrderedAllocator& one() {
    static auto* allocator = new StreamOrderedAllocator;
    return *allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    const DeviceIndex device = current_device;
    void* const memory = bytes == 0          ? nullptr
                         : allocates_unnamed ? devices().allocate_unnamed(device, bytes)
                                             : devices().allocate(device, bytes);
    if (memory) use(memory, device, current_streams[static_cast<size_t>(device)]);
    return {memory, memory, [](void* gone) { one().let_go(gone); }, c10::Device(kType, device)};
  }
  void copy_data(void*, const void*, size_t) const override {
    throw std::logic_error("no such copies");
  }

  void use(void* memory, DeviceIndex device, int stream) {
    const std::lock_guard lock(mutex_);
    used_by_[memory].emplace(device, stream);
  }

  void settle() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return gone_.empty() && !releasing_; });
  }

 private:
  using Users = std::set<std::pair<DeviceIndex, int>>;

  StreamOrderedAllocator() {
    std::thread([this] { release_all(); }).detach();
  }

  void let_go(void* memory) {
    if (!memory) return;
    const std::lock_guard lock(mutex_);
    const auto users = used_by_.extract(memory);
    gone_.emplace_back(memory, users.mapped());
    changed_.notify_all();
  }

  [[noreturn]] void release_all() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !gone_.empty(); });
      const auto [memory, users] = std::move(gone_.front());
      gone_.pop_front();
      releasing_ = true;
      lock.unlock();
      for (const auto& [device, stream] : users) {
        devices().synchronize(stream_of(device, stream), Deadline::never());
      }
      devices().release(memory);
      lock.lock();
      releasing_ = false;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool releasing_ = false;
  std::map<void*, Users> used_by_;
  std::deque<std::pair<void*, Users>> gone_;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  Guard() = default;
  DeviceType type() const override { return kType; }
  c10::Device getDevice() const override { return {kType, current_device}; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, std::exchange(current_device, device.index())};
  }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  DeviceIndex deviceCount() const noexcept override {
    return static_cast<DeviceIndex>(visible_devices().size());
  }

  static DeviceIndex index_of(c10::Device device) {
    return device.has_index() ? device.index() : current_device;
  }
  c10::Stream getStream(c10::Device device) const override {
    const DeviceIndex index = index_of(device);
    return handle_of({kType, index}, current_streams[static_cast<size_t>(index)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return handle_of({kType, index_of(device)}, 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    static std::atomic<int> turn{0};
    return handle_of({kType, index_of(device)}, 1 + turn.fetch_add(1) % (kStreams - 1));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    int& current = current_streams[static_cast<size_t>(stream.device_index())];
    return handle_of(stream.device(), std::exchange(current, static_cast<int>(stream.id())));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return native(stream).handle;
  }
  static device::Stream native(const c10::Stream& stream) {
    return stream_of(stream.device_index(), static_cast<int>(stream.id()));
  }

  void record(void** event, const c10::Stream& stream, const DeviceIndex,
              const c10::EventFlag) const override {
    const DeviceIndex device = stream.device_index();
    if (!*event) *event = devices().new_event(device, device::Reach::kThisProcess);
    devices().record(*event, native(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    devices().wait(native(stream), event);
  }
  bool queryEvent(void* event) const override { return devices().has_come(event); }
  void destroyEvent(void* event, const DeviceIndex) const noexcept override {
    devices().end_event(event);
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    devices().synchronize(native(stream), Deadline::never());
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (!data.get()) return;
    StreamOrderedAllocator::one().use(data.get(), stream.device_index(),
                                      static_cast<int>(stream.id()));
  }
};

at::Tensor make_empty(at::IntArrayRef sizes, std::optional<at::ScalarType> dtype,
                      std::optional<at::Layout>, std::optional<at::Device> device,
                      std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(*device);
  return at::detail::empty_generic(sizes, &StreamOrderedAllocator::one(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor make_empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides,
                              std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                              std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(*device);
  return at::detail::empty_strided_generic(sizes, strides, &StreamOrderedAllocator::one(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           dtype.value_or(at::kFloat));
}

// What is one kernel on a device is several pieces of work here: no other thread's come between.
std::mutex& kernel_mutex() {
  static auto* const one = new std::mutex;
  return *one;
}

// Computes `out`, contiguous, of `in`, as work of the current stream: by LibTorch's functions of
// the CPU, on copies of the bytes.
template <class Fn>
void compute(const at::Tensor& out, const std::vector<at::Tensor>& in, Fn fn) {
  const device::Stream stream =
      Guard::native(c10::impl::VirtualGuardImpl(kType).getStream(out.device()));
  const auto on_host = [](const at::Tensor& x) {
    TORCH_CHECK(x.is_contiguous(), "the simulated devices compute with contiguous tensors only");
    return at::empty(x.sizes(), x.options().device(at::kCPU).requires_grad(false));
  };
  const at::AutoDispatchBelowAutograd plain;
  const std::lock_guard one_kernel(kernel_mutex());
  std::vector<at::Tensor> copies;
  for (const at::Tensor& x : in) {
    if (x.is_cpu()) {
      copies.push_back(x);
      continue;
    }
    const auto count = static_cast<int64_t>(x.storage().nbytes() / x.itemsize());
    const at::Tensor all = at::empty({count}, x.options().device(at::kCPU).requires_grad(false));
    if (count > 0) {
      devices().copy(stream, all.mutable_data_ptr(), x.storage().data(), all.nbytes());
    }
    copies.push_back(all.as_strided(x.sizes(), x.strides(), x.storage_offset()));
  }
  const at::Tensor result = on_host(out);
  devices().then(stream, [result, copies, fn = std::move(fn)] {
    const at::NoGradGuard no_grad;
    result.copy_(fn(copies));
  });
  if (out.numel() == 0) return;
  devices().copy(stream, out.mutable_data_ptr(), result.const_data_ptr(), out.nbytes());
  devices().then(stream, [result] {});
}

// Bytes as they lie: both must be of one type and of the same strides. With the CPU at one end it
// waits, unless told otherwise, as LibTorch's does; between devices both streams' order holds.
at::Tensor& copy(at::Tensor& to, const at::Tensor& of, bool non_blocking) {
  const at::Tensor from = of.is_cpu() && to.is_contiguous() ? of.contiguous() : of;
  if (to.device() == from.device() && to.strides() != from.strides() && to.is_contiguous()) {
    compute(to, {from}, [](const auto& in) { return in[0]; });
    return to;
  }
  if (!to.is_cpu() && !to.is_contiguous() && to.strides() != from.strides()) {
    // All of the memory that it lies in, with what lies between.
    at::Tensor whole = at::empty({0}, to.options());
    whole.set_(to.storage(), 0, {static_cast<int64_t>(to.storage().nbytes() / to.itemsize())});
    const auto sizes = to.sizes().vec(), strides = to.strides().vec();
    compute(whole, {whole, from.is_cpu() ? from.clone() : from},
            [sizes, strides, offset = to.storage_offset()](const auto& in) {
              in[0].as_strided(sizes, strides, offset).copy_(in[1]);
              return in[0];
            });
    return to;
  }
  TORCH_CHECK(
      to.dtype() == from.dtype() && to.sizes() == from.sizes() && to.strides() == from.strides(),
      "the simulated devices copy like to like only");
  if (to.numel() == 0) return to;
  const c10::impl::VirtualGuardImpl guard(kType);
  const c10::Stream stream = guard.getStream(to.is_cpu() ? from.device() : to.device());
  if (!to.is_cpu() && !from.is_cpu()) follow(stream, guard.getStream(from.device()));
  const device::Stream native = Guard::native(stream);
  devices().copy(native, to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
  if (non_blocking) {
    if (to.is_cpu() || from.is_cpu()) devices().then(native, [host = to.is_cpu() ? to : from] {});
  } else if (to.is_cpu() || from.is_cpu()) {
    devices().synchronize(native, Deadline::never());
  }
  if (!to.is_cpu() && !from.is_cpu()) follow(guard.getStream(from.device()), stream);
  return to;
}

at::Tensor mul(const at::Tensor& a, const at::Tensor& b) {
  at::Tensor out = at::empty_like(a.is_cpu() ? b : a);
  compute(out, {a, b}, [](const auto& in) { return at::mul(in[0], in[1]); });
  return out;
}

at::Tensor add(const at::Tensor& a, const at::Tensor& b, const at::Scalar& alpha) {
  at::Tensor out = at::empty_like(a.is_cpu() ? b : a);
  compute(out, {a, b}, [alpha](const auto& in) { return at::add(in[0], in[1], alpha); });
  return out;
}

at::Tensor& add_to(at::Tensor& a, const at::Tensor& b, const at::Scalar& alpha) {
  compute(a, {a, b}, [alpha](const auto& in) { return at::add(in[0], in[1], alpha); });
  return a;
}

at::Tensor& mul_out(const at::Tensor& a, const at::Tensor& b, at::Tensor& out) {
  compute(out, {a, b}, [](const auto& in) { return at::mul(in[0], in[1]); });
  return out;
}

at::Tensor cat(const at::ITensorListRef& list, int64_t dim) {
  std::vector<at::Tensor> in;
  for (const at::Tensor& one : list) in.push_back(one);
  std::vector<int64_t> sizes = in.front().sizes().vec();
  sizes[static_cast<size_t>(dim)] = 0;
  for (const at::Tensor& one : in) sizes[static_cast<size_t>(dim)] += one.size(dim);
  at::Tensor out = at::empty(sizes, in.front().options());
  compute(out, in, [dim](const auto& copies) { return at::cat(copies, dim); });
  return out;
}

// LibTorch makes its parts on the current device first.
at::Tensor make_sparse(int64_t sparse_dim, int64_t dense_dim, c10::SymIntArrayRef sizes,
                       const at::Tensor& indices, const at::Tensor& values,
                       std::optional<at::ScalarType> type, std::optional<at::Layout> layout,
                       std::optional<at::Device> device, std::optional<bool> pinned,
                       std::optional<bool> is_coalesced) {
  const c10::DeviceGuard guard(values.device());
  return at::native::new_with_dims_and_tensor_sparse_symint(
      sparse_dim, dense_dim, sizes, indices, values, type, layout, device, pinned, is_coalesced);
}

const at::Tensor& resize(const at::Tensor& to, at::IntArrayRef sizes,
                         std::optional<at::MemoryFormat>) {
  const at::Tensor fresh = at::empty(sizes, to.options());
  at::Tensor(to).set_(fresh.storage(), 0, sizes);
  return to;
}

at::Tensor& zero(at::Tensor& to) {
  compute(to, {}, [shape = to.sizes().vec(), type = to.scalar_type()](const auto&) {
    return at::zeros(shape, type);
  });
  return to;
}

at::Tensor& set_storage(at::Tensor& to, at::Storage storage, int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  at::TensorImpl& impl = *to.unsafeGetTensorImpl();
  impl.set_storage_keep_dtype(std::move(storage));
  impl.set_sizes_contiguous(sizes);
  if (!strides.empty()) impl.set_sizes_and_strides(sizes, strides);
  impl.set_storage_offset(offset);
  return to;
}

std::atomic<uint64_t> pinned_memory_requests{0};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex device) const override {
    return shared_devices()->is_in_use(device);
  }
  at::Allocator* getPinnedMemoryAllocator() const override {
    ++pinned_memory_requests;
    return c10::GetAllocator(at::kCPU);
  }
};

// When this is first called.
void open() {
  static std::once_flag once;
  std::call_once(once, [] {
    device::SimulationOptions options;
    options.visible = visible_devices();
    options.most_late = Micros(500);
    options.seed = seed_of_run("simulated devices");
    shared_devices() = device::make_simulated_devices(options);
    c10::register_privateuse1_backend("simulated");  // an accelerator, also for LibTorch's Nodes
    at::RegisterPrivateUse1HooksInterface(new Hooks);
    register_accelerator([] { return Accelerator{kType, shared_devices(), ""}; });
  });
}

}  // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", make_empty);
  library.impl("empty_strided", make_empty_strided);
  library.impl("copy_", copy);
  library.impl("view", at::native::view);
  library.impl("as_strided", at::native::as_strided_tensorimpl);
  library.impl("cat", cat);
  library.impl("mul.Tensor", mul);
  library.impl("add.Tensor", add);
  library.impl("add_.Tensor", add_to);
  library.impl("mul.out", mul_out);
  library.impl("zero_", zero);
  library.impl("resize_", resize);
  library.impl("set_.source_Storage_storage_offset", set_storage);
}

// What LibTorch has for sparse tensors of every device, over the parts that they are of.
TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, library) {
  library.impl("_sparse_coo_tensor_with_dims_and_tensors", make_sparse);
  library.impl("_indices", at::native::_indices_sparse);
  library.impl("_values", at::native::_values_sparse);
  library.impl("_nnz", at::native::_nnz_sparse);
  library.impl("sparse_dim", at::native::sparse_dim_sparse);
  library.impl("dense_dim", at::native::dense_dim_sparse);
  library.impl("is_coalesced", at::native::is_coalesced_sparse);
  library.impl("_coalesced_", at::native::_coalesced_sparse_);
  library.impl("copy_", at::native::copy_sparse_wrapper_);
  library.impl("copy_sparse_to_sparse_", at::native::copy_sparse_);
}

int accelerators() { return devices().count(); }

at::Device accelerator(int number) {
  devices();
  return {kType, static_cast<DeviceIndex>(number)};
}

std::pair<std::string, std::string> with_accelerators(const std::vector<int>& numbers) {
  std::string list;
  for (const int number : numbers) list += (list.empty() ? "" : ",") + std::to_string(number);
  return {kVisible, list};
}

AcceleratorUse accelerator_use() {
  AcceleratorUse use{0, devices().opened(), devices().events(), devices().faults()};
  for (int device = 0; device < devices().count(); ++device)
    use.bytes += devices().allocated(device);
  return use;
}

void settle_accelerator() {
  for (DeviceIndex device = 0; device < devices().count(); ++device) {
    for (int number = 0; number < kStreams; ++number) {
      devices().synchronize(stream_of(device, number), Deadline::never());
    }
  }
  StreamOrderedAllocator::one().settle();
}

void hold_up_current_stream(at::Device device, Future<void> until) {
  const c10::impl::VirtualGuardImpl guard(kType);
  devices().then(Guard::native(guard.getStream(device)), [until] { until.wait(); });
}

void CapturedStream::begin(at::Device) { devices().let_streams_be_captured(true); }
void CapturedStream::end(at::Device) { devices().let_streams_be_captured(false); }

void let_memory_be_opened(bool may) { devices().let_memory_be_opened(may); }

void let_pinned_memory_be_had(bool may) { devices().let_host_memory_be_allocated(may); }

bool has_a_region_for_each_tensor() { return true; }

std::optional<uint64_t> requests_of_pinned_memory() { return pinned_memory_requests; }

InUnnamedMemory::InUnnamedMemory() { allocates_unnamed = true; }
InUnnamedMemory::~InUnnamedMemory() { allocates_unnamed = false; }

}  // namespace farspan::testing
