// A whole backward pass of ours in this process, and LibTorch's as its oracle.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <farspan/autograd/executor.h>

namespace farspan::testing {

using dist_autograd::Executor;
using dist_autograd::ExecutorOptions;
using dist_autograd::LeafGradients;
using Tensors = std::vector<at::Tensor>;

inline void backward_here(const Tensors& roots, const Tensors& gradients,
                          const std::shared_ptr<LeafGradients>& leaves,
                          ExecutorOptions options = {}) {
  Executor pass(options, leaves, [](auto& boundary, auto) {
    ADD_FAILURE() << "no boundary expected: " << boundary.name();
  });
  pass.walk(dist_autograd::make_roots(roots, gradients));
  pass.start();
  EXPECT_EQ(pass.run(), Executor::Progress::kFinished);
}

inline std::shared_ptr<LeafGradients> backward_here(const at::Tensor& root,
                                                    ExecutorOptions options = {}) {
  auto leaves = std::make_shared<LeafGradients>();
  backward_here({root}, {}, leaves, options);
  return leaves;
}

// What LibTorch puts into .grad; the leaves' own .grad is as before.
inline Tensors engine_gradients(const Tensors& leaves, const Tensors& roots,
                                const Tensors& gradients = {}) {
  Tensors before, result;
  for (const at::Tensor& leaf : leaves) {
    before.push_back(leaf.grad());
    leaf.mutable_grad() = at::Tensor();
  }
  torch::autograd::backward(roots, gradients);
  for (size_t i = 0; i < leaves.size(); ++i) {
    result.push_back(leaves[i].grad());
    leaves[i].mutable_grad() = before[i];
  }
  return result;
}

// The same bits, dtype, layout and strides.
inline void expect_same(const at::Tensor& ours, const at::Tensor& theirs, const char* what = "") {
  ASSERT_EQ(ours.defined(), theirs.defined()) << what;
  if (!ours.defined()) return;
  ASSERT_EQ(ours.layout(), theirs.layout()) << what;
  ASSERT_EQ(ours.scalar_type(), theirs.scalar_type()) << what;
  ASSERT_EQ(ours.sizes(), theirs.sizes()) << what;
  if (ours.layout() == at::kStrided) {
    EXPECT_EQ(ours.strides(), theirs.strides()) << what;
  }
  EXPECT_TRUE(at::equal(ours.detach().to_dense(), theirs.detach().to_dense())) << what;
}

// Runs `roots` twice, from the same random state, once through the engine and once through ours.
inline void expect_parity(const Tensors& leaves, const std::function<Tensors()>& roots,
                          const Tensors& gradients = {}) {
  at::manual_seed(7);
  const Tensors theirs = engine_gradients(leaves, roots(), gradients);
  at::manual_seed(7);
  auto ours = std::make_shared<LeafGradients>();
  backward_here(roots(), gradients, ours);
  for (size_t i = 0; i < leaves.size(); ++i) {
    expect_same(ours->find(leaves[i]), theirs[i], ("leaf " + std::to_string(i)).c_str());
    EXPECT_FALSE(leaves[i].grad().defined()) << "leaf " << i << ": .grad was written";
  }
}

}  // namespace farspan::testing
