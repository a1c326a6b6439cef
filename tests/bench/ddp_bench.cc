// farspan's DistributedDataParallel: ddp_bench --net small|large [--alone].
// With --alone each process trains by itself, and never waits for the other: the limit.
#include <farspan/farspan.h>

#include <ATen/Parallel.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <string_view>

#include "bench/figures.h"
#include "mnist/small_net.h"

namespace dist = farspan::dist;
using at::Tensor;

namespace {

constexpr int kRanks = 2;

// 25,076,712 parameters, nearly all of the time in matrix products.
struct LargeNet : torch::nn::Module {
  LargeNet() {
    linear1 = register_module("linear1", torch::nn::Linear(1024, 4096));
    linear2 = register_module("linear2", torch::nn::Linear(4096, 4096));
    linear3 = register_module("linear3", torch::nn::Linear(4096, 1000));
  }
  Tensor forward(const Tensor& x) {
    return at::log_softmax(linear3(at::relu(linear2(at::relu(linear1(x))))), 1);
  }
  torch::nn::Linear linear1{nullptr}, linear2{nullptr}, linear3{nullptr};
};

// Steps a second of this process: the median of five batches of them.
template <class Step>
double rate_of(int steps, const Step& step) {
  for (int i = 0; i < 3; ++i) step();
  std::vector<double> rates;
  for (int batch = 0; batch < 5; ++batch) {
    dist::barrier();
    const bench::Stopwatch stopwatch;
    for (int i = 0; i < steps; ++i) step();
    rates.push_back(steps / stopwatch.microseconds() * 1e6);
  }
  return bench::median(rates);
}

template <class Net>
double train(const Tensor& x, int64_t classes, int steps, bool alone) {
  const auto net = std::make_shared<Net>();
  std::optional<dist::DistributedDataParallel<Net>> ddp;
  if (!alone) ddp.emplace(net);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.5));
  const Tensor labels = at::randint(classes, {x.size(0)}, at::kLong);
  return rate_of(steps, [&] {
    optimizer.zero_grad();
    const Tensor scores = ddp ? (*ddp)(x) : net->forward(x);
    torch::nn::functional::nll_loss(scores, labels).backward();
    optimizer.step();
  });
}

void measure(int rank, bool large, bool alone) {
  at::set_num_threads(1);
  farspan::keep_freed_memory();
  at::manual_seed(1);
  dist::init_process_group("cpu");
  const double own = large ? train<LargeNet>(at::randn({32, 1024}), 1000, 8, alone)
                           : train<mnist::SmallNet>(at::randn({64, 1, 28, 28}), 10, 100, alone);
  const Tensor rate = at::full({1}, own, at::kDouble);
  dist::all_reduce(rate, {.op = dist::ReduceOp::kAvg});
  if (rank == 0) {
    const double steps = rate.item<double>();
    bench::report(large ? "step 25 M parameters world 2" : "step MNIST net world 2", steps,
                  "steps/s");
    bench::report(
        large ? "step 25 M parameters, same malloc world 2" : "step MNIST net, same malloc world 2",
        steps, "steps/s");
  }
  dist::destroy_process_group();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view net = argc > 2 ? argv[2] : "";
  const bool alone = argc == 4 && std::string_view(argv[3]) == "--alone";
  if ((argc != 3 && !alone) || std::string_view(argv[1]) != "--net" ||
      (net != "small" && net != "large")) {
    std::fprintf(stderr, "usage: %s --net small|large [--alone]\n", argv[0]);
    return 2;
  }
  farspan::spawn(kRanks, [&](int rank, int) { measure(rank, net == "large", alone); });
}
