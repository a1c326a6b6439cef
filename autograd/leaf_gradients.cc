#include <farspan/autograd/leaf_gradients.h>

#include <torch/csrc/autograd/functions/accumulate_grad.h>

namespace farspan::dist_autograd {
namespace {

bool shares_storage(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().use_count() > 1;
}

// AccumulateGrad asks only whether somebody else holds the tensor. Two gradients can also be two
// views of one storage (of a.view(-1) + b.view(-1), say), and a root's gradient can be the user's.
bool memory_is_shared(const at::Tensor& gradient) {
  if (gradient.layout() == at::kSparse) {
    return shares_storage(gradient._indices()) || shares_storage(gradient._values());
  }
  return shares_storage(gradient);
}

}  // namespace

void LeafGradients::add(const at::Tensor& leaf, at::Tensor gradient, size_t own_references) {
  using torch::autograd::AccumulateGrad;
  const MutexLock adding(adding_);
  at::Tensor sum = get(leaf);
  if (!sum.defined() && memory_is_shared(gradient)) own_references = 0;  // makes it copy
  AccumulateGrad::accumulateGrad(leaf, sum, gradient, own_references,
                                 [&](at::Tensor&& update) { set(leaf, std::move(update)); });
}

at::Tensor LeafGradients::find(const at::Tensor& leaf) const {
  return leaf.defined() ? get(leaf) : at::Tensor();
}

at::Tensor LeafGradients::get(const at::Tensor& leaf) const {
  const MutexLock lock(mutex_);
  const auto found = index_.find(leaf.unsafeGetTensorImpl());
  return found == index_.end() ? at::Tensor() : entries_[found->second].second;
}

void LeafGradients::set(const at::Tensor& leaf, at::Tensor gradient) {
  const MutexLock lock(mutex_);
  const auto [found, is_new] = index_.try_emplace(leaf.unsafeGetTensorImpl(), entries_.size());
  if (is_new) {
    entries_.emplace_back(leaf, std::move(gradient));
  } else {
    entries_[found->second].second = std::move(gradient);
  }
}

std::vector<std::pair<at::Tensor, at::Tensor>> LeafGradients::all() const {
  const MutexLock lock(mutex_);
  return entries_;
}

size_t LeafGradients::size() const {
  const MutexLock lock(mutex_);
  return entries_.size();
}

void LeafGradients::clear() {
  std::vector<std::pair<at::Tensor, at::Tensor>> dropped;  // freed after the lock
  const MutexLock lock(mutex_);
  dropped.swap(entries_);
  index_.clear();
}

}  // namespace farspan::dist_autograd
