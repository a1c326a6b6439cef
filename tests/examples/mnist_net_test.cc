// The rules under test: examples/mnist/net.h.
#include "mnist/net.h"

#include <gtest/gtest.h>

#include <string>

#include <ATen/ATen.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "mnist/batches.h"
#include "mnist/small_net.h"

namespace mnist {
namespace {

TEST(MnistNet, HasAbout1200000Parameters) {
  int64_t count = 0;
  for (const at::Tensor& parameter : Net().parameters()) count += parameter.numel();
  EXPECT_EQ(count, 1'199'882);
}

TEST(MnistNet, TheSmallOneHas21840) {
  int64_t count = 0;
  for (const at::Tensor& parameter : SmallNet().parameters()) count += parameter.numel();
  EXPECT_EQ(count, 21'840);
}

TEST(MnistNet, GivesALogarithmicDistributionOverTenDigits) {
  const at::Tensor scores = Net().forward(at::randn({5, 1, 28, 28}));
  EXPECT_EQ(scores.sizes(), (at::IntArrayRef{5, 10}));
  EXPECT_TRUE(at::allclose(scores.exp().sum(1), at::ones({5})));
}

TEST(MnistNet, TheTwoStagesMakeTheWhole) {
  Net net;
  const at::Tensor images = at::randn({5, 1, 28, 28});
  const at::Tensor maps = net.convolutions->forward(images);
  EXPECT_EQ(maps.sizes(), (at::IntArrayRef{5, 64, 24, 24}));
  EXPECT_TRUE(at::equal(net.classifier->forward(maps), net.forward(images)));
}

TEST(MnistNet, TheShareRightIsThatOfTheHighestScores) {
  const at::Tensor scores = at::tensor({0.1, 0.9, 0.9, 0.1, -3.0, -2.0, 0.0, -1.0}).view({4, 2});
  EXPECT_DOUBLE_EQ(share_right(scores, at::tensor({1, 0, 1, 0}).to(at::kLong)), 1);
  EXPECT_DOUBLE_EQ(share_right(scores, at::tensor({1, 0, 1, 1}).to(at::kLong)), 0.75);
  EXPECT_DOUBLE_EQ(share_right(scores, at::tensor({0, 1, 0, 1}).to(at::kLong)), 0);
}

TEST(MnistNet, AccuracyCountsTheRightGuesses) {
  const Dataset data{at::arange(10, at::kFloat).view({10, 1, 1, 1}),
                     at::tensor({0, 1, 2, 3, 4, 5, 6, 0, 0, 0}).to(at::kLong)};
  const auto forward = [](const at::Tensor& images) {
    EXPECT_FALSE(at::GradMode::is_enabled());
    return at::one_hot(images.flatten().to(at::kLong), 10);
  };
  // Expect: the same whether the last batch is full or not.
  for (const int64_t batch_size : {1, 3, 5, 100}) {
    EXPECT_DOUBLE_EQ(accuracy(forward, data, batch_size), 0.7) << batch_size;
  }
}

// A tenth of the data, in a plain process; that a whole epoch over RPC reaches 97.5 % is what the
// test parameter_server_learns_whole_epoch shows.
TEST(MnistNet, LearnsFromOneTenthOfTheData) {
  torch::manual_seed(1);
  at::set_num_threads(1);
  const Dataset test = load_test().sample(1000);
  const Batches batches(load_train().sample(6000), {.batch_size = 64, .seed = 1});
  Net net;
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.1));
  for (const auto& [images, labels] : batches.epoch(0)) {
    optimizer.zero_grad();
    at::nll_loss(net.forward(images), labels).backward();
    optimizer.step();
  }
  EXPECT_GE(accuracy([&](const at::Tensor& x) { return net.forward(x); }, test), 0.9);
}

}  // namespace
}  // namespace mnist
