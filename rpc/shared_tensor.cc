#include <farspan/rpc/shared_tensor.h>

#include <ATen/ops/empty.h>

#include <limits>
#include <string>

#include <farspan/c10d/values/buffer_tensor.h>

namespace farspan {
namespace {

constexpr uint64_t kSmallestShared = 64 << 10;  // smaller ones travel in the message

Error refusal(const std::string& what) {
  return Error(Code::kInvalidArgument, what).operation("empty_shared");
}

uint64_t bytes_of(at::IntArrayRef sizes, size_t itemsize) {
  uint64_t bytes = itemsize;
  for (const int64_t size : sizes) {
    if (size < 0) throw refusal("a negative size: " + std::to_string(size));
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(size), &bytes) ||
        bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      throw refusal("a size that no memory holds");
    }
  }
  return bytes;
}

}  // namespace

at::Tensor empty_shared(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return empty_shared(current_worker(), sizes, options);
}

at::Tensor empty_shared(Worker& worker, at::IntArrayRef sizes, const at::TensorOptions& options) {
  if (!options.device().is_cpu() || options.layout() != at::kStrided || options.pinned_memory()) {
    throw refusal("shared memory holds strided tensors of the CPU that are not pinned");
  }
  const at::ScalarType dtype = c10::typeMetaToScalarType(options.dtype());
  const uint64_t bytes = bytes_of(sizes, c10::elementSize(dtype));
  at::Tensor tensor =
      bytes < kSmallestShared
          ? at::empty(sizes, at::TensorOptions(dtype))
          : tensor_over(worker.messenger().allocate_shared(bytes), sizes, {}, dtype);
  return tensor.set_requires_grad(options.requires_grad());
}

}  // namespace farspan
