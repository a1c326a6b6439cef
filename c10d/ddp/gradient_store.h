// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// GradientStore: where the gradients of a backward pass lie. In .grad, unless whoever runs the
// backward pass has another place for them: distributed autograd keeps them in its contexts.
#pragma once

#include <memory>

#include <ATen/core/TensorBody.h>

namespace farspan::dist {

// Threading: every method from the thread that runs the pass.
class GradientStore {
 public:
  virtual ~GradientStore() = default;

  // Undefined: the parameter has none.
  virtual at::Tensor gradient(const at::Tensor& parameter) const = 0;
  virtual void set_gradient(const at::Tensor& parameter, at::Tensor gradient) = 0;
  // Whether a gradient may share the memory of a bucket, which the next iteration overwrites.
  virtual bool takes_views() const noexcept = 0;
};

// While it lives, hooks that this thread runs find their gradients in `store`.
class UseGradientStore {
 public:
  explicit UseGradientStore(std::shared_ptr<GradientStore> store) noexcept;
  ~UseGradientStore();
  UseGradientStore(const UseGradientStore&) = delete;
  UseGradientStore& operator=(const UseGradientStore&) = delete;

 private:
  std::shared_ptr<GradientStore> before_;
};

// That of the calling thread; without a UseGradientStore it is .grad. Never null.
const std::shared_ptr<GradientStore>& current_gradient_store() noexcept;

}  // namespace farspan::dist
