// The rules under test: optim/local_optimizer.h and optim/optimizer_spec.h. The oracle is
// torch::optim.
#include <farspan/optim/local_optimizer.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/lbfgs.h>

#include <farspan/rpc/init/rooms.h>

#include "support/workers.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using optim::LocalGroup;
using optim::LocalOptimizer;
using optim::OptimizerSpec;
using ::testing::HasSubstr;

static_assert(optim::Distributable<torch::optim::AdamW>);
static_assert(!optim::Distributable<torch::optim::LBFGS>);

// What making an optimizer throws.
Error refusal(const OptimizerSpec& defaults, const std::vector<LocalGroup>& groups) {
  try {
    LocalOptimizer optimizer(defaults, groups);
  } catch (const Error& e) {
    return e;
  }
  return Error(Code::kOk, "it was made");
}
Tensor leaf(at::IntArrayRef shape = {3, 2}) { return at::ones(shape).set_requires_grad(true); }

TEST(OptimizerSpec, CarriesEveryOptionOfEachOptimizer) {
  using namespace torch::optim;
  const auto expect_same = [](const auto& options) {
    const auto made = optim::make_optimizer(optim::spec_of(options), {{{leaf()}, std::nullopt}});
    using Options = std::remove_cvref_t<decltype(options)>;
    EXPECT_TRUE(dynamic_cast<Options&>(made->defaults()) == options);
  };
  expect_same(SGDOptions(0.3).momentum(0.1).dampening(0.2).weight_decay(0.5));
  expect_same(SGDOptions(0.3).momentum(0.1).nesterov(true));
  expect_same(AdamOptions(0.3).betas({0.1, 0.2}).eps(0.4).weight_decay(0.5).amsgrad(true));
  expect_same(AdamWOptions(0.3).betas({0.1, 0.2}).eps(0.4).weight_decay(0.5).amsgrad(true));
  expect_same(
      AdagradOptions(0.3).lr_decay(0.1).weight_decay(0.2).initial_accumulator_value(0.4).eps(0.5));
  expect_same(
      RMSpropOptions(0.3).alpha(0.1).eps(0.2).weight_decay(0.4).momentum(0.5).centered(true));
}

TEST(OptimizerSpec, RefusesWhatItDoesNotKnow) {
  const Error lbfgs = refusal({"LBFGS", {{"lr", 1}}}, {{{leaf()}, std::nullopt}});
  EXPECT_EQ(lbfgs.code(), Code::kInvalidArgument);
  EXPECT_THAT(lbfgs.what(), HasSubstr("use SGD, Adam, AdamW, Adagrad or RMSprop"));
  const Error missing = refusal({"SGD", {{"lr", 1}}}, {{{leaf()}, std::nullopt}});
  EXPECT_THAT(missing.what(), HasSubstr("SGD without its option 'momentum'"));
}

TEST(OptimizerSpec, RefusesWhatLibTorchRefusesInAGroupToo) {
  const auto good = optim::spec_of(torch::optim::SGDOptions(0.1));
  const auto bad = optim::spec_of(torch::optim::SGDOptions(-0.1));
  const auto adam = optim::spec_of(torch::optim::AdamOptions(0.1));
  EXPECT_THAT(refusal(bad, {{{leaf()}, std::nullopt}}).what(), HasSubstr("learning rate"));
  EXPECT_THAT(refusal(good, {{{leaf()}, bad}}).what(), HasSubstr("learning rate"));
  EXPECT_THAT(refusal(good, {{{leaf()}, adam}}).what(), HasSubstr("options of Adam"));
}

TEST(LocalOptimizer, RefusesTensorsThatItCannotOptimize) {
  const auto sgd = optim::spec_of(torch::optim::SGDOptions(0.1));
  const Tensor a = leaf();
  EXPECT_EQ(refusal(sgd, {{{a}, std::nullopt}, {{a}, std::nullopt}}).message(),
            "a parameter is given twice");
  EXPECT_EQ(refusal(sgd, {{{a * 2}, std::nullopt}}).message(),
            "a tensor that no gradient is kept for");
  EXPECT_EQ(refusal(sgd, {{{at::ones({2})}, std::nullopt}}).code(), Code::kInvalidArgument);
}

class LocalOptimizerStep : public ::testing::Test {
 protected:
  LocalOptimizerStep() { furnish(workers_[0]), set_current_worker(&workers_[0]); }
  ~LocalOptimizerStep() override { set_current_worker(nullptr); }
  uint64_t id(const dist_autograd::Context& c) { return static_cast<uint64_t>(c.id()); }
  Workers workers_{{.count = 1, .transport = "loopback", .settings = {}, .reactor = {}}};
};

TEST_F(LocalOptimizerStep, GroupsHaveOptionsOfTheirOwn) {
  using torch::optim::SGDOptions;
  const Tensor a = leaf(), b = leaf(), c = leaf();
  LocalOptimizer optimizer(optim::spec_of(SGDOptions(0.5)),
                           {{{a}, std::nullopt},
                            {{b}, optim::spec_of(SGDOptions(0.25).momentum(0.5))},
                            {{c}, optim::spec_of(SGDOptions(0))}});
  EXPECT_EQ(optimizer.size(), 3);
  for (int i = 0; i < 2; ++i) {
    dist_autograd::Context context;
    context.backward({(a + b + c).sum()});
    optimizer.step(id(context));
  }
  EXPECT_TRUE(at::equal(a, at::full({3, 2}, 1 - 2 * 0.5)));
  EXPECT_TRUE(at::equal(b, at::full({3, 2}, 1 - 0.25 * (1 + 1.5))));
  EXPECT_TRUE(at::equal(c, at::ones({3, 2})));
}

TEST_F(LocalOptimizerStep, LeavesParametersWithoutAGradientAlone) {
  const Tensor a = leaf(), b = leaf();
  LocalOptimizer optimizer(optim::spec_of(torch::optim::SGDOptions(0.5).weight_decay(1)),
                           {{{a, b}, std::nullopt}});
  dist_autograd::Context context;
  context.backward({a.sum()});
  optimizer.step(id(context));
  EXPECT_FALSE(at::equal(a, at::ones({3, 2})));
  EXPECT_TRUE(at::equal(b, at::ones({3, 2})));
  EXPECT_FALSE(a.grad().defined());
  // Expect: of a context that has not been here there is nothing to apply.
  EXPECT_NO_THROW(optimizer.step(12345));
}

TEST_F(LocalOptimizerStep, HogwildDoesNotDisturbABackwardPassUnderWay) {
  const Tensor a = leaf({2, 2});
  LocalOptimizer optimizer(optim::spec_of(torch::optim::AdamOptions(0.5)), {{{a}, std::nullopt}});
  const Tensor under_way = at::mm(a, a).sum();
  const auto version = a._version();
  {
    dist_autograd::Context context;
    context.backward({a.sum()});
    optimizer.step(id(context));
  }
  EXPECT_EQ(a._version(), version);
  EXPECT_NO_THROW(torch::autograd::grad({under_way}, {a}));
}

// What nobody asked the gate for is found by LibTorch.
TEST_F(LocalOptimizerStep, ConsistentRefusesABackwardPassThatMetAStep) {
  const Tensor a = leaf({2, 2});
  LocalOptimizer optimizer(optim::spec_of(torch::optim::SGDOptions(0.5)), {{{a}, std::nullopt}},
                           optim::OptimRoom::of(workers_[0]));
  const Tensor under_way = at::mm(a, a).sum();
  {
    dist_autograd::Context context;
    context.backward({a.sum()});
    optimizer.step(id(context), 1);
  }
  EXPECT_THROW(torch::autograd::grad({under_way}, {a}), c10::Error);
}

TEST_F(LocalOptimizerStep, AConsistentStepBeginsOnceAndInItsTurnOnly) {
  const Tensor a = leaf({2, 2});
  LocalOptimizer optimizer(optim::spec_of(torch::optim::SGDOptions(0.5)), {{{a}, std::nullopt}},
                           optim::OptimRoom::of(workers_[0]));
  dist_autograd::Context context;
  context.backward({a.sum()});
  optimizer.step(id(context), 7);
  for (const uint64_t over : {7, 6}) EXPECT_THROW(optimizer.step(id(context), over), Error);
  EXPECT_TRUE(at::equal(a, at::full({2, 2}, 0.5)));
  EXPECT_NO_THROW(optimizer.step(id(context), 8));
}

TEST_F(LocalOptimizerStep, AGradientThatCannotBeAppliedIsAnErrorAndNoMore) {
  const Tensor a = leaf({2, 2});
  LocalOptimizer optimizer(optim::spec_of(torch::optim::SGDOptions(0.5)), {{{a}, std::nullopt}});
  {
    dist_autograd::Context context;
    dist_autograd::AutogradRoom::of(workers_[0])
        ->find(context.id())
        ->leaves->add(a, at::ones({2, 2}, at::kComplexFloat));
    EXPECT_THROW(optimizer.step(id(context)), Error);
  }
  dist_autograd::Context context;
  context.backward({a.sum()});
  EXPECT_NO_THROW(optimizer.step(id(context)));
  EXPECT_TRUE(at::equal(a, at::full({2, 2}, 0.5)));
}

}  // namespace
}  // namespace farspan::testing
