// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Start: what every collective of tensors begins with: its group, checks of what this rank was
// given, and what all ranks must agree on.
#pragma once

#include <ATen/core/TensorBody.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <farspan/c10d/group/device_streams.h>
#include <farspan/c10d/group/perform.h>
#include <farspan/c10d/group/tensor_block.h>

namespace farspan::dist {

// Built in a chain, and ended by plan(). Whatever is wrong throws Error kInvalidArgument.
//
// Threading: a value, used by one thread.
class Start {
 public:
  // A null group is the default group. Throws on ranks that are no members.
  //   called  what the user called, which errors name; empty: as the operation is called
  Start(Op op, const Group& group, std::string_view called = {});

  // The tensor that says what this rank sends or gets; its shape is the same on all ranks.
  Start& tensor(const at::Tensor& tensor, std::string_view name);
  // Another one, of the same type.
  Start& also(const at::Tensor& tensor, std::string_view name);
  // One for each rank, of the same type.
  Start& list(const std::vector<at::Tensor>& tensors, std::string_view name);
  // The shapes are those of a list, which is the same on all ranks, in place of the tensor's.
  Start& shapes_of(const std::vector<at::Tensor>& tensors);
  // As shapes_of(), of any number of tensors, which is the same on all ranks.
  Start& number_and_shapes_of(const std::vector<at::Tensor>& tensors);
  // Of a sparse tensor.
  Start& sparse(at::IntArrayRef shape, int64_t sparse_dim);
  // This rank's sizes are its own affair.
  Start& own_sizes();
  Start& root(int global_rank);
  Start& reduction(const ReduceOp& op);
  // `whole` has as many elements as all ranks' `part` together: the elements of each.
  std::vector<size_t> equal_parts(const at::Tensor& whole, const at::Tensor& part,
                                  std::string_view name) const;
  void same_count(const at::Tensor& one, const at::Tensor& other, std::string_view what) const;

  // Results are written to these, later; hold() checks its own.
  Start& writes(const std::vector<at::Tensor>& tensors);
  // A TensorBlock or TensorBlocks of these arguments.
  template <class Blocks, class... Arguments>
  Blocks hold(const Arguments&... arguments) {
    return named([&] { return use(Blocks(arguments..., where())); });
  }
  // The same of blocks that are made already.
  template <class Blocks>
  Blocks use(Blocks blocks) {
    if (blocks.needs_begin()) {
      first_.push_back([blocks](Deadline deadline) { blocks.begin(deadline); });
    }
    return blocks;
  }

  // TensorBlocks of a list that the backend is to have in one piece where that makes sense to it.
  TensorBlocks hold_list(const std::vector<at::Tensor>& tensors, TensorBlock::Use use);

  [[noreturn]] void refuse(const std::string& what, const char* advice = "") const;

  const Group& group() const noexcept { return group_; }
  const Signature& signature() const noexcept { return signature_; }
  // Where the backend is to have the tensors.
  TensorBlock::Where where() const noexcept {
    return device_ ? TensorBlock::Where::kDevice : TensorBlock::Where::kHost;
  }
  std::shared_ptr<const DevicePlace> place() const {
    return device_ ? place_of(*group_, *device_) : nullptr;
  }
  bool is_root() const noexcept { return signature_.root == group_->rank(); }
  size_t rank() const noexcept { return static_cast<size_t>(group_->rank()); }
  int size() const noexcept { return group_->size(); }

  template <class Options, class Body>
  Plan<Body> plan(const Options& options, Body body) {
    auto device = place();
    return {std::move(group_), signature_,        factor_,        options.timeout,
            std::move(device), std::move(first_), std::move(body)};
  }

 private:
  void see(const at::Tensor& tensor, std::string_view name);
  std::string operation() const { return std::string(called_); }
  // Runs it; errors name the operation.
  template <class Do>
  auto named(const Do& run) const {
    try {
      return run();
    } catch (Error& error) {
      throw error.operation(operation());
    }
  }

  const std::string_view called_;
  Group group_;
  Signature signature_;
  double factor_ = 1;
  std::optional<c10::Device> device_;  // where all are, and the backend takes them
  bool has_seen_ = false;
  std::vector<BeginFirst> first_;
};

}  // namespace farspan::dist
