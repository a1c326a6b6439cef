#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/core/Layout.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include <farspan/c10d/base/device_order.h>
#include <farspan/c10d/values/buffer_tensor.h>
#include <farspan/c10d/values/device_tensors.h>
#include <farspan/c10d/values/dtype.h>
#include <farspan/c10d/values/tensor_codec.h>

namespace farspan {
namespace {

using schema::Layout;

[[noreturn]] void refuse(const std::string& what, const char* advice) {
  throw Error(Code::kInvalidArgument, what + " cannot travel").advice(advice);
}

class TensorWriter {
 public:
  TensorWriter(std::vector<Buffer>& segments, ValueScope* scope, Bulk bulk)
      : segments_(segments),
        scope_(scope),
        devices_(scope ? scope->device_tensors() : nullptr),
        bulk_(bulk) {}

  // Whether a segment refers to the storage of what was written since this was last called.
  bool has_shared() noexcept { return std::exchange(shared_, false); }
  // Whether a segment took the storage over of the one that was written since this was last called.
  bool has_taken() noexcept { return std::exchange(taken_, false); }

  void write(const at::Tensor& tensor, schema::TensorDesc::Builder out) {
    if (!tensor.defined()) return;  // that is what an empty description says
    check(tensor);
    describe(tensor, out);
    if (devices_) out.setDevice(static_cast<int16_t>(devices_->place_there(tensor.device())));
    if (tensor.requires_grad()) out.setRequiresGrad(true);
    if (tensor.layout() == at::kStrided) {
      out.setLayout(Layout::STRIDED);
      write_strided(tensor, out);
    } else {
      write_sparse(tensor, out);
    }
  }

 private:
  static void describe(const at::Tensor& tensor, schema::TensorDesc::Builder out) {
    const auto dtype = dtype_to_wire(tensor.scalar_type());
    if (!dtype) {
      refuse(std::string("a tensor of dtype ") + c10::toString(tensor.scalar_type()),
             "dequantize() it first");
    }
    out.setDtype(*dtype);
    const at::IntArrayRef sizes = tensor.sizes();
    if (!sizes.empty()) write_numbers(out.initSizes(static_cast<unsigned>(sizes.size())), sizes);
  }

  void check(const at::Tensor& tensor) const {
    if (tensor.is_meta()) refuse("a meta tensor, which has no memory", "pass its sizes and dtype");
    if (!tensor.device().is_cpu() && !devices_) {
      refuse("a tensor on device " + tensor.device().str(),
             tensor.device().is_cuda() ? "link farspan::cuda, and look at the log for "
                                         "why there are no devices; or "
                                         "move it with .cpu() first"
                                       : "move it with .cpu() first");
    }
    if (tensor.is_nested()) refuse("a nested tensor", "pass its parts, from unbind()");
    if (tensor.layout() == at::kMkldnn) refuse("an MKL-DNN tensor", "call to_dense() first");
    if (tensor.layout() == at::kStrided && !tensor.has_storage()) {
      refuse("a tensor without storage of its own (of vmap or a functional transform)",
             "pass it from outside of the transform");
    }
  }

  static void write_numbers(capnp::List<int64_t>::Builder out, at::IntArrayRef numbers) {
    for (unsigned i = 0; i < numbers.size(); ++i) out.set(i, numbers[i]);
  }

  void write_strided(const at::Tensor& tensor, schema::TensorDesc::Builder out) {
    constexpr c10::DispatchKeySet kLazy(
        {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
    if (tensor.numel() == 0) return;
    if (tensor.key_set().has_any(kLazy)) {
      write_copy(tensor, out);
    } else if (tensor.is_contiguous()) {
      write_bytes(tensor, out);
    } else if (tensor.is_non_overlapping_and_dense()) {
      write_strides(tensor, out.initStrides(static_cast<unsigned>(tensor.dim())));
      write_bytes(tensor, out);
    } else {
      write_copy(tensor, out);
    }
  }

  // The stride of a dimension of size 1 means nothing, and may be anything.
  static void write_strides(const at::Tensor& tensor, capnp::List<int64_t>::Builder out) {
    for (unsigned i = 0; i < out.size(); ++i) {
      out.set(i, std::min(tensor.strides()[i], tensor.numel()));
    }
  }

  void write_copy(const at::Tensor& tensor, schema::TensorDesc::Builder out) {
    const c10::AutoGradMode no_grad(false);
    at::Tensor plain = tensor._is_zerotensor() ? tensor.clone() : tensor;
    plain = plain.resolve_conj().resolve_neg().contiguous();
    if (!plain.device().is_cpu()) return void(write_device(plain, out));
    write_own(std::move(plain), out);
  }

  // One that nobody else has.
  void write_own(at::Tensor plain, schema::TensorDesc::Builder out) {
    auto owner = std::make_shared<at::Tensor>(std::move(plain));
    out.setSegment(static_cast<uint32_t>(segments_.size()));
    segments_.emplace_back(const_cast<std::byte*>(bytes_of(*owner)), owner->nbytes(), owner);
  }

  // Whether its bytes stay where they are.
  bool write_device(const at::Tensor& dense, schema::TensorDesc::Builder out) {
    if (out.getDevice() != DeviceTensors::kCpu) {
      if (devices_->lend(dense, out.initLent())) return true;
      out.disownLent();
    }
    out.setSegment(static_cast<uint32_t>(segments_.size()));
    segments_.push_back(devices_->copy_to_host(dense));
    return false;
  }

  void write_bytes(const at::Tensor& tensor, schema::TensorDesc::Builder out) {
    const size_t size = tensor.nbytes();
    const c10::Storage& storage = tensor.storage();
    const size_t begin = static_cast<size_t>(tensor.storage_offset()) * tensor.itemsize();
    if (storage.nbytes() < begin + size) {
      refuse("a tensor whose storage was resized away", "pass it before its storage is freed");
    }
    if (!tensor.device().is_cpu()) {
      if (others_have(tensor)) {
        if (DeviceOrder* const order = DeviceOrder::installed()) order->use(tensor);
        return void(write_device(tensor.detach().clone(), out));
      }
      shared_ = write_device(tensor, out);
      return;
    }
    const std::byte* bytes = bytes_of(tensor);
    out.setSegment(static_cast<uint32_t>(segments_.size()));
    if (size <= kMaxInlineBytes) {
      segments_.push_back(Buffer::borrowed(bytes, size));
    } else if (others_have(tensor)) {
      segments_.push_back(scope_ ? scope_->allocate(size) : Buffer::allocate(size));
      std::memcpy(segments_.back().data(), bytes, size);
    } else {
      taken_ = tensor.use_count() == 1 && storage.use_count() == 1;
      shared_ = !taken_;
      segments_.emplace_back(const_cast<std::byte*>(bytes), size, owner_of(storage));
    }
  }

  // So that it has to be copied.
  bool others_have(const at::Tensor& tensor) const {
    return bulk_ != Bulk::kShare && (tensor.storage().use_count() > 1 || tensor.use_count() > 1);
  }

  // The buffer's own, where one is all there is below the storage.
  std::shared_ptr<void> owner_of(const c10::Storage& storage) const {
    const Buffer* const buffer = taken_ ? buffer_under(storage) : nullptr;
    return buffer ? buffer->owner() : std::make_shared<c10::Storage>(storage);
  }

  static const std::byte* bytes_of(const at::Tensor& tensor) {
    return static_cast<const std::byte*>(tensor.const_data_ptr());
  }

  void write_sparse(const at::Tensor& tensor, schema::TensorDesc::Builder out) {
    const c10::AutoGradMode no_grad(false);
    switch (tensor.layout()) {
      case at::kSparse:
        out.setLayout(Layout::SPARSE_COO);
        out.setCoalesced(tensor.is_coalesced());
        return write_parts({tensor._indices(), tensor._values()}, out);
      case at::kSparseCsr:
        out.setLayout(Layout::SPARSE_CSR);
        return write_parts({tensor.crow_indices(), tensor.col_indices(), tensor.values()}, out);
      case at::kSparseBsr:
        out.setLayout(Layout::SPARSE_BSR);
        return write_parts({tensor.crow_indices(), tensor.col_indices(), tensor.values()}, out);
      case at::kSparseCsc:
        out.setLayout(Layout::SPARSE_CSC);
        return write_parts({tensor.ccol_indices(), tensor.row_indices(), tensor.values()}, out);
      case at::kSparseBsc:
        out.setLayout(Layout::SPARSE_BSC);
        return write_parts({tensor.ccol_indices(), tensor.row_indices(), tensor.values()}, out);
      default:
        refuse("a tensor of an unknown layout", "call to_dense() first");
    }
  }

  // Row-major, and in the processor's memory, for the receiver looks at the indices.
  void write_parts(std::initializer_list<at::Tensor> parts, schema::TensorDesc::Builder out) {
    auto list = out.initParts(static_cast<unsigned>(parts.size()));
    unsigned i = 0;
    for (const at::Tensor& part : parts) {
      auto part_out = list[i++];
      describe(part, part_out);
      part_out.setLayout(Layout::STRIDED);
      if (part.numel() == 0) continue;
      if (part.device().is_cpu() && part.is_contiguous()) {
        write_strided(part, part_out);
      } else if (part.device().is_cpu()) {
        write_own(part.contiguous(), part_out);
      } else {
        write_device(part.contiguous(), part_out);
      }
    }
  }

  std::vector<Buffer>& segments_;
  ValueScope* const scope_;
  DeviceTensors* const devices_;
  const Bulk bulk_;
  bool shared_ = false;
  bool taken_ = false;
};

}  // namespace

void write_tensors(schema::Payload::Builder payload, Writer& writer, Bulk bulk,
                   BorrowedTensors* borrowed) {
  TensorList& tensors = writer.tensors();
  if (tensors.empty()) return;
  guard_write([&] {
    auto list = payload.initTensors(static_cast<unsigned>(tensors.size()));
    TensorWriter tensor_writer(writer.segments(), writer.scope(), bulk);
    for (unsigned i = 0; i < list.size(); ++i) {
      tensor_writer.write(tensors[i], list[i]);
      if (tensor_writer.has_shared() && borrowed) borrowed->add(tensors[i], i);
      if (tensor_writer.has_taken()) tensors[i].reset();
    }
  });
}

}  // namespace farspan
