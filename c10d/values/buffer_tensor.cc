#include <farspan/c10d/values/buffer_tensor.h>

#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>

namespace farspan {
namespace {

void let_go(void* buffer) { delete static_cast<Buffer*>(buffer); }

}  // namespace

at::Tensor tensor_over(const Buffer& buffer, at::IntArrayRef sizes, at::IntArrayRef strides,
                       at::ScalarType dtype) {
  at::TensorMaker maker = at::for_blob(buffer.data(), sizes);
  if (!strides.empty()) maker.strides(strides);
  return maker.context(new Buffer(buffer), let_go)
      .options(at::TensorOptions(dtype))
      .target_device(at::kCPU)
      .allocator(c10::GetCPUAllocator())
      .resizeable_storage()
      .make_tensor();
}

const Buffer* buffer_under(const c10::Storage& storage) noexcept {
  const c10::DataPtr& data = storage.data_ptr();
  return data.get_deleter() == let_go ? static_cast<const Buffer*>(data.get_context()) : nullptr;
}

}  // namespace farspan
