#include <farspan/c10d/group/tensor_block.h>

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include <string>

#include <farspan/c10d/values/dtype.h>

namespace farspan::dist {

using at::Tensor;

void check_tensor(const Tensor& tensor, std::string_view operation, std::string_view name) {
  const auto refuse = [&](std::string what, const char* advice) {
    throw Error(Code::kInvalidArgument, std::string(name) + " " + what)
        .operation(std::string(operation))
        .advice(advice);
  };
  if (!tensor.defined()) refuse("is an undefined tensor", "pass a tensor");
  if (tensor.is_meta()) refuse("is a meta tensor, which has no memory", "give it memory");
  if (!tensor.device().is_cpu()) {
    refuse("is on " + tensor.device().str(), "this backend takes CPU tensors: use .cpu()");
  }
  if (tensor.layout() != c10::kStrided) {
    refuse("is not strided", "only all_reduce takes sparse tensors: use .to_dense()");
  }
  if (!dtype_to_wire(tensor.scalar_type())) {
    refuse(std::string("is of type ") + c10::toString(tensor.scalar_type()),
           "tensors of that type do not travel: convert it");
  }
}

DType dtype_of(const Tensor& tensor) { return *dtype_to_wire(tensor.scalar_type()); }

void check_written(const Tensor& tensor) {
  if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) return;
  throw Error(Code::kInvalidArgument,
              "the tensor that is to be written has elements that share memory")
      .advice("an expanded tensor has too few of its own: use .clone()");
}

TensorBlock::TensorBlock(const Tensor& tensor, Use use) : tensor_(tensor), use_(use) {
  if (use != Use::kRead) check_written(tensor);
  const bool in_order = tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
  if (in_order) {
    flat_ = tensor;
    return;
  }
  if (dtype_of(tensor) > DType::BITS16) {  // LibTorch cannot copy these element by element
    throw Error(Code::kInvalidArgument, "a tensor of " + std::string(name_of(dtype_of(tensor))) +
                                            " that is not contiguous cannot be copied")
        .advice("use .contiguous()");
  }
  const at::NoGradGuard no_grad;
  flat_ = use == Use::kWrite
              ? at::empty(tensor.sizes(), tensor.options().memory_format(c10::nullopt))
              : tensor.resolve_conj().resolve_neg().contiguous();
  if (flat_.is_alias_of(tensor_)) flat_ = flat_.clone(at::MemoryFormat::Contiguous);
}

Block TensorBlock::block() const {
  return {static_cast<std::byte*>(flat_.data_ptr()), static_cast<size_t>(flat_.numel())};
}

TensorBlock TensorBlock::joined(const std::vector<Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<Tensor> rows;
  for (const Tensor& one : tensors) rows.push_back(one.reshape({-1}));
  return TensorBlock(at::cat(rows), Use::kRead);
}

void TensorBlock::split_into(const std::vector<Tensor>& tensors) const {
  const at::NoGradGuard no_grad;
  int64_t begin = 0;
  for (const Tensor& one : tensors) {
    // The thread that performs it is not always the one that has called it.
    const c10::InferenceMode inference(one.is_inference());
    Tensor(one).copy_(flat_.narrow(0, begin, one.numel()).view(one.sizes()));
    begin += one.numel();
  }
}

// LibTorch rounds the factor to 16 bits in some of its ways to multiply, and not in others.
Tensor times(const Tensor& tensor, double factor) {
  const at::NoGradGuard no_grad;
  const bool is_complex = tensor.is_complex();
  const Tensor parts = is_complex ? at::view_as_real(tensor) : tensor;
  const Tensor products = parts.element_size() == 2
                              ? parts.to(at::kFloat).mul_(factor).to(parts.scalar_type())
                              : parts.mul(factor);
  return is_complex ? at::view_as_complex(products) : products;
}

TensorBlock TensorBlock::moved() const {
  const at::NoGradGuard no_grad;
  TensorBlock copy = *this;
  copy.flat_ = flat_.clone(at::MemoryFormat::Contiguous);
  return copy;
}

TensorBlock TensorBlock::scaled(double factor) const {
  TensorBlock copy = *this;
  copy.flat_ = times(flat_, factor);
  return copy;
}

void TensorBlock::finish() const {
  if (use_ == Use::kRead) return;
  if (flat_.is_same(tensor_)) {
    if (!tensor_.is_inference()) tensor_.unsafeGetTensorImpl()->bump_version();
    return;
  }
  const at::NoGradGuard no_grad;
  const c10::InferenceMode inference(tensor_.is_inference());
  tensor_.copy_(flat_);
}

TensorBlocks::TensorBlocks(const std::vector<Tensor>& tensors, TensorBlock::Use use) {
  tensors_.reserve(tensors.size());
  blocks_.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    tensors_.emplace_back(tensor, use);
    blocks_.push_back(tensors_.back().block());
  }
}

TensorBlocks::TensorBlocks(const Tensor& tensor, const std::vector<size_t>& counts,
                           TensorBlock::Use use) {
  tensors_.emplace_back(tensor, use);
  cut(counts);
}

void TensorBlocks::cut(const std::vector<size_t>& counts) {
  std::byte* data = tensors_.front().block().data;
  const size_t size = tensors_.front().element_size();
  blocks_.reserve(counts.size());
  for (const size_t count : counts) {
    blocks_.push_back({data, count});
    data += count * size;
  }
}

template <class Change>
TensorBlocks TensorBlocks::changed(const Change& change) const {
  TensorBlocks copy;
  for (const TensorBlock& one : tensors_) copy.tensors_.push_back(change(one));
  if (tensors_.size() == blocks_.size()) {
    for (const TensorBlock& one : copy.tensors_) copy.blocks_.push_back(one.block());
  } else {
    std::vector<size_t> counts;
    for (const Block& block : blocks_) counts.push_back(block.count);
    copy.cut(counts);
  }
  return copy;
}

TensorBlocks TensorBlocks::scaled(double factor) const {
  return changed([factor](const TensorBlock& one) { return one.scaled(factor); });
}

TensorBlocks TensorBlocks::moved() const {
  return changed([](const TensorBlock& one) { return one.moved(); });
}

void TensorBlocks::finish() const {
  for (const TensorBlock& tensor : tensors_) tensor.finish();
}

namespace {

// The memory from the first to the last byte of some blocks.
struct Range {
  const std::byte* begin;
  const std::byte* end;
  bool meets(const Range& other) const { return begin < other.end && other.begin < end; }
};
Range range_of(const Block& block, size_t element_size) {
  return {block.data, block.data + block.count * element_size};
}
Range range_of(std::span<const Block> blocks, size_t element_size) {
  Range all{nullptr, nullptr};
  for (const Block& block : blocks) {
    const Range one = range_of(block, element_size);
    if (block.count == 0) continue;
    if (!all.begin || one.begin < all.begin) all.begin = one.begin;
    if (one.end > all.end) all.end = one.end;
  }
  return all;
}

}  // namespace

bool overlap(std::span<const Block> in, std::span<const Block> out, size_t element_size) {
  if (!range_of(in, element_size).meets(range_of(out, element_size))) return false;
  for (size_t i = 0; i < in.size(); ++i) {
    for (size_t j = 0; j < out.size(); ++j) {
      const bool same = i == j && in[i].data == out[j].data && in[i].count == out[j].count;
      if (same || in[i].count == 0 || out[j].count == 0) continue;
      if (range_of(in[i], element_size).meets(range_of(out[j], element_size))) return true;
    }
  }
  return false;
}

}  // namespace farspan::dist
