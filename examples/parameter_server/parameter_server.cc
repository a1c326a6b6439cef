// A parameter server trains MNIST: rank 0 owns the model, the trainers hold nothing but a reference
// to it. README.md walks through this file.
#include <farspan/farspan.h>
#include <torch/nn/functional/loss.h>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <mutex>

#include "console/curves.h"
#include "console/progress.h"
#include "console/table.h"
#include "mnist/batches.h"
#include "mnist/net.h"

using mnist::Net;
using Seconds = std::chrono::duration<double>;

struct Settings {
  int trainers = 2, epochs = 1, batch_size = 64;
  double lr = 0.05;
  uint64_t seed = 1;
  std::string transport, curves = "parameter_server.svg";
};

// What a trainer has to tell at its end.
struct Report {
  std::vector<double> calls;      // seconds each
  double waiting = 0, total = 0;  // seconds
  uint64_t rpcs = 0, bytes = 0;
};
FARSPAN_STRUCT(Report, calls, waiting, total, rpcs, bytes);

// The server's side.
std::shared_ptr<Net> the_net;
std::unique_ptr<console::Progress> progress;
std::mutex mutex;
std::vector<console::Point> losses;
std::vector<Report> reports;

std::shared_ptr<Net> share_net() { return the_net; }
void trained(double loss, int64_t samples) {
  progress->step(loss, samples);
  std::lock_guard lock(mutex);
  losses.push_back({static_cast<double>(losses.size()), loss});
}
void finished(const Report& report) {
  std::lock_guard lock(mutex);
  reports.push_back(report);
}
FARSPAN_REGISTER(share_net, trained, finished);
FARSPAN_REGISTER_METHODS(Net, forward, parameters);

void train(const Settings& settings, int trainer) {
  const mnist::Batches batches(mnist::load_train(), {.batch_size = settings.batch_size,
                                                     .seed = settings.seed,
                                                     .shard = trainer,
                                                     .shards = settings.trainers});
  const auto net = farspan::remote("ps", share_net);
  farspan::DistributedOptimizer<torch::optim::SGD> optimizer(farspan::parameter_rrefs(net),
                                                             torch::optim::SGDOptions(settings.lr));
  Report report;
  const auto begun = farspan::Clock::now();
  const auto timed = [&](auto&& call) {
    const auto start = farspan::Clock::now();
    auto result = call();
    report.calls.push_back(Seconds(farspan::Clock::now() - start).count());
    return result;
  };
  for (int epoch = 0; epoch < settings.epochs; ++epoch) {
    for (const auto& [images, labels] : batches.epoch(epoch)) {
      farspan::dist_autograd::Context context;
      const auto scores = timed([&] { return net.rpc_sync(&Net::forward, images); });
      const auto loss = torch::nn::functional::nll_loss(scores, labels);
      timed([&] { return context.backward({loss}), 0; });
      timed([&] { return optimizer.step(context), 0; });
      farspan::rpc_async("ps", trained, loss.item<double>(), images.size(0));
    }
  }
  report.total = Seconds(farspan::Clock::now() - begun).count();
  for (const double seconds : report.calls) report.waiting += seconds;
  const auto counters = farspan::current_worker().counters();
  report.rpcs = counters.calls_sent;
  report.bytes = counters.bytes_sent + counters.bytes_received;
  farspan::rpc_sync("ps", finished, report);
}

void print_result(const Settings& settings, Seconds took, int64_t samples) {
  console::Summary summary{.title = "Parameter server, " + std::to_string(settings.trainers) +
                                    " trainers"};
  std::vector<double> calls;
  double waiting = 0, total = 0, bytes = 0;
  int64_t rpcs = 0;
  for (const Report& report : reports) {
    calls.insert(calls.end(), report.calls.begin(), report.calls.end());
    waiting += report.waiting;
    total += report.total;
    rpcs += static_cast<int64_t>(report.rpcs);
    bytes += static_cast<double>(report.bytes);
  }
  std::sort(calls.begin(), calls.end());
  summary.accuracy =
      mnist::accuracy([](const at::Tensor& x) { return the_net->forward(x); }, mnist::load_test());
  summary.samples_per_s = static_cast<double>(samples) / took.count();
  summary.rpcs = rpcs;
  summary.bytes = bytes;
  summary.rpc_p50 = Seconds(calls.at(calls.size() / 2));
  summary.rpc_p99 = Seconds(calls.at(calls.size() * 99 / 100));
  summary.waiting = waiting / total;
  summary.took = took;
  summary.curves = settings.curves;
  console::write_curves(settings.curves, summary.title, "step",
                        console::training_panels(
                            losses, {}, {{static_cast<double>(losses.size()), *summary.accuracy}}));
  console::print(summary);
}

void serve(const Settings& settings, const std::function<void()>& wait_for_trainers) {
  const int64_t samples = 60'000 * settings.epochs;
  const int64_t per_trainer = 60'000 / settings.trainers;
  const int64_t steps = settings.epochs * settings.trainers *
                        ((per_trainer + settings.batch_size - 1) / settings.batch_size);
  progress = std::make_unique<console::Progress>(console::ProgressOptions{.steps = steps});
  const auto begun = farspan::Clock::now();
  wait_for_trainers();
  const Seconds took = farspan::Clock::now() - begun;
  progress->finish();
  print_result(settings, took, samples);
}

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("A parameter server and its trainers learn MNIST over RPC.");
  app.add_option("--trainers", settings.trainers, "processes that train")->capture_default_str();
  app.add_option("--epochs", settings.epochs, "passes over the 60,000 images")
      ->capture_default_str();
  app.add_option("--batch-size", settings.batch_size, "images in one step")->capture_default_str();
  app.add_option("--lr", settings.lr, "learning rate of SGD")->capture_default_str();
  app.add_option("--seed", settings.seed, "of the weights and the order")->capture_default_str();
  app.add_option("--transport", settings.transport, "unix or tcp; the best one by itself");
  app.add_option("--curves", settings.curves, "where the picture goes")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    farspan::spawn(1 + settings.trainers, [&](int rank, int) {
      at::set_num_threads(1);
      at::manual_seed(settings.seed);
      if (rank == 0) the_net = std::make_shared<Net>();
      farspan::WorkerOptions options;
      if (!settings.transport.empty()) options.transports = {settings.transport};
      options.shutdown_timeout = farspan::kNoTimeout;  // the server waits as long as they train
      farspan::init_rpc(rank == 0 ? "ps" : "trainer" + std::to_string(rank), options);
      if (rank > 0) {
        train(settings, rank - 1);
        farspan::shutdown();
      } else {
        serve(settings, [] { farspan::shutdown(); });
      }
    });
  } catch (const farspan::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
