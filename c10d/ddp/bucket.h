// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Bucket: the gradients that are reduced together, one after the other in one tensor.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

namespace farspan::dist {

// Threading: a value, used by one thread at a time. The tensor is its collective's while that runs.
class Bucket {
 public:
  Bucket() = default;
  // Of gradients of these parameters, all of one dtype; zeros.
  explicit Bucket(std::vector<at::Tensor> parameters);

  // [elements of all parameters].
  const at::Tensor& flat() const noexcept { return flat_; }
  // As long as it lives each is part of flat(): the shape of its parameter, and its strides where
  // it lies densely in memory. They are no views to autograd, so they can be detached in place.
  const std::vector<at::Tensor>& gradients() const noexcept { return gradients_; }
  const std::vector<at::Tensor>& parameters() const noexcept { return parameters_; }
  size_t size() const noexcept { return parameters_.size(); }

  // Whether `gradient` is the memory of parameter i.
  bool holds(size_t i, const at::Tensor& gradient) const;
  // Copies a dense gradient to its place, or zeros for one that is not there.
  void put(size_t i, const at::Tensor& gradient);
  // The gradient of parameter i, into memory of the caller's.
  void copy_to(size_t i, const at::Tensor& gradient) const;

 private:
  std::vector<at::Tensor> parameters_;
  at::Tensor flat_;
  std::vector<at::Tensor> gradients_;
};

}  // namespace farspan::dist
