#include <farspan/autograd/leaf_gradients.h>

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <farspan/c10d/base/device_order.h>

namespace farspan::dist_autograd {
namespace {

// AccumulateGrad asks only whether somebody else holds the tensor. Two gradients can also be two
// views of one storage (of a.view(-1) + b.view(-1), say), and a root's gradient can be the user's.
bool memory_is_shared(const at::Tensor& gradient) {
  if (gradient.layout() == at::kSparse) {  // its values, and the handle to them that we get here
    return gradient._values().storage().use_count() > 2;
  }
  if (!gradient.has_storage()) return false;
  // A view keeps its base alive, though nobody else may hold that (the gradient of linear's
  // weight).
  const bool own_base = gradient.is_view() && gradient._base().use_count() == 1;
  return gradient.storage().use_count() > (own_base ? 2u : 1u);
}

}  // namespace

void LeafGradients::add(const at::Tensor& leaf, at::Tensor gradient, size_t own_references) {
  using torch::autograd::AccumulateGrad;
  const MutexLock adding(adding_);
  at::Tensor sum = get(leaf);
  if (sum.defined()) take_from_devices(sum);  // another pass's streams have written it
  if (!sum.defined() && memory_is_shared(gradient)) own_references = 0;  // makes it copy
  AccumulateGrad::accumulateGrad(leaf, sum, gradient, own_references,
                                 [&](at::Tensor&& update) { set(leaf, std::move(update)); });
}

at::Tensor LeafGradients::find(const at::Tensor& leaf) const {
  at::Tensor gradient = leaf.defined() ? get(leaf) : at::Tensor();
  take_from_devices(gradient);
  return gradient;
}

at::Tensor LeafGradients::get(const at::Tensor& leaf) const {
  const MutexLock lock(mutex_);
  const auto found = index_.find(leaf.unsafeGetTensorImpl());
  return found == index_.end() ? at::Tensor() : entries_[found->second].second;
}

void LeafGradients::set_gradient(const at::Tensor& leaf, at::Tensor gradient) {
  const MutexLock adding(adding_);
  set(leaf, std::move(gradient));
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
  std::vector<std::pair<at::Tensor, at::Tensor>> entries;
  {
    const MutexLock lock(mutex_);
    entries = entries_;
  }
  take_from_devices(entries);
  return entries;
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
