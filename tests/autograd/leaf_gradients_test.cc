// The rules under test: autograd/leaf_gradients.h.
#include <farspan/autograd/leaf_gradients.h>

#include <gtest/gtest.h>

#include <thread>

#include <ATen/ATen.h>

namespace farspan::testing {
namespace {

using dist_autograd::LeafGradients;

TEST(LeafGradients, SumWhatComesForALeaf) {
  const at::Tensor a = at::zeros({3}), b = at::zeros({2});
  LeafGradients leaves;
  leaves.add(a, at::ones({3}));
  leaves.add(b, at::ones({2}));
  leaves.add(a, at::full({3}, 2.0f));
  EXPECT_TRUE(at::equal(leaves.find(a), at::full({3}, 3.0f)));
  EXPECT_TRUE(at::equal(leaves.find(b), at::ones({2})));
  EXPECT_FALSE(leaves.find(at::zeros({3})).defined());
  EXPECT_FALSE(leaves.find(at::Tensor()).defined());
}

TEST(LeafGradients, KeepTheOrderOfArrival) {
  LeafGradients leaves;
  std::vector<at::Tensor> made;
  for (int i = 0; i < 50; ++i) {
    made.push_back(at::zeros({1}));
    leaves.add(made.back(), at::full({1}, static_cast<float>(i)));
  }
  leaves.add(made[7], at::ones({1}));
  const auto all = leaves.all();
  ASSERT_EQ(all.size(), 50u);
  for (size_t i = 0; i < 50; ++i) EXPECT_TRUE(all[i].first.is_same(made[i]));
  leaves.clear();
  EXPECT_EQ(leaves.size(), 0u);
}

TEST(LeafGradients, CopyAGradientThatTheCallerKeeps) {
  const at::Tensor a = at::zeros({3}), mine = at::ones({3});
  LeafGradients leaves;
  leaves.add(a, mine);
  leaves.find(a).fill_(5);
  EXPECT_TRUE(at::equal(mine, at::ones({3})));
}

TEST(LeafGradients, FollowTheLayoutOfTheLeaf) {
  const at::Tensor a = at::zeros({3, 4}).t();
  LeafGradients leaves;
  leaves.add(a, at::rand({4, 3}));
  EXPECT_EQ(leaves.find(a).strides(), a.strides());
}

TEST(LeafGradients, LoseNothingWhenManyThreadsAdd) {
  const at::Tensor a = at::zeros({8});
  LeafGradients leaves;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) leaves.add(a, at::ones({8}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(at::equal(leaves.find(a), at::full({8}, 400.0f)));
}

}  // namespace
}  // namespace farspan::testing
