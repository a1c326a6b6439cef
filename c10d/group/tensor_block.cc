#include <farspan/c10d/group/tensor_block.h>

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <string>

#include <farspan/c10d/streams/streams.h>
#include <farspan/c10d/streams/unrecorded.h>
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
  if (!tensor.is_cpu() && !at::accelerator::isAccelerator(tensor.device().type())) {
    refuse("is on " + tensor.device().str(), "use .cpu()");
  }
  if (!tensor.is_cpu()) keep_device_order(tensor.device().type());
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

TensorBlock::TensorBlock(const Tensor& tensor, Use use, Where where) : tensor_(tensor), use_(use) {
  if (use != Use::kRead) check_written(tensor);
  if (!tensor.is_cpu() && where == Where::kHost) {
    host_ = std::make_shared<const HostCopy>(copyable(tensor), use != Use::kWrite);
    flat_ = host_->tensor();
    return;
  }
  const bool in_order = tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
  if (in_order) {
    flat_ = tensor;
    return;
  }
  const at::NoGradGuard no_grad;
  const Tensor from = copyable(tensor);
  flat_ = use == Use::kWrite ? at::empty(from.sizes(), from.options().memory_format(c10::nullopt))
                             : from.resolve_conj().resolve_neg().contiguous();
  if (flat_.is_alias_of(tensor_)) flat_ = flat_.clone(at::MemoryFormat::Contiguous);
}

void TensorBlock::begin(Deadline deadline) const {
  if (host_) return host_->wait(deadline);
  if (tensor_.is_cpu()) return;
  const c10::Stream stream = current_stream_of(tensor_.device());
  record_use(tensor_, stream);
  record_use(flat_, stream);
}

Block TensorBlock::block() const {
  return {static_cast<std::byte*>(flat_.data_ptr()), static_cast<size_t>(flat_.numel())};
}

Tensor copyable(const Tensor& tensor) {
  return dtype_of(tensor) < DType::INT1 ? tensor : tensor.view(at::kByte);
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
  copy.flat_ = copyable(flat_).clone(at::MemoryFormat::Contiguous);
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
  if (host_) {
    if (!flat_.is_same(host_->tensor())) host_->tensor().copy_(flat_);
    return host_->write_back(copyable(tensor_));
  }
  const Unrecorded writing(tensor_);
  copyable(tensor_).copy_(flat_);
}

Tensor TensorBlock::finished() const {
  if (!host_) return flat_;
  finish();
  return tensor_;
}

TensorBlocks::TensorBlocks(const std::vector<Tensor>& tensors, TensorBlock::Use use, Where where) {
  tensors_.reserve(tensors.size());
  blocks_.reserve(tensors.size());
  for (const Tensor& tensor : tensors) {
    tensors_.emplace_back(tensor, use, where);
    blocks_.push_back(tensors_.back().block());
  }
}

TensorBlocks::TensorBlocks(const Tensor& tensor, const std::vector<size_t>& counts,
                           TensorBlock::Use use, Where where) {
  tensors_.emplace_back(tensor, use, where);
  cut(counts);
}

TensorBlocks TensorBlocks::in_one_piece(const std::vector<Tensor>& tensors, TensorBlock::Use use) {
  const at::NoGradGuard no_grad;
  const Tensor first = copyable(tensors.front());
  const auto count = static_cast<size_t>(first.numel());
  Tensor piece;
  if (use == TensorBlock::Use::kRead) {
    std::vector<Tensor> rows;
    for (const Tensor& one : tensors) {
      rows.push_back(copyable(one).resolve_conj().resolve_neg().reshape({-1}));
    }
    piece = at::cat(rows);
  } else {
    for (const Tensor& one : tensors) check_written(one);
    piece = at::empty({static_cast<int64_t>(count * tensors.size())},
                      first.options().memory_format(c10::nullopt));
  }
  TensorBlocks blocks(piece, std::vector<size_t>(tensors.size(), count), use, Where::kDevice);
  if (use != TensorBlock::Use::kRead) blocks.written_ = tensors;
  return blocks;
}

bool TensorBlocks::needs_begin() const noexcept {
  return std::ranges::any_of(tensors_, &TensorBlock::needs_begin);
}

void TensorBlocks::begin(Deadline deadline) const {
  for (const TensorBlock& one : tensors_) one.begin(deadline);
  for (const Tensor& one : written_) record_use(one, current_stream_of(one.device()));
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
  int64_t begin = 0;
  for (const Tensor& one : written_) {
    const Unrecorded writing(one);
    const Tensor part = tensors_.front().finished().narrow(0, begin, one.numel());
    copyable(one).copy_(part.view(one.sizes()));
    begin += one.numel();
  }
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
