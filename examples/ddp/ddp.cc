// Several ranks train one net, each on its share of MNIST: DistributedDataParallel averages the
// gradients while backward still runs. README.md walks through this file.
#include <farspan/farspan.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <CLI/CLI.hpp>
#include <optional>

#include "console/curves.h"
#include "console/format.h"
#include "console/progress.h"
#include "console/run_options.h"
#include "console/stopwatch.h"
#include "console/table.h"
#include "mnist/dataset.h"
#include "mnist/net.h"
#include "mnist/small_net.h"
#include "training/checkpoint.h"
#include "training/device.h"

namespace dist = farspan::dist;
using Seconds = std::chrono::duration<double>;
using Ddp = dist::DistributedDataParallel<mnist::SmallNet>;

struct Settings : console::RunOptions {
  int ranks = 2;
  double momentum = 0.9;
  std::string checkpoint;  // empty: none
  int64_t checkpoint_every = 100;
};

// Where the time of all steps went, on one rank.
struct Times {
  Seconds compute{0}, communication{0}, hidden{0};

  void add(const dist::DdpTimes& step) {
    compute += step.forward + step.backward;
    communication += step.communication;
    hidden += step.overlap;
  }
  Times average_of_ranks() const {
    const at::Tensor all =
        at::tensor({compute.count(), communication.count(), hidden.count()}, at::kDouble);
    dist::all_reduce(all, {.op = dist::ReduceOp::kAvg});
    const auto at = [&](int64_t i) { return Seconds(all[i].item<double>()); };
    return {at(0), at(1), at(2)};
  }
};

// Of the module itself: only rank 0 asks.
double accuracy_of(Ddp& ddp, const mnist::Dataset& data) {
  ddp.eval();
  const at::Device device = ddp.parameters().front().device();
  const double accuracy = mnist::accuracy(
      [&](const at::Tensor& images) { return ddp.module()->forward(images.to(device)).cpu(); },
      data);
  ddp.train();
  return accuracy;
}

// Rank 0's view of the run.
struct Watched {
  Watched(int64_t all_steps, int64_t done)
      : steps(all_steps), progress({.steps = all_steps, .done = done}), curves(done) {
    if (done == 0) return;
    progress.note("resumed at step " + std::to_string(done) + " of " + std::to_string(steps) +
                  " with " + console::count(dist::get_world_size(), "rank"));
  }

  void step(const at::Tensor& loss, const at::Tensor& scores, const at::Tensor& labels, Ddp& ddp) {
    constexpr int64_t kLooks = 10;  // times in a run
    progress.step(loss.item<double>(), labels.numel() * dist::get_world_size());
    const int64_t step = curves.add_batch(loss.item<double>(), mnist::share_right(scores, labels));
    if (step % (steps / kLooks + 1) != steps / kLooks) return;
    curves.add_test(step, accuracy_of(ddp, test.sample(1000)));
  }

  const int64_t steps;
  const mnist::Dataset test = mnist::load_test();
  console::Progress progress;
  console::TrainingCurves curves;
};

Times train(const Settings& settings, const mnist::Dataset& data, checkpoint::Run& run, Ddp& ddp,
            Watched* watched) {
  Times times;
  const at::Device device = ddp.parameters().front().device();
  for (auto epoch = run.sampler.epoch(); epoch < uint64_t(settings.epochs); ++epoch) {
    run.sampler.set_epoch(epoch);
    run.sampler.reset();
    while (const auto batch = run.sampler.next(static_cast<size_t>(settings.batch_size))) {
      const at::Tensor chosen = at::tensor(std::vector<int64_t>(batch->begin(), batch->end()));
      const at::Tensor labels = data.labels.index_select(0, chosen).to(device);
      run.optimizer.zero_grad();
      const at::Tensor scores = ddp(data.images.index_select(0, chosen).to(device));
      const at::Tensor loss = torch::nn::functional::nll_loss(scores, labels);
      loss.backward();
      run.optimizer.step();
      times.add(ddp.statistics().last.back());
      run.steps += 1, run.samples += labels.numel() * dist::get_world_size();
      if (!watched) continue;
      watched->step(loss, scores, labels, ddp);
      const bool due = run.steps % settings.checkpoint_every == 0 || run.steps == watched->steps;
      if (due && !settings.checkpoint.empty()) checkpoint::save(settings.checkpoint, run);
    }
  }
  return times;
}

void print_result(const Settings& settings, Watched& watched, Ddp& ddp, const Times& times,
                  int64_t samples, Seconds took) {
  const std::string title = "Data parallel, " + console::count(dist::get_world_size(), "rank");
  const double accuracy = accuracy_of(ddp, watched.test.sample(settings.images));
  watched.curves.add_test(watched.steps, accuracy);
  watched.curves.write(settings.curves, title);
  console::Table table(title);
  table.row("accuracy on the test images", console::percent(accuracy, 2))
      .row("samples/s", console::count(std::llround(double(samples) / took.count())))
      .row("computing", console::duration(times.compute))
      .row("communicating", console::duration(times.communication))
      .row("of that hidden behind computing", console::duration(times.hidden))
      .row("gradients in each step", console::bytes(double(ddp.statistics().parameter_bytes)))
      .row("time", console::duration(took))
      .row("curves", settings.curves);
  console::print(table);
}

void run(const Settings& settings) {
  at::set_num_threads(1);
  farspan::keep_freed_memory();
  const training::Device device(settings.device);
  dist::init_process_group(device.backend());
  at::manual_seed(settings.seed + static_cast<uint64_t>(dist::get_rank()));  // dropout's
  const auto net = std::make_shared<mnist::SmallNet>();
  net->to(device.own());
  torch::optim::SGD optimizer(net->parameters(),
                              torch::optim::SGDOptions(settings.lr).momentum(settings.momentum));
  const mnist::Dataset data = mnist::load_train().sample(settings.images);
  dist::DistributedSampler sampler(static_cast<size_t>(data.size()), {.seed = settings.seed});
  checkpoint::Run run{*net, optimizer, sampler};
  checkpoint::resume(settings.checkpoint, run);
  const int64_t samples_before = run.samples;
  Ddp ddp(net);  // rank 0's parameters come to all
  std::optional<Watched> watched;
  if (dist::get_rank() == 0) {
    const int64_t left = checkpoint::steps_left(run, settings.epochs, settings.batch_size);
    watched.emplace(run.steps + left, run.steps);
  }
  console::Stopwatch stopwatch;
  stopwatch.start();
  const Times times =
      train(settings, data, run, ddp, watched ? &*watched : nullptr).average_of_ranks();
  const Seconds took(stopwatch.seconds());
  if (watched) {
    watched->progress.finish();
    print_result(settings, *watched, ddp, times, run.samples - samples_before, took);
  }
  dist::destroy_process_group();
}

int main(int argc, char** argv) {
  Settings settings;
  settings.lr = 0.05;
  settings.curves = "ddp.svg";
  CLI::App app("Ranks learn MNIST together, each on its share of the images.");
  auto* const ranks = app.add_option("--ranks", settings.ranks, "processes, without a launcher")
                          ->check(CLI::Range(1, 64))
                          ->capture_default_str();
  app.add_option("--momentum", settings.momentum, "of SGD")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  console::check_written(
      app.add_option("--checkpoint", settings.checkpoint, "go on from this file, and write it"));
  app.add_option("--checkpoint-every", settings.checkpoint_every, "steps between two of them")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  console::add_run_options(app, settings);
  console::add_device_option(app, settings);
  CLI11_PARSE(app, argc, argv);
  if (*ranks && dist::is_launched()) {
    std::fputs("--ranks is the launcher's to say here (torchrun, mpirun, srun or WORLD_SIZE)\n",
               stderr);
    return 2;
  }
  return dist::record([&] {     // torchrun gets to know of what goes wrong
    if (dist::is_launched()) {  // torchrun, mpirun, srun, or RANK and the like
      run(settings);
    } else {
      farspan::spawn(settings.ranks, [&](int, int) { run(settings); });
    }
  });
}
