// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// SmallNet: two small convolutions with dropout and two linear layers, 21,840 parameters.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

namespace mnist {

// [batch, 1, 28, 28] -> [batch, 10], logarithms of the digits' probabilities.
//
// A step takes milliseconds, so that what averaging the gradients costs can be seen.
struct SmallNet : torch::nn::Module {
  SmallNet();
  at::Tensor forward(const at::Tensor& images);
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
  torch::nn::Dropout2d dropout2d{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear linear1{nullptr}, linear2{nullptr};
};

}  // namespace mnist
