// What a machine lets a job of two take turns for: the training of examples/parameter_server by two
// threads of one process, without a call, a message or a copy. One has the net and does what the
// server does, the other what the trainer does; who waits for the other sleeps. On some machines a
// processor that has slept for a moment computes more slowly for a while.
//
//   taking_turns [--images N]
#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>

#include <farspan/c10d/base/freed_memory.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "bench/figures.h"
#include "mnist/batches.h"
#include "mnist/net.h"
#include "support/process_use.h"

namespace {

// A thread that works while its caller sleeps, and sleeps else.
class Other {
 public:
  Other() : thread_([this] { serve(); }) {}
  ~Other() {
    hand_over(nullptr);
    thread_.join();
  }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;

  void run(std::function<void()> work) {
    hand_over(std::move(work));
    await(false);
  }

 private:
  void hand_over(std::function<void()> work) {
    work_ = std::move(work);
    turn(true);
  }
  void serve() {
    for (at::set_num_threads(1);; turn(false)) {
      await(true);
      if (!work_) return;
      work_();
    }
  }
  void turn(bool is_its) {
    {
      const std::lock_guard lock(mutex_);
      is_its_turn_ = is_its;
    }
    turned_.notify_one();
  }
  void await(bool is_its) {
    std::unique_lock lock(mutex_);
    turned_.wait(lock, [&] { return is_its_turn_ == is_its; });
  }

  std::mutex mutex_;
  std::condition_variable turned_;
  bool is_its_turn_ = false;
  std::function<void()> work_;  // of whose turn it is; null: no more
  std::thread thread_;
};

double processor_seconds() {
  return std::chrono::duration<double>(farspan::testing::processor_time()).count();
}

int train(int64_t samples) {
  constexpr uint64_t kSeed = 1;
  constexpr int64_t kLooks = 10, kLookAt = 1000;
  at::set_num_threads(1);
  farspan::keep_freed_memory();
  at::manual_seed(kSeed);
  mnist::Net net;
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(0.05));
  const mnist::Batches batches(mnist::load_train().sample(samples),
                               {.batch_size = 32, .seed = kSeed});
  const mnist::Dataset test = mnist::load_test().sample(std::min(samples, kLookAt));
  const int64_t steps = batches.size();
  int64_t step = 0;
  double loss_there = 0, right_there = 0;
  Other server;

  const bench::Stopwatch stopwatch;
  const double used_before = processor_seconds();
  for (const auto& [images, labels] : batches.epoch(0)) {
    at::Tensor there;
    server.run([&, images = images] { there = net.forward(images); });
    const at::Tensor scores = there.detach().requires_grad_();
    const at::Tensor loss = torch::nn::functional::nll_loss(scores, labels);
    const double right = mnist::share_right(scores, labels);
    loss.backward();
    server.run([&] { there.backward(scores.grad()); });
    server.run([&] {
      optimizer.step();
      optimizer.zero_grad();
    });
    server.run([&] {
      loss_there += loss.item<double>();
      right_there += right;
      if (step++ % (steps / kLooks + 1) != steps / kLooks) return;
      mnist::accuracy([&](const at::Tensor& shown) { return net.forward(shown); }, test);
    });
  }
  const double took = stopwatch.microseconds() / 1e6;
  bench::report("epoch batch 32", double(batches.samples()) / took, "samples/s");
  bench::report("epoch batch 32, processor time", processor_seconds() - used_before, "s");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) return train(60'000);
  const int64_t samples = argc == 3 && std::strcmp(argv[1], "--images") == 0 ? atoll(argv[2]) : 0;
  if (samples > 0) return train(samples);
  std::fprintf(stderr, "usage: taking_turns [--images N]\n");
  return 2;
}
