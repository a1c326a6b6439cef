// Distributed autograd over every cluster. The rules: autograd/context.h; the oracle is LibTorch's
// engine. The cases are in the autograd_*_cases.cc beside this.
#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include <farspan/autograd/context.h>
#include <farspan/rref/remote.h>
#include <farspan/rref/rref.h>

#include "conformance/cluster_suite.h"

namespace farspan::testing {

// The same wherever it is made.
at::Tensor variable(at::IntArrayRef shape, int64_t seed);
// Each worker's weight, [4, 4]: the same for the whole test, and in each process.
at::Tensor& weight_of(int rank);
// Registered: over the weight of the worker that they run on.
at::Tensor layer(const at::Tensor& x);
// Registered: over none.
at::Tensor plain(const at::Tensor& x);

// By LibTorch.
inline std::vector<at::Tensor> engine(const at::Tensor& loss,
                                      const std::vector<at::Tensor>& leaves) {
  return torch::autograd::grad({loss}, leaves);
}
// Sums in another order differ in the last bits.
inline bool near(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() && at::allclose(a, b, 1e-5, 1e-6);
}
// What `context` has for the weight of that worker, asked by the current one.
at::Tensor weight_gradient(int rank, const dist_autograd::Context& context);

class AutogradSuite : public ClusterSuite {
 protected:
  void TearDown() override;

  // From now on the test fails when something keeps this context, on any worker, past the end.
  void watch(const dist_autograd::Context& context);
  // Backward passes under way, on all workers that serve; whatever context the thread is in.
  int64_t passes();
};

}  // namespace farspan::testing
