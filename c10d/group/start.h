// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Start: what every collective of tensors begins with: its group, checks of what this rank was
// given, and what all ranks must agree on.
#pragma once

#include <ATen/core/TensorBody.h>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <farspan/c10d/group/perform.h>

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
  Blocks hold(const Arguments&... arguments) const {
    return named([&] { return Blocks(arguments...); });
  }

  [[noreturn]] void refuse(const std::string& what, const char* advice = "") const;

  const Group& group() const noexcept { return group_; }
  const Signature& signature() const noexcept { return signature_; }
  bool is_root() const noexcept { return signature_.root == group_->rank(); }
  size_t rank() const noexcept { return static_cast<size_t>(group_->rank()); }
  int size() const noexcept { return group_->size(); }

  template <class Options, class Body>
  Plan<Body> plan(const Options& options, Body body) {
    return {std::move(group_), signature_, factor_, options.timeout, std::move(body)};
  }

 private:
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
};

}  // namespace farspan::dist
