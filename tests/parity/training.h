// A small net cut into three parts, on the workers of one process, and the same net in plain
// LibTorch.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <farspan/autograd/room.h>
#include <farspan/farspan.h>
#include <farspan/rpc/init/rooms.h>

#include "autograd/local_pass.h"
#include "support/held.h"
#include "support/workers.h"

namespace farspan::testing {

using AnyOptions =
    std::variant<torch::optim::SGDOptions, torch::optim::AdamOptions, torch::optim::AdamWOptions,
                 torch::optim::AdagradOptions, torch::optim::RMSpropOptions>;
inline torch::optim::SGD* optimizer_for(const torch::optim::SGDOptions&) { return nullptr; }
inline torch::optim::Adam* optimizer_for(const torch::optim::AdamOptions&) { return nullptr; }
inline torch::optim::AdamW* optimizer_for(const torch::optim::AdamWOptions&) { return nullptr; }
inline torch::optim::Adagrad* optimizer_for(const torch::optim::AdagradOptions&) { return nullptr; }
inline torch::optim::RMSprop* optimizer_for(const torch::optim::RMSpropOptions&) { return nullptr; }
// The optimizer that takes these options.
template <class Options>
using OptimizerFor = std::remove_pointer_t<decltype(optimizer_for(std::declval<Options>()))>;

// A third of the net: [batch, 1, 6, 6] -> conv -> [batch, 64] -> linear, layer norm -> [batch, 16]
// -> linear -> [batch, 5].
struct Part {
  Part(int index_in_net, at::ScalarType dtype) : index(index_in_net) {
    at::manual_seed(static_cast<uint64_t>(40 + index));
    const auto add = [&](at::IntArrayRef shape, double scale) {
      weights.push_back(
          at::randn(shape, at::kDouble).mul_(scale).to(dtype).set_requires_grad(true));
    };
    if (index == 0) {
      add({4, 1, 3, 3}, 0.3);
      add({4}, 0.1);
    } else if (index == 1) {
      add({16, 64}, 0.1);
      add({16}, 0.1);
      add({16}, 1);
      add({16}, 0.1);
    } else {
      add({5, 16}, 0.3);
      add({5}, 0.1);
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    if (index == 0) return at::relu(at::conv2d(x, weights[0], weights[1])).flatten(1);
    const at::Tensor y = at::linear(x, weights[0], weights[1]);
    if (index == 2) return at::log_softmax(y, 1);
    return at::tanh(at::layer_norm(y, {16}, weights[2], weights[3]));
  }
  std::vector<at::Tensor> parameters(bool) const { return weights; }

  const int index;
  std::vector<at::Tensor> weights;
};

struct Net {
  explicit Net(at::ScalarType dtype) {
    for (int i = 0; i < 3; ++i) parts.push_back(std::make_shared<Part>(i, dtype));
  }
  std::vector<at::Tensor> parameters() const {
    std::vector<at::Tensor> all;
    for (const auto& part : parts) {
      all.insert(all.end(), part->weights.begin(), part->weights.end());
    }
    return all;
  }
  std::vector<std::shared_ptr<Part>> parts;
};

// Batch `number`: the same for all who ask.
struct Sample {
  Sample(int number, at::ScalarType dtype) {
    at::manual_seed(static_cast<uint64_t>(1000 + number));
    images = at::randn({7, 1, 6, 6}, at::kDouble).to(dtype);
    labels = at::randint(5, {7}, at::kLong);
  }
  at::Tensor images, labels;
};

// One step of plain LibTorch; .grad stays for the comparison.
template <class Options>
class LocalTraining {
 public:
  LocalTraining(at::ScalarType dtype, const Options& options)
      : net(dtype), optimizer_(net.parameters(), options) {}
  at::Tensor step(const Sample& sample) {
    optimizer_.zero_grad();
    at::Tensor x = sample.images;
    for (const auto& part : net.parts) x = part->forward(x);
    const at::Tensor loss = at::nll_loss(x, sample.labels);
    torch::autograd::backward({loss});
    optimizer_.step();
    return loss.detach();
  }
  Net net;

 private:
  OptimizerFor<Options> optimizer_;
};

// The gradient that a context has for a leaf of this worker.
inline at::Tensor gradient_at(Worker& worker, const dist_autograd::Context& context,
                              const at::Tensor& leaf) {
  const auto state = dist_autograd::AutogradRoom::of(worker)->find(context.id());
  return state ? state->leaves->find(leaf) : at::Tensor();
}

}  // namespace farspan::testing
