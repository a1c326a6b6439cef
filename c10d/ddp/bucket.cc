#include <farspan/c10d/ddp/bucket.h>

#include <cstring>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace farspan::dist {
namespace {

using at::Tensor;

// One memcpy where LibTorch's copy_ would do the same after a microsecond of looking for it.
void copy_elements(const Tensor& to, const Tensor& from) {
  const bool alike = from.is_cpu() && to.is_cpu() && from.layout() == at::kStrided &&
                     from.scalar_type() == to.scalar_type() && from.strides() == to.strides() &&
                     from.is_non_overlapping_and_dense() && !from.is_conj() && !from.is_neg();
  if (alike && from.sizes() == to.sizes()) {
    if (from.numel() > 0) {
      std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
    }
    return;
  }
  const at::NoGradGuard no_grad;
  Tensor(to).copy_(from);
}

}  // namespace

Bucket::Bucket(std::vector<Tensor> parameters) : parameters_(std::move(parameters)) {
  int64_t elements = 0;
  for (const Tensor& one : parameters_) elements += one.numel();
  const auto options = parameters_.front().options().requires_grad(false);
  flat_ = at::zeros({elements}, options);
  int64_t offset = 0;
  for (const Tensor& one : parameters_) {
    const bool dense = one.is_non_overlapping_and_dense();
    Tensor part = at::empty({0}, options);
    if (dense) {
      part.set_(flat_.storage(), offset, one.sizes(), one.strides());
    } else {
      part.set_(flat_.storage(), offset, one.sizes());
    }
    gradients_.push_back(std::move(part));
    offset += one.numel();
  }
}

bool Bucket::holds(size_t i, const Tensor& gradient) const {
  const Tensor& own = gradients_[i];
  if (gradient.unsafeGetTensorImpl() == own.unsafeGetTensorImpl()) return true;
  return gradient.layout() == at::kStrided && gradient.is_alias_of(own) &&
         gradient.storage_offset() == own.storage_offset() && gradient.strides() == own.strides() &&
         gradient.sizes() == own.sizes();
}

void Bucket::put(size_t i, const Tensor& gradient) {
  if (gradient.defined()) return copy_elements(gradients_[i], gradient);
  const Tensor& place = gradients_[i];
  if (place.numel() == 0) return;
  if (place.is_cpu()) {
    std::memset(place.mutable_data_ptr(), 0, place.nbytes());
  } else {
    const at::NoGradGuard no_grad;
    Tensor(place).zero_();
  }
}

void Bucket::copy_to(size_t i, const Tensor& gradient) const {
  copy_elements(gradient, gradients_[i]);
}

}  // namespace farspan::dist
