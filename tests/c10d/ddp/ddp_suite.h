// Nets to train, data for each rank, and what the gradients must be: plain LibTorch on one thread.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <farspan/c10d/ddp/distributed_data_parallel.h>

#include "support/errors.h"
#include "support/ranks.h"

namespace farspan::testing {

using at::Tensor;
using Tensors = std::vector<Tensor>;
template <class Net>
using Ddp = dist::DistributedDataParallel<Net>;
using dist::DdpOptions;

// Both backends, by name.
struct BackendOfRanks {
  const char* name;
  void (*run)(int ranks, const RankBody& body, Millis timeout);
};
inline void PrintTo(const BackendOfRanks& backend, std::ostream* out) { *out << backend.name; }

class DdpSuite : public ::testing::TestWithParam<BackendOfRanks> {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }
  void on_each(int ranks, const RankBody& body) { GetParam().run(ranks, body, kRanksTimeout); }
};
#define FARSPAN_DDP_SUITE(Suite)                                                        \
  INSTANTIATE_TEST_SUITE_P(Each, Suite,                                                 \
                           ::testing::Values(BackendOfRanks{"Fake", run_on_fake_ranks}, \
                                             BackendOfRanks{"Cpu", run_on_cpu_ranks}),  \
                           [](const auto& each) { return std::string(each.param.name); })

// The same numbers wherever it is made, for a seed.
inline Tensor numbers(at::IntArrayRef shape, int64_t seed, at::ScalarType type = at::kFloat) {
  const Tensor index = at::arange(c10::multiply_integers(shape), at::kDouble);
  return (index * 0.37 + static_cast<double>(seed) * 1.3).sin().reshape(shape).to(type);
}

// Parameters that depend on the seed alone.
template <class Net>
std::shared_ptr<Net> seeded(std::shared_ptr<Net> net, int64_t seed) {
  const at::NoGradGuard no_grad;
  for (Tensor& parameter : net->parameters()) {
    parameter.copy_(numbers(parameter.sizes(), ++seed, parameter.scalar_type()));
  }
  return net;
}

// [batch, 4] -> [batch, 3]
struct TwoLayers : torch::nn::Module {
  TwoLayers() {
    first = register_module("first", torch::nn::Linear(4, 8));
    second = register_module("second", torch::nn::Linear(8, 3));
  }
  Tensor forward(const Tensor& x) { return second->forward(first->forward(x).tanh()); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};

// Takes the way that it is told: left, right, or both.
struct Branches : torch::nn::Module {
  Branches() {
    trunk = register_module("trunk", torch::nn::Linear(4, 4));
    left = register_module("left", torch::nn::Linear(4, 3));
    right = register_module("right", torch::nn::Linear(4, 3));
  }
  Tensor forward(const Tensor& x, const std::string& way) {
    const Tensor h = trunk->forward(x).tanh();
    if (way == "left") return left->forward(h);
    if (way == "right") return right->forward(h);
    return left->forward(h) * right->forward(h);
  }
  torch::nn::Linear trunk{nullptr}, left{nullptr}, right{nullptr};
};

inline Tensor input_of(int rank, int64_t step = 0, at::ScalarType type = at::kFloat) {
  return numbers({5, 4}, 100 + rank * 17 + step * 3, type);
}

inline Tensors gradients_of(const torch::nn::Module& net) {
  Tensors gradients;
  for (const Tensor& one : net.parameters()) gradients.push_back(one.grad());
  return gradients;
}

// The sum of the ranks' gradients, divided by their number. On each host they are added in the
// order of its ranks, then those sums in the order of the hosts.
//   hosts  the ranks of each
//   loss   of a rank, over the parameters of `net`
inline Tensors averaged(const std::vector<std::vector<int>>& hosts, const torch::nn::Module& net,
                        const std::function<Tensor(int rank)>& loss) {
  const auto add = [](Tensors& sums, const Tensors& more) {
    if (sums.empty()) {
      for (const Tensor& one : more) sums.push_back(one.clone());
      return;
    }
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
  };
  Tensors all;
  int ranks = 0;
  for (const auto& host : hosts) {
    Tensors sums;
    for (const int rank : host) {
      Tensors own = torch::autograd::grad({loss(rank)}, net.parameters(), {}, std::nullopt,
                                          /*create_graph=*/false, /*allow_unused=*/true);
      for (size_t i = 0; i < own.size(); ++i) {
        if (!own[i].defined()) own[i] = at::zeros_like(net.parameters()[i]);
      }
      add(sums, own);
      ++ranks;
    }
    add(all, sums);
  }
  for (Tensor& one : all) one /= ranks;
  return all;
}
// All on one host.
inline Tensors averaged(int ranks, const torch::nn::Module& net,
                        const std::function<Tensor(int rank)>& loss) {
  return averaged(dist::testing::ranks_by_host(ranks, dist::testing::one_host), net, loss);
}

inline void expect_equal(const Tensors& ours, const Tensors& expected, const std::string& what) {
  ASSERT_EQ(ours.size(), expected.size()) << what;
  for (size_t i = 0; i < ours.size(); ++i) {
    ASSERT_TRUE(ours[i].defined()) << what << ", parameter " << i << " has no gradient";
    EXPECT_TRUE(at::equal(ours[i], expected[i]))
        << what << ", parameter " << i << ": " << ours[i] << "\n and not\n"
        << expected[i];
  }
}

inline void drop_gradients(const torch::nn::Module& net) {
  for (Tensor& one : net.parameters()) one.mutable_grad().reset();
}

}  // namespace farspan::testing
