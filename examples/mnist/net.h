// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Net: two convolutions and two linear layers, 1,199,882 parameters, whole or in two stages.
#pragma once

#include <functional>
#include <memory>

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

#include "mnist/dataset.h"

namespace mnist {

// The first stage: [batch, 1, 28, 28] -> [batch, 64, 24, 24], 147 KB an image.
//
// The cut is behind the second convolution because the halves then cost the same: 6.0 and 5.2 ms
// for 16 images forward and backward on one core; behind the pooling it would be 8.7 and 2.9.
struct Convolutions : torch::nn::Module {
  Convolutions();
  at::Tensor forward(const at::Tensor& images);
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
};

// The second stage: [batch, 64, 24, 24] -> [batch, 10], logarithms of the digits' probabilities.
struct Classifier : torch::nn::Module {
  Classifier();
  at::Tensor forward(const at::Tensor& maps);
  torch::nn::Linear linear1{nullptr}, linear2{nullptr};
};

// Both stages on one worker: [batch, 1, 28, 28] -> [batch, 10].
//
// Without dropout: one epoch does not overfit, and runs with one seed stay comparable bit by bit.
struct Net : torch::nn::Module {
  Net();
  at::Tensor forward(const at::Tensor& images);
  std::shared_ptr<Convolutions> convolutions;
  std::shared_ptr<Classifier> classifier;
};

// The share of the guesses that are right, 0 to 1.
//   scores  [batch, 10]
//   labels  [batch]
double share_right(const at::Tensor& scores, const at::Tensor& labels);

// The share of `data` that `forward` gets right, 0 to 1, without recording gradients.
//   forward  [batch, 1, 28, 28] -> [batch, 10]; called with up to `batch_size` images at a time
double accuracy(const std::function<at::Tensor(const at::Tensor&)>& forward, const Dataset& data,
                int64_t batch_size = 1000);

}  // namespace mnist
