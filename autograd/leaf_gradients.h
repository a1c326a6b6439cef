// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// LeafGradients: where the gradients of leaves go in a distributed pass, instead of to .grad.
#pragma once

#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/ddp/gradient_store.h>

namespace farspan::dist_autograd {

// Maps a leaf to the sum of its gradients over all passes. No two gradients share memory, nor does
// one with anything that the graph or the user holds, so each may be changed in place.
//
// Threading: every method may be called from any thread. A later pass adds in place to the tensors
// that find() and all() gave out, as .grad does.
class LeafGradients final : public dist::GradientStore {
 public:
  // Adds `gradient` [shape of `leaf`] to what is there. Takes its memory over when nobody else
  // holds it, copies otherwise; keeps the layout that AccumulateGrad would.
  //   own_references  handles to the gradient that the caller has, `gradient` included
  //   grads           with grad mode on, the sum is recorded (create_graph)
  void add(const at::Tensor& leaf, at::Tensor gradient, size_t own_references = 1);

  // The gradient of `leaf`; undefined when it has none.
  at::Tensor find(const at::Tensor& leaf) const;

  // All (leaf, gradient), in the order in which the leaves got their first.
  std::vector<std::pair<at::Tensor, at::Tensor>> all() const;

  size_t size() const;
  void clear();

  // For data-parallel trainers, whose hooks replace gradients by the ranks' average. Theirs, too,
  // shares its memory with nobody.
  at::Tensor gradient(const at::Tensor& leaf) const override { return find(leaf); }
  void set_gradient(const at::Tensor& leaf, at::Tensor gradient) override;
  bool takes_views() const noexcept override { return false; }

 private:
  at::Tensor get(const at::Tensor& leaf) const FARSPAN_EXCLUDES(mutex_);
  void set(const at::Tensor& leaf, at::Tensor gradient) FARSPAN_EXCLUDES(mutex_);

  Mutex adding_;  // makes reading, adding and writing one step; taken before mutex_
  mutable Mutex mutex_;
  std::vector<std::pair<at::Tensor, at::Tensor>> entries_ FARSPAN_GUARDED_BY(mutex_);
  std::unordered_map<const at::TensorImpl*, size_t> index_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan::dist_autograd
