#include "mnist/small_net.h"

#include <ATen/Functions.h>

namespace mnist {

SmallNet::SmallNet()
    : conv1(register_module("conv1", torch::nn::Conv2d(1, 10, 5))),
      conv2(register_module("conv2", torch::nn::Conv2d(10, 20, 5))),
      dropout2d(register_module("dropout2d", torch::nn::Dropout2d())),
      dropout(register_module("dropout", torch::nn::Dropout())),
      linear1(register_module("linear1", torch::nn::Linear(320, 50))),
      linear2(register_module("linear2", torch::nn::Linear(50, 10))) {}

at::Tensor SmallNet::forward(const at::Tensor& images) {
  const at::Tensor edges = at::relu(at::max_pool2d(conv1(images), 2));
  const at::Tensor shapes = at::relu(at::max_pool2d(dropout2d(conv2(edges)), 2));
  const at::Tensor features = dropout(at::relu(linear1(shapes.flatten(1))));
  return at::log_softmax(linear2(features), 1);
}

}  // namespace mnist
