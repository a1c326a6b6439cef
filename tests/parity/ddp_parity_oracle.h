// Training in one process, plain LibTorch: what DDP's parity cases must come to, bit by bit.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/sgd.h>

#include <farspan/c10d/ddp/distributed_data_parallel.h>

#include "parity/ddp_parity_net.h"
#include "support/sanitizers.h"

namespace farspan::testing {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int kSteps = repetitions(100);

inline torch::optim::SGD optimizer_of(const torch::nn::Module& net) {
  return torch::optim::SGD(net.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
}

inline Tensor loss_of(ParityNet& net, const ParityShard& shard) {
  return at::nll_loss(net.forward(shard.images), shard.labels);
}

// The documented order: on each host the gradients of its ranks are added in their order, then
// those sums in the order of the hosts; and divided by the number of ranks.
//   hosts  the ranks of each
inline void step_serially(ParityNet& net, int step, const std::vector<std::vector<int>>& hosts,
                          at::ScalarType type) {
  const Tensors parameters = net.parameters();
  Tensors all;
  int ranks = 0;
  const auto add = [](Tensors& sums, const Tensors& more) {
    if (sums.empty()) {
      sums = more;
      return;
    }
    for (size_t i = 0; i < sums.size(); ++i) sums[i] = sums[i] + more[i];
  };
  for (const auto& host : hosts) {
    Tensors sums;
    for (const int rank : host) {
      add(sums, torch::autograd::grad({loss_of(net, ParityShard(step, rank, type))}, parameters));
      ++ranks;
    }
    add(all, sums);
  }
  for (size_t i = 0; i < parameters.size(); ++i) parameters[i].mutable_grad() = all[i] / ranks;
}

// Parameters after each step.
template <class Step>
std::vector<Tensors> train_alone(at::ScalarType type, const Step& step_of) {
  ParityNet net(type);
  auto optimizer = optimizer_of(net);
  std::vector<Tensors> history;
  for (int step = 0; step < kSteps; ++step) {
    step_of(net, step);
    optimizer.step();
    history.emplace_back();
    for (const Tensor& one : net.parameters()) history.back().push_back(one.detach().clone());
  }
  return history;
}

// One rank's part of the default group's training; calls `check(step, parameters)` after each step.
template <class Check>
void train_with_ddp(int rank, at::ScalarType type, const dist::DdpOptions& options,
                    const Check& check) {
  const auto net = std::make_shared<ParityNet>(type);
  dist::DistributedDataParallel<ParityNet> ddp(net, options);
  auto optimizer = optimizer_of(ddp);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const ParityShard shard(step, rank, type);
    at::nll_loss(ddp(shard.images), shard.labels).backward();
    optimizer.step();
    check(step, net->parameters());
  }
}

// Once that has failed, all that follows differs, too.
inline void expect_same_bits(int step, const Tensors& ours,
                             const std::vector<Tensors>& expected_after) {
  if (::testing::Test::HasFailure()) return;
  const Tensors& expected = expected_after.at(static_cast<size_t>(step));
  ASSERT_EQ(ours.size(), expected.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(at::equal(ours[i], expected[i])) << "parameter " << i << " in step " << step;
  }
}

inline dist::DdpOptions small_buckets(dist::DdpOptions options = {}) {
  options.bucket_bytes = 2000;
  options.first_bucket_bytes = 100;
  return options;
}

}  // namespace farspan::testing
