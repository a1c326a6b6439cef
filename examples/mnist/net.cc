#include "mnist/net.h"

#include <algorithm>

#include <ATen/Functions.h>
#include <c10/core/GradMode.h>

namespace mnist {

Convolutions::Convolutions()
    : conv1(register_module("conv1", torch::nn::Conv2d(1, 32, 3))),
      conv2(register_module("conv2", torch::nn::Conv2d(32, 64, 3))) {}

at::Tensor Convolutions::forward(const at::Tensor& images) {
  return conv2(at::relu(conv1(images)));
}

Classifier::Classifier()
    : linear1(register_module("linear1", torch::nn::Linear(9216, 128))),
      linear2(register_module("linear2", torch::nn::Linear(128, 10))) {}

at::Tensor Classifier::forward(const at::Tensor& maps) {
  const at::Tensor features = at::max_pool2d(at::relu(maps), 2).flatten(1);
  return at::log_softmax(linear2(at::relu(linear1(features))), 1);
}

Net::Net()
    : convolutions(register_module("convolutions", std::make_shared<Convolutions>())),
      classifier(register_module("classifier", std::make_shared<Classifier>())) {}

at::Tensor Net::forward(const at::Tensor& images) {
  return classifier->forward(convolutions->forward(images));
}

double share_right(const at::Tensor& scores, const at::Tensor& labels) {
  return scores.argmax(1).eq(labels).to(at::kDouble).mean().item<double>();
}

double accuracy(const std::function<at::Tensor(const at::Tensor&)>& forward, const Dataset& data,
                int64_t batch_size) {
  const c10::NoGradGuard no_grad;
  int64_t right = 0;
  for (int64_t begin = 0; begin < data.size(); begin += batch_size) {
    const int64_t end = std::min(begin + batch_size, data.size());
    const at::Tensor guesses = forward(data.images.slice(0, begin, end)).argmax(1);
    right += guesses.eq(data.labels.slice(0, begin, end)).sum().item<int64_t>();
  }
  return static_cast<double>(right) / static_cast<double>(data.size());
}

}  // namespace mnist
