// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// TensorBlock: a tensor's elements as backends take them, one after the other.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include <farspan/c10d/group/backend.h>
#include <farspan/c10d/streams/host_copy.h>

namespace farspan::dist {

// Why a tensor cannot take part, as an Error: not defined, without memory, sparse, quantized.
void check_tensor(const at::Tensor& tensor, std::string_view operation, std::string_view name);
DType dtype_of(const at::Tensor& tensor);
// The same of one that is to be written: elements that share memory.
void check_written(const at::Tensor& tensor);

// The same memory, of bytes where LibTorch can make tensors of the type and not copy them: those
// below a byte.
at::Tensor copyable(const at::Tensor& tensor);

// Each element times a factor: [*], in order. Those of 16 bits are multiplied in float32 and
// rounded.
//   needs  a floating or complex type, and no conjugated view
at::Tensor times(const at::Tensor& tensor, double factor);

// Holds on to a tensor, and to a copy of it where its own memory is not in order, or a device's.
//
// Threading: a value; its tensor is the operation's meanwhile.
class TensorBlock {
 public:
  enum class Use { kRead, kWrite, kReadWrite };
  // Of which memory the block is to be, where the tensor is on a device: the processor's, or its.
  enum class Where { kHost, kDevice };
  TensorBlock() = default;
  TensorBlock(const at::Tensor& tensor, Use use, Where where = Where::kHost);

  // Of a tensor on a device: before begin(), nothing below is to be called.
  bool needs_begin() const noexcept { return !tensor_.is_cpu(); }
  // Waits until it has been copied to the processor; or else the calling thread's current stream
  // uses it from now on.
  //   throws  Error kTimeout
  void begin(Deadline deadline) const;

  Block block() const;
  size_t element_size() const { return flat_.element_size(); }
  // Whether the block is the tensor's own memory, so that finish() copies nothing.
  bool is_in_place() const { return flat_.is_same(tensor_); }
  // A copy with each element times `factor`, which is written back where this would be.
  TensorBlock scaled(double factor) const;
  // The same elements in other memory, which is written back where this would be.
  TensorBlock moved() const;
  // Writes a copy back to where the results are wanted, and tells autograd of the change.
  void finish() const;
  // The same for a tensor of the library's own: returns it, or memory with the same elements.
  at::Tensor finished() const;

 private:
  at::Tensor tensor_;                     // the user's
  at::Tensor flat_;                       // the same memory, or a copy
  std::shared_ptr<const HostCopy> host_;  // of a device's
  Use use_ = Use::kRead;
};

// Many, for the list forms.
class TensorBlocks {
 public:
  TensorBlocks() = default;
  using Where = TensorBlock::Where;
  TensorBlocks(const std::vector<at::Tensor>& tensors, TensorBlock::Use use,
               Where where = Where::kHost);
  // Equal or unequal parts of one tensor, by element counts.
  TensorBlocks(const at::Tensor& tensor, const std::vector<size_t>& counts, TensorBlock::Use use,
               Where where = Where::kHost);

  // In memory of their own, one after the other.
  //   needs  one size, and one device
  static TensorBlocks in_one_piece(const std::vector<at::Tensor>& tensors, TensorBlock::Use use);

  bool needs_begin() const noexcept;
  void begin(Deadline deadline) const;  // see TensorBlock
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
  std::vector<at::Tensor> written_;  // from the one piece, at the end
};

// Whether memory of one list is also that of another: but for in[i] and out[i] that are the same.
bool overlap(std::span<const Block> in, std::span<const Block> out, size_t element_size);

}  // namespace farspan::dist
