#include <ATen/DimVector.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <string>

#include <farspan/c10d/values/buffer_tensor.h>
#include <farspan/c10d/values/device_tensors.h>
#include <farspan/c10d/values/dtype.h>
#include <farspan/c10d/values/sparse_parts.h>
#include <farspan/c10d/values/tensor_codec.h>

namespace farspan {
namespace {

using schema::Layout;

constexpr unsigned kMaxDims = 64;
// What vector instructions like, and what a memory pool gives.
constexpr size_t kAlignment = 64;

[[noreturn]] void corrupt(const std::string& what) { throw_corrupt_tensor(what); }

int64_t multiply(int64_t a, int64_t b) {
  int64_t product;
  if (__builtin_mul_overflow(a, b, &product)) corrupt("a size that no memory holds");
  return product;
}

class TensorReader {
 public:
  TensorReader(std::span<const Buffer> segments, DeviceTensors* devices)
      : segments_(segments), devices_(devices) {}

  at::Tensor read(schema::TensorDesc::Reader desc) {
    if (desc.getLayout() == Layout::UNDEFINED) return {};
    at::Tensor tensor =
        desc.getLayout() == Layout::STRIDED ? read_strided(desc) : read_sparse(desc);
    if (desc.getRequiresGrad()) {
      if (!tensor.is_floating_point() && !tensor.is_complex()) {
        corrupt("requires_grad though it is not floating");
      }
      tensor.set_requires_grad(true);
    }
    return tensor;
  }

 private:
  struct Shape {
    at::DimVector sizes;
    int64_t numel = 1;
  };

  static Shape read_shape(schema::TensorDesc::Reader desc) {
    const auto sizes = desc.getSizes();
    if (sizes.size() > kMaxDims) corrupt(std::to_string(sizes.size()) + " dimensions");
    Shape shape;
    // LibTorch computes strides as if no dimension were empty; so that must not overflow either.
    int64_t span = 1;
    for (const int64_t size : sizes) {
      if (size < 0) corrupt("a negative size");
      span = multiply(span, std::max<int64_t>(size, 1));
      shape.numel *= size;  // at most span
      shape.sizes.push_back(size);
    }
    return shape;
  }

  // The strides of a tensor without gaps and overlaps.
  static at::DimVector read_strides(schema::TensorDesc::Reader desc, const Shape& shape) {
    const auto list = desc.getStrides();
    if (list.size() != shape.sizes.size()) corrupt("more or fewer strides than sizes");
    at::DimVector strides;
    c10::SmallVector<std::pair<int64_t, int64_t>, 5> by_stride;
    for (unsigned i = 0; i < list.size(); ++i) {
      const int64_t stride = list[i];
      if (stride < 0 || stride > shape.numel) corrupt("a stride outside of its bytes");
      strides.push_back(stride);
      if (shape.sizes[i] != 1) by_stride.emplace_back(stride, shape.sizes[i]);
    }
    std::sort(by_stride.begin(), by_stride.end());
    int64_t expected = 1;
    for (const auto& [stride, size] : by_stride) {
      if (stride != expected) corrupt("strides that leave gaps or overlap");
      expected *= size;  // at most numel
    }
    return strides;
  }

  // Segments belong to one tensor each, and come in the order of the tensors.
  const Buffer& take_segment(uint32_t index, uint64_t bytes) {
    if (index < next_segment_ || index >= segments_.size()) {
      corrupt("segment " + std::to_string(index) + " of " + std::to_string(segments_.size()));
    }
    next_segment_ = size_t{index} + 1;
    if (segments_[index].size() != bytes) {
      corrupt(std::to_string(segments_[index].size()) + " bytes where its shape needs " +
              std::to_string(bytes));
    }
    return segments_[index];
  }

  at::Tensor read_strided(schema::TensorDesc::Reader desc) {
    const auto dtype = dtype_from_wire(desc.getDtype());
    if (!dtype) {
      corrupt("unknown dtype " + std::to_string(static_cast<unsigned>(desc.getDtype())));
    }
    const Shape shape = read_shape(desc);
    const int64_t bytes = multiply(shape.numel, static_cast<int64_t>(c10::elementSize(*dtype)));
    if (desc.getDevice() != DeviceTensors::kCpu || desc.hasLent()) {
      return read_device(desc, shape, *dtype, static_cast<uint64_t>(bytes));
    }
    if (shape.numel == 0) return at::Tensor(at::detail::empty_cpu(shape.sizes, *dtype));
    const Buffer& segment = take_segment(desc.getSegment(), static_cast<uint64_t>(bytes));
    if (!desc.hasStrides()) {
      return fill(segment, shape, *dtype, {});
    }
    return fill(segment, shape, *dtype, read_strides(desc, shape));
  }

  // From where it says, to where it says: a device is at one end at least.
  at::Tensor read_device(schema::TensorDesc::Reader desc, const Shape& shape, at::ScalarType dtype,
                         uint64_t bytes) {
    const at::Device device = devices().device_here(desc.getDevice());
    const at::DimVector strides = desc.hasStrides() ? read_strides(desc, shape) : at::DimVector();
    const Buffer* segment = nullptr;  // all is checked before memory is taken
    if (desc.hasLent()) {
      if (desc.getLent().getBytes() != bytes) corrupt("lent bytes that do not fit its shape");
    } else if (shape.numel > 0) {
      segment = &take_segment(desc.getSegment(), bytes);
    }
    const auto options = at::TensorOptions(dtype).device(device);
    const at::Tensor tensor = strides.empty() ? at::empty(shape.sizes, options)
                                              : at::empty_strided(shape.sizes, strides, options);
    if (shape.numel == 0) return tensor;
    if (segment) {
      devices().copy_from_host(tensor, *segment);
    } else {
      devices().borrow(tensor, desc.getLent());
    }
    return tensor;
  }

  DeviceTensors& devices() const {
    if (devices_) return *devices_;
    corrupt("a device, where there can be none");
  }

  static at::Tensor fill(const Buffer& segment, const Shape& shape, at::ScalarType dtype,
                         const at::DimVector& strides) {
    if (segment.size() > kMaxInlineBytes && segment.owner() &&
        reinterpret_cast<uintptr_t>(segment.data()) % kAlignment == 0) {
      return tensor_over(segment, shape.sizes, strides, dtype);
    }
    at::Tensor tensor(strides.empty() ? at::detail::empty_cpu(shape.sizes, dtype)
                                      : at::detail::empty_strided_cpu(shape.sizes, strides, dtype));
    std::memcpy(tensor.mutable_data_ptr(), segment.data(), segment.size());
    return tensor;
  }

  at::Tensor read_sparse(schema::TensorDesc::Reader desc) {
    const Shape shape = read_shape(desc);
    const auto parts = desc.getParts();
    if (desc.getLayout() > Layout::SPARSE_BSC) corrupt("an unknown layout");
    if (parts.size() != 2 && parts.size() != 3) corrupt("a wrong number of sparse parts");
    c10::SmallVector<at::Tensor, 3> made;
    for (const auto part : parts) {
      const bool is_here = part.getDevice() == DeviceTensors::kCpu && !part.hasLent();
      if (part.getLayout() != Layout::STRIDED || part.hasStrides() || !is_here) {
        corrupt("sparse parts that are not row-major, or on a device");
      }
      made.push_back(read_strided(part));
    }
    if (dtype_from_wire(desc.getDtype()) != made.back().scalar_type()) {
      corrupt("values of another dtype than its own");
    }
    const at::Tensor tensor =
        assemble_sparse(desc.getLayout(), made, shape.sizes, desc.getCoalesced());
    if (desc.getDevice() == DeviceTensors::kCpu) return tensor;
    return tensor.to(devices().device_here(desc.getDevice()));
  }

  const std::span<const Buffer> segments_;
  DeviceTensors* const devices_;
  size_t next_segment_ = 0;
};

}  // namespace

TensorList read_tensors(schema::Payload::Reader payload, std::span<const Buffer> segments,
                        ValueScope* scope) {
  try {
    return guard_read([&] {
      const auto descriptions = payload.getTensors();
      TensorList tensors;
      tensors.reserve(descriptions.size());
      TensorReader reader(segments, scope ? scope->device_tensors() : nullptr);
      for (const auto desc : descriptions) tensors.push_back(reader.read(desc));
      return tensors;
    });
  } catch (const c10::Error& failure) {
    // All sizes were checked: what is left is that there is no memory.
    throw Error(Code::kOverloaded, failure.what_without_backtrace()).operation("read a tensor");
  }
}

}  // namespace farspan
