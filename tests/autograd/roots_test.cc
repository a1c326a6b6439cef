// The rules under test: autograd/roots.h.
#include <farspan/autograd/roots.h>

#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include <farspan/c10d/base/error.h>

namespace farspan::testing {
namespace {

using dist_autograd::make_roots;

template <class F>
Error refusal(const F& f) {
  try {
    f();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(Code::kOk, "");
}

at::Tensor computed(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return at::ones(sizes, dtype).requires_grad_() * 2;
}

TEST(Roots, GetAGradientOfOneWhenNoneIsGiven) {
  const auto roots = make_roots({computed({}), computed({1, 1}, at::kDouble)});
  ASSERT_EQ(roots.size(), 2u);
  EXPECT_TRUE(at::equal(roots[0].gradient, at::ones({})));
  EXPECT_TRUE(at::equal(roots[1].gradient, at::ones({1, 1}, at::kDouble)));
}

TEST(Roots, MayMixGivenAndImpliedGradients) {
  const at::Tensor given = at::rand({3});
  const auto roots = make_roots({computed({}), computed({3})}, {at::Tensor(), given});
  EXPECT_TRUE(at::equal(roots[0].gradient, at::ones({})));
  EXPECT_TRUE(at::equal(roots[1].gradient, given));
}

TEST(Roots, AreRefusedWhenThereAreNone) {
  EXPECT_EQ(refusal([] { make_roots({}); }).code(), Code::kInvalidArgument);
}

TEST(Roots, AreRefusedWhenUndefinedOrWithoutAGraph) {
  const Error undefined = refusal([] { make_roots({computed({}), at::Tensor()}); });
  EXPECT_EQ(undefined.message(), "root 1 is undefined");
  const Error detached = refusal([] { make_roots({at::ones({})}); });
  EXPECT_EQ(detached.code(), Code::kInvalidArgument);
  EXPECT_NE(detached.message().find("does not require a gradient"), std::string::npos);
}

TEST(Roots, AreRefusedWhenNotScalarWithoutAGradient) {
  const Error error = refusal([] { make_roots({computed({2, 3})}); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_EQ(error.message(), "root 0 has shape [2, 3], not one element");
  const Error complex = refusal([] { make_roots({computed({}, at::kComplexFloat)}); });
  EXPECT_EQ(complex.message(), "root 0 is ComplexFloat, not a real number");
}

TEST(Roots, AreRefusedWhenTheGradientHasAnotherShape) {
  const Error error = refusal([] { make_roots({computed({2})}, {at::ones({1, 2})}); });
  EXPECT_EQ(error.code(), Code::kShapeMismatch);
  EXPECT_EQ(error.message(), "root 0 has shape [2], its gradient [1, 2]");
}

TEST(Roots, AreRefusedWhenTheGradientsAreAnotherNumber) {
  const Error error = refusal([] { make_roots({computed({})}, {at::ones({}), at::ones({})}); });
  EXPECT_EQ(error.message(), "1 roots but 2 gradients");
}

TEST(Roots, ConvertAGradientOfAnotherDtype) {
  const auto roots = make_roots({computed({2})}, {at::ones({2}, at::kDouble)});
  EXPECT_EQ(roots[0].gradient.scalar_type(), at::kFloat);
}

}  // namespace
}  // namespace farspan::testing
