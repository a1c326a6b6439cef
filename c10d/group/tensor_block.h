// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// TensorBlock: a tensor's elements as backends take them, one after the other.
#pragma once

#include <ATen/core/TensorBody.h>

#include <span>
#include <string_view>
#include <vector>

#include <farspan/c10d/group/backend.h>

namespace farspan::dist {

// Why a tensor cannot take part, as an Error: not defined, not on the CPU, sparse, quantized.
void check_tensor(const at::Tensor& tensor, std::string_view operation, std::string_view name);
DType dtype_of(const at::Tensor& tensor);
// The same of one that is to be written: elements that share memory.
void check_written(const at::Tensor& tensor);

// Each element times a factor: [*], in order. Those of 16 bits are multiplied in float32 and
// rounded.
//   needs  a floating or complex type, and no conjugated view
at::Tensor times(const at::Tensor& tensor, double factor);

// Holds on to a tensor, and to a copy of it where its own memory is not in order.
//
// Threading: a value; its tensor is the operation's meanwhile.
class TensorBlock {
 public:
  enum class Use { kRead, kWrite, kReadWrite };
  TensorBlock() = default;
  TensorBlock(const at::Tensor& tensor, Use use);

  // All of them, one after the other, in memory of its own; see split_into().
  static TensorBlock joined(const std::vector<at::Tensor>& tensors);

  Block block() const;
  size_t element_size() const { return flat_.element_size(); }
  // A copy with each element times `factor`, which is written back where this would be.
  TensorBlock scaled(double factor) const;
  // The same elements in other memory, which is written back where this would be.
  TensorBlock moved() const;
  // Writes a copy back to where the results are wanted, and tells autograd of the change.
  void finish() const;
  // Writes to each of the tensors its part of joined().
  void split_into(const std::vector<at::Tensor>& tensors) const;

 private:
  at::Tensor tensor_;  // the user's
  at::Tensor flat_;    // the same memory, or a copy
  Use use_ = Use::kRead;
};

// Many, for the list forms.
class TensorBlocks {
 public:
  TensorBlocks() = default;
  TensorBlocks(const std::vector<at::Tensor>& tensors, TensorBlock::Use use);
  // Equal or unequal parts of one tensor, by element counts.
  TensorBlocks(const at::Tensor& tensor, const std::vector<size_t>& counts, TensorBlock::Use use);

  std::span<const Block> blocks() const noexcept { return blocks_; }
  TensorBlocks scaled(double factor) const;
  TensorBlocks moved() const;
  void finish() const;

 private:
  template <class Change>
  TensorBlocks changed(const Change& change) const;
  void cut(const std::vector<size_t>& counts);

  std::vector<TensorBlock> tensors_;  // as many as blocks_, or one that they are parts of
  std::vector<Block> blocks_;
};

// Whether memory of one list is also that of another: but for in[i] and out[i] that are the same.
bool overlap(std::span<const Block> in, std::span<const Block> out, size_t element_size);

}  // namespace farspan::dist
