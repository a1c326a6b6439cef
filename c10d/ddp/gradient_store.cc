#include <farspan/c10d/ddp/gradient_store.h>

#include <ATen/ATen.h>

#include <utility>

namespace farspan::dist {
namespace {

class InGrad final : public GradientStore {
 public:
  at::Tensor gradient(const at::Tensor& parameter) const override { return parameter.grad(); }
  void set_gradient(const at::Tensor& parameter, at::Tensor gradient) override {
    parameter.mutable_grad() = std::move(gradient);
  }
  bool takes_views() const noexcept override { return true; }
};

thread_local std::shared_ptr<GradientStore> the_threads_store;

}  // namespace

UseGradientStore::UseGradientStore(std::shared_ptr<GradientStore> store) noexcept
    : before_(std::exchange(the_threads_store, std::move(store))) {}

UseGradientStore::~UseGradientStore() { the_threads_store = std::move(before_); }

const std::shared_ptr<GradientStore>& current_gradient_store() noexcept {
  static const std::shared_ptr<GradientStore> in_grad = std::make_shared<InGrad>();
  return the_threads_store ? the_threads_store : in_grad;
}

}  // namespace farspan::dist
