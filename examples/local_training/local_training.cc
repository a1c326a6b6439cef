// The training of ../parameter_server as a plain LibTorch program: one process, and no calls. What
// that one takes longer with one trainer is what the calls cost.
#include <farspan/farspan.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <CLI/CLI.hpp>

#include "console/curves.h"
#include "console/progress.h"
#include "console/run_options.h"
#include "console/stopwatch.h"
#include "console/table.h"
#include "mnist/batches.h"
#include "mnist/net.h"
#include "training/operator_times.h"

using Seconds = std::chrono::duration<double>;

void run(const console::RunOptions& settings) {
  at::set_num_threads(1);
  farspan::keep_freed_memory();
  at::manual_seed(settings.seed);
  mnist::Net net;
  torch::optim::SGD optimizer(net.parameters(), torch::optim::SGDOptions(settings.lr));
  const mnist::Batches batches(mnist::load_train().sample(settings.images),
                               {.batch_size = settings.batch_size, .seed = settings.seed});
  const mnist::Dataset test = mnist::load_test().sample(settings.images);
  const auto accuracy_on = [&](const mnist::Dataset& data) {
    return mnist::accuracy([&](const at::Tensor& images) { return net.forward(images); }, data);
  };
  const int64_t steps = settings.epochs * batches.size();
  console::Progress progress{{.steps = steps}};
  console::TrainingCurves curves;
  const training::OperatorTimes times;
  console::Stopwatch training;
  training.start();
  for (int epoch = 0; epoch < settings.epochs; ++epoch) {
    for (const auto& [images, labels] : batches.epoch(epoch)) {
      constexpr int64_t kLooks = 10, kLookAt = 1000;  // times in a run, images
      optimizer.zero_grad();
      const at::Tensor scores = net.forward(images);
      const at::Tensor loss = torch::nn::functional::nll_loss(scores, labels);
      const double right = mnist::share_right(scores, labels);
      loss.backward();
      optimizer.step();
      progress.step(loss.item<double>(), images.size(0));
      const int64_t step = curves.add_batch(loss.item<double>(), right);
      if (step % (steps / kLooks + 1) == steps / kLooks) {
        curves.add_test(step, accuracy_on(test.sample(kLookAt)));
      }
    }
  }
  training.stop();
  progress.finish();
  const training::Profile profile = times.so_far();
  const console::Summary summary{
      .title = "Local training",
      .accuracy = accuracy_on(test),
      .samples_per_s = double(settings.epochs * settings.images) / training.seconds(),
      .busy = Seconds(profile.busy),
      .in_operators = profile.share(),
      .operators = profile.largest(5),
      .curves = settings.curves,
  };
  curves.add_test(steps, *summary.accuracy);
  curves.write(settings.curves, summary.title);
  console::print(summary);
}

int main(int argc, char** argv) {
  console::RunOptions settings;
  settings.batch_size = 32;
  settings.lr = 0.05;
  settings.curves = "local_training.svg";
  CLI::App app("A model learns MNIST in one process.");
  console::add_run_options(app, settings);
  CLI11_PARSE(app, argc, argv);
  try {
    run(settings);
  } catch (const farspan::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
