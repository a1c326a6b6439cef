// Several ranks train one net, each on its share of MNIST: DistributedDataParallel averages the
// gradients while backward still runs. README.md walks through this file.
#include <farspan/farspan.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <CLI/CLI.hpp>
#include <cstdio>
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

namespace dist = farspan::dist;
using Seconds = std::chrono::duration<double>;
using Ddp = dist::DistributedDataParallel<mnist::SmallNet>;

struct Settings : console::RunOptions {
  int ranks = 2;
  double momentum = 0.9;
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
  const double accuracy = mnist::accuracy(
      [&](const at::Tensor& images) { return ddp.module()->forward(images); }, data);
  ddp.train();
  return accuracy;
}

// Rank 0's view of the run.
struct Watched {
  explicit Watched(int64_t all_steps) : steps(all_steps), progress({.steps = all_steps}) {}

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

Times train(const Settings& settings, const mnist::Dataset& data, dist::DistributedSampler& sampler,
            Ddp& ddp, Watched* watched) {
  torch::optim::SGD optimizer(ddp.parameters(),
                              torch::optim::SGDOptions(settings.lr).momentum(settings.momentum));
  Times times;
  for (int epoch = 0; epoch < settings.epochs; ++epoch) {
    sampler.set_epoch(static_cast<uint64_t>(epoch));
    sampler.reset();
    while (const auto batch = sampler.next(static_cast<size_t>(settings.batch_size))) {
      const at::Tensor chosen = at::tensor(std::vector<int64_t>(batch->begin(), batch->end()));
      const at::Tensor labels = data.labels.index_select(0, chosen);
      optimizer.zero_grad();
      const at::Tensor scores = ddp(data.images.index_select(0, chosen));
      const at::Tensor loss = torch::nn::functional::nll_loss(scores, labels);
      loss.backward();
      optimizer.step();
      times.add(ddp.statistics().last.back());
      if (watched) watched->step(loss, scores, labels, ddp);
    }
  }
  return times;
}

void print_result(const Settings& settings, Watched& watched, Ddp& ddp, const Times& times,
                  Seconds took) {
  const int ranks = dist::get_world_size();
  const std::string title =
      "Data parallel, " + std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks");
  const double accuracy = accuracy_of(ddp, watched.test.sample(settings.images));
  watched.curves.add_test(watched.steps, accuracy);
  watched.curves.write(settings.curves, title);
  console::Table table(title);
  table.row("accuracy on the test images", console::percent(accuracy, 2))
      .row("samples/s",
           console::count(std::llround(double(settings.epochs * settings.images) / took.count())))
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
  dist::init_process_group("cpu");
  at::manual_seed(settings.seed + static_cast<uint64_t>(dist::get_rank()));  // dropout's
  const auto net = std::make_shared<mnist::SmallNet>();  // rank 0's comes to all
  Ddp ddp(net);
  const mnist::Dataset data = mnist::load_train().sample(settings.images);
  dist::DistributedSampler sampler(static_cast<size_t>(data.size()), {.seed = settings.seed});
  const auto samples = static_cast<int64_t>(sampler.size());
  std::optional<Watched> watched;
  if (dist::get_rank() == 0) {
    watched.emplace(settings.epochs * ((samples + settings.batch_size - 1) / settings.batch_size));
  }
  console::Stopwatch stopwatch;
  stopwatch.start();
  const Times times =
      train(settings, data, sampler, ddp, watched ? &*watched : nullptr).average_of_ranks();
  const Seconds took(stopwatch.seconds());
  if (watched) {
    watched->progress.finish();
    print_result(settings, *watched, ddp, times, took);
  }
  dist::destroy_process_group();
}

int main(int argc, char** argv) {
  Settings settings;
  settings.lr = 0.05;
  settings.curves = "ddp.svg";
  CLI::App app("Ranks learn MNIST together, each on its share of the images.");
  app.add_option("--ranks", settings.ranks, "processes, unless a launcher starts them")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  app.add_option("--momentum", settings.momentum, "of SGD")->capture_default_str();
  console::add_run_options(app, settings);
  CLI11_PARSE(app, argc, argv);
  try {
    if (dist::is_launched()) {  // torchrun, mpirun, srun, or RANK and the like
      run(settings);
    } else {
      farspan::spawn(settings.ranks, [&](int, int) { run(settings); });
    }
  } catch (const farspan::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
