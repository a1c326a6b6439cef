// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Layers that several trainers train at once, and what can be told afterwards from their logs.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include <farspan/farspan.h>

namespace farspan::testing {

// [n, 4] -> [n, 4], and which version of the weights that was.
struct Layer {
  explicit Layer(int index);
  static at::Tensor apply(const std::vector<at::Tensor>& weights, const at::Tensor& x);
  int64_t version() const { return static_cast<int64_t>(weights[0]._version()); }
  std::vector<at::Tensor> forward(const at::Tensor& x);
  std::vector<at::Tensor> parameters(bool) const { return weights; }
  std::vector<at::Tensor> weights;
  int64_t base = 0;
};
extern std::vector<std::shared_ptr<Layer>> layers;  // by owner; a test fills and clears it
std::shared_ptr<Layer> lend_layer();                // registered: the current worker's

at::Tensor batch(int trainer, int number);  // [3, 4]
at::Tensor loss_of(const at::Tensor& y);

// What one trainer holds of the layers on the first `owners` workers.
struct Model {
  explicit Model(int owners);
  // The versions read, in the order of the owners.
  at::Tensor loss(at::Tensor x, std::vector<int64_t>* read = nullptr) const;
  std::vector<RRef<std::shared_ptr<Layer>>> parts;
  ParameterRRefs parameters;
};

// One step of a trainer: its number in the job, and the versions that its gradient is of.
struct Done {
  int trainer, iteration;
  uint64_t number;
  std::vector<int64_t> read;
};

// The current worker trains; each step that ended is in the log at once.
template <class Opt, class Options>
void train(int trainer, int steps, int owners, const Options& options,
           const DistributedOptimizerOptions& how, std::vector<Done>& log) {
  const Model model(owners);
  DistributedOptimizer<Opt> optimizer(model.parameters, options, how);
  for (int i = 0; i < steps; ++i) {
    Done done{trainer, i, 0, {}};
    dist_autograd::Context context;
    context.backward({model.loss(batch(trainer, i), &done.read)});
    done.number = optimizer.step(context);
    log.push_back(done);
  }
}

// Does again, in one thread, what the log says was done, and compares the parameters.
template <class Opt, class Options>
void expect_serial(std::vector<Done> log, int owners, const Options& options) {
  using at::Tensor;
  std::sort(log.begin(), log.end(),
            [](const Done& a, const Done& b) { return a.number < b.number; });
  std::vector<Tensor> now;
  for (int owner = 0; owner < owners; ++owner) {
    for (const Tensor& w : Layer(owner).weights) now.push_back(w);
  }
  const auto copy = [&] {
    std::vector<Tensor> all;
    for (const Tensor& w : now) all.push_back(w.detach().clone().set_requires_grad(true));
    return all;
  };
  std::vector<std::vector<Tensor>> versions{copy()};
  std::map<int, std::unique_ptr<Opt>> optimizers;  // by trainer
  for (size_t i = 0; i < log.size(); ++i) {
    const Done& done = log[i];
    ASSERT_EQ(done.number, i + 1) << "each step has a number of its own";
    for (const int64_t read : done.read) {
      ASSERT_EQ(read, done.read[0]) << "all owners were read in one state";
    }
    ASSERT_LE(done.read[0], static_cast<int64_t>(i));
    const auto& then = versions[static_cast<size_t>(done.read[0])];
    Tensor x = batch(done.trainer, done.iteration);
    for (size_t part = 0; part + 1 < then.size(); part += 2) {
      x = Layer::apply({then[part], then[part + 1]}, x);
    }
    const auto gradients = torch::autograd::grad({loss_of(x)}, then);
    for (size_t p = 0; p < now.size(); ++p) now[p].mutable_grad() = gradients[p];
    auto& optimizer = optimizers[done.trainer];
    if (!optimizer) optimizer = std::make_unique<Opt>(now, options);
    optimizer->step();
    versions.push_back(copy());
  }
  for (int owner = 0; owner < owners; ++owner) {
    for (size_t p = 0; p < 2; ++p) {
      EXPECT_TRUE(at::equal(layers[static_cast<size_t>(owner)]->weights[p],
                            now[2 * static_cast<size_t>(owner) + p]));
    }
  }
}

}  // namespace farspan::testing
