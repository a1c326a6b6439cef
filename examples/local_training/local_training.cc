// The training of the parameter server's example as a plain LibTorch program: no workers, no calls.
// same_as_local_test.py compares the two.
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include <ATen/Parallel.h>
#include <cstdio>
#include <string>

#include "mnist/batches.h"
#include "mnist/net.h"

// local_training SEED LR BATCH_SIZE IMAGES EPOCHS prints loss and share of right guesses of each
// batch, and at last the accuracy on the test images.
int main(int, char** argv) {
  const uint64_t seed = std::stoull(argv[1]);
  const double lr = std::stod(argv[2]);
  const int64_t batch_size = std::stoll(argv[3]), images = std::stoll(argv[4]);
  at::set_num_threads(1);
  at::manual_seed(seed);
  mnist::Net net;
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(lr));
  const mnist::Batches batches(mnist::load_train().sample(images),
                               {.batch_size = batch_size, .seed = seed});
  for (int epoch = 0; epoch < std::stoi(argv[5]); ++epoch) {
    for (const auto& [pictures, labels] : batches.epoch(epoch)) {
      optimizer.zero_grad();
      const at::Tensor scores = net.forward(pictures);
      const at::Tensor loss = torch::nn::functional::nll_loss(scores, labels);
      loss.backward();
      optimizer.step();
      std::printf("%.17g %.17g\n", loss.item<double>(), mnist::share_right(scores, labels));
    }
  }
  const auto forward = [&](const at::Tensor& pictures) { return net.forward(pictures); };
  std::printf("%.17g\n", mnist::accuracy(forward, mnist::load_test().sample(images)));
}
