// The net and the data that DDP's parity cases train, here and in ddp_pytorch.py.
#pragma once

#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

namespace farspan::testing {

inline at::Tensor parity_numbers(at::IntArrayRef shape, int64_t seed) {
  const at::Tensor index = at::arange(c10::multiply_integers(shape), at::kDouble);
  return (index * 0.37 + static_cast<double>(seed) * 1.3).sin().reshape(shape);
}

// [batch, 1, 6, 6] -> [batch, 5], logarithms of probabilities.
struct ParityNet : torch::nn::Module {
  explicit ParityNet(at::ScalarType type) {
    conv = register_module("conv", torch::nn::Conv2d(1, 4, 3));
    first = register_module("first", torch::nn::Linear(64, 16));
    second = register_module("second", torch::nn::Linear(16, 5));
    to(type);
    const at::NoGradGuard no_grad;
    int64_t seed = 0;
    for (at::Tensor& one : parameters()) one.copy_(parity_numbers(one.sizes(), seed++) * 0.3);
  }
  at::Tensor forward(const at::Tensor& images) {
    const at::Tensor maps = conv->forward(images).tanh().flatten(1);
    return second->forward(first->forward(maps).tanh()).log_softmax(1);
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear first{nullptr}, second{nullptr};
};

// What a rank has in a step: images [8, 1, 6, 6], labels [8].
struct ParityShard {
  ParityShard(int step, int rank, at::ScalarType type)
      : images(parity_numbers({8, 1, 6, 6}, 1000 + step * 10 + rank).to(type)),
        labels((at::arange(8) * 3 + step + rank) % 5) {}
  at::Tensor images, labels;
};

}  // namespace farspan::testing
