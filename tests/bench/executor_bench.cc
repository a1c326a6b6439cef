// The executor beside LibTorch's engine, in one run: a small convolutional net, 400 tiny nodes, and
// a parameter used 100 times. One line a case, in microseconds for a backward pass (the median of
// rounds in which both take turns); a ratio below 1 means that ours is faster.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include <farspan/autograd/executor.h>

namespace {

using farspan::Clock;
using farspan::dist_autograd::Executor;
using farspan::dist_autograd::LeafGradients;
using Tensors = std::vector<at::Tensor>;

void ours(const at::Tensor& root) {
  Executor pass({}, std::make_shared<LeafGradients>(), nullptr);
  pass.walk(farspan::dist_autograd::make_roots({root}));
  pass.start();
  pass.run();
}

void engines(const at::Tensor& root, const Tensors& leaves) {
  torch::autograd::backward({root});
  for (const at::Tensor& leaf : leaves) leaf.mutable_grad() = at::Tensor();
}

double micros(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

double median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

void compare(const char* name, int rounds, const Tensors& leaves,
             const std::function<at::Tensor()>& forward) {
  std::vector<double> mine, theirs;
  for (int i = -rounds / 10; i < rounds; ++i) {            // the first ones warm up
    for (const bool is_mine : {i % 2 == 0, i % 2 != 0}) {  // each goes first as often
      const at::Tensor root = forward();
      const double time = micros([&] { is_mine ? ours(root) : engines(root, leaves); });
      if (i >= 0) (is_mine ? mine : theirs).push_back(time);
    }
  }
  std::printf("%-28s farspan %9.1f us   engine %9.1f us   ratio %.2f\n", name, median(mine),
              median(theirs), median(mine) / median(theirs));
}

at::Tensor leaf(at::IntArrayRef sizes) { return (at::randn(sizes) * 0.05).requires_grad_(); }

}  // namespace

int main() {
  at::set_num_threads(1);  // the overhead of the executors, not the threads of the kernels
  at::manual_seed(1);
  const Tensors p = {leaf({32, 1, 3, 3}), leaf({32}),  leaf({64, 32, 3, 3}), leaf({64}),
                     leaf({128, 9216}),   leaf({128}), leaf({10, 128}),      leaf({10})};
  const at::Tensor images = at::randn({32, 1, 28, 28}), labels = at::randint(10, {32}, at::kLong);
  compare("convolutional net, batch 32", 20, p, [&] {
    at::Tensor x = at::relu(at::conv2d(images, p[0], p[1]));
    x = at::max_pool2d(at::relu(at::conv2d(x, p[2], p[3])), 2).flatten(1);
    x = at::linear(at::relu(at::linear(x, p[4], p[5])), p[6], p[7]);
    return at::nll_loss(at::log_softmax(x, 1), labels);
  });

  const at::Tensor z = leaf({8});
  compare("400 tiny nodes", 400, {z}, [&] {
    at::Tensor s = z;
    for (int i = 0; i < 200; ++i) s = s * 1.001 + 0.1;
    return s.sum();
  });

  const at::Tensor w = leaf({32, 32}), x = at::randn({4, 32});
  compare("one parameter used 100 times", 200, {w}, [&] {
    at::Tensor h = x;
    for (int i = 0; i < 100; ++i) h = at::tanh(at::mm(h, w));
    return h.sum();
  });

  const at::Tensor one = leaf({});
  compare("a single node", 2000, {one}, [&] { return one * 2; });
}
