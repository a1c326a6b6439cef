// The rules: c10d/ddp/bucket.h, backward_end.h, gradient_store.h.
#include <farspan/c10d/ddp/bucket.h>

#include <gmock/gmock.h>

#include <string>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <farspan/c10d/ddp/backward_end.h>
#include <farspan/c10d/ddp/gradient_store.h>

namespace farspan::dist {
namespace {

using at::Tensor;

TEST(Bucket, HoldsItsGradientsOneAfterTheOther) {
  Bucket bucket({at::zeros({2, 3}), at::zeros({0}), at::zeros({})});
  EXPECT_EQ(bucket.flat().numel(), 7);
  bucket.put(0, at::arange(6, at::kFloat).view({2, 3}));
  bucket.put(2, at::full({}, 9.0f));
  EXPECT_TRUE(at::equal(bucket.flat(), at::tensor({0.f, 1.f, 2.f, 3.f, 4.f, 5.f, 9.f})));
  EXPECT_EQ(bucket.gradients()[1].sizes(), at::IntArrayRef({0}));
  bucket.put(0, Tensor());
  EXPECT_TRUE(at::equal(bucket.flat(), at::tensor({0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 9.f})));
}

TEST(Bucket, KeepsTheLayoutOfDenseParameters) {
  const Tensor transposed = at::zeros({3, 2}).t(), gaps = at::zeros({4, 4}).slice(1, 0, 2);
  Bucket bucket({transposed, gaps});
  EXPECT_EQ(bucket.gradients()[0].strides(), transposed.strides());
  EXPECT_TRUE(bucket.gradients()[1].is_contiguous()) << "gaps are not kept";
  const Tensor gradient = at::rand({2, 3});
  for (const Tensor& one : {gradient, gradient.t().contiguous().t()}) {
    bucket.put(0, one);
    EXPECT_TRUE(at::equal(bucket.gradients()[0], gradient));
  }
}

TEST(Bucket, TakesGradientsThatAreOnlyConjugatedInName) {
  Bucket bucket({at::zeros({2}, at::kComplexFloat)});
  const Tensor gradient = at::complex(at::ones({2}), at::ones({2}));
  bucket.put(0, gradient.conj());
  EXPECT_TRUE(at::equal(bucket.flat(), gradient.conj()));
  const Tensor copy = at::zeros({2}, at::kComplexFloat);
  bucket.copy_to(0, copy);
  EXPECT_TRUE(at::equal(copy, gradient.conj()));
}

TEST(Bucket, KnowsItsOwnMemory) {
  Bucket bucket({at::zeros({3}), at::zeros({3})});
  EXPECT_TRUE(bucket.holds(0, bucket.gradients()[0]));
  EXPECT_TRUE(bucket.holds(1, bucket.gradients()[1].detach()));
  EXPECT_FALSE(bucket.holds(0, bucket.gradients()[1]));
  EXPECT_FALSE(bucket.holds(0, at::zeros({3})));
  EXPECT_FALSE(bucket.gradients()[0].is_view()) << "so it can be detached in place";
}

// Squares; runs `in_backward` meanwhile.
Tensor watched(const Tensor& x, const std::function<void()>& in_backward) {
  const Tensor y = x * x;
  y.register_hook([in_backward](const Tensor&) { in_backward(); });
  return y.sum();
}

TEST(BackwardEnd, IsToldOnceWhenThePassHasEnded) {
  std::string told;
  const Tensor x = at::ones({2}).requires_grad_();
  const Tensor y = watched(x, [&] {
    at_end_of_backward([&] { told += x.grad().defined() ? "end " : "early "; },
                       [&] { told += "failure "; });
    told += "begin ";
  });
  y.backward();
  EXPECT_EQ(told, "begin end ");
}

TEST(BackwardEnd, IsToldOfAPassThatThrows) {
  std::string told;
  const Tensor x = at::ones({2}).requires_grad_();
  x.register_hook([](const Tensor&) { throw std::runtime_error("no luck"); });
  const Tensor y =
      watched(x, [&] { at_end_of_backward([&] { told += "end "; }, [&] { told += "failure "; }); });
  EXPECT_THROW(y.backward(), std::runtime_error);
  EXPECT_EQ(told, "failure ");
}

TEST(BackwardEnd, BelongsToTheInnermostPass) {
  std::string told;
  const Tensor x = at::ones({2}).requires_grad_();
  const Tensor y = watched(x, [&] {
    const at::AutoGradMode recording(true);
    const Tensor inner = at::ones({2}).requires_grad_();
    watched(inner, [&] { at_end_of_backward([&] { told += "inner "; }, [] {}); }).backward();
    told += "outer ";
  });
  y.backward();
  EXPECT_EQ(told, "inner outer ");
}

class Nowhere final : public GradientStore {
 public:
  Tensor gradient(const Tensor&) const override { return {}; }
  void set_gradient(const Tensor&, Tensor) override {}
  bool takes_views() const noexcept override { return false; }
};

TEST(GradientStore, IsGradUnlessTheThreadHasAnother) {
  const Tensor x = at::ones({2}).requires_grad_();
  current_gradient_store()->set_gradient(x, at::ones({2}));
  EXPECT_TRUE(x.grad().defined());
  EXPECT_TRUE(current_gradient_store()->takes_views());
  {
    const auto store = std::make_shared<Nowhere>();
    const UseGradientStore use(store);
    EXPECT_EQ(current_gradient_store(), store);
    EXPECT_FALSE(current_gradient_store()->gradient(x).defined());
    {
      const UseGradientStore other(std::make_shared<Nowhere>());
      EXPECT_NE(current_gradient_store(), store);
    }
    EXPECT_EQ(current_gradient_store(), store);
  }
  EXPECT_TRUE(current_gradient_store()->gradient(x).defined());
}

}  // namespace
}  // namespace farspan::dist
