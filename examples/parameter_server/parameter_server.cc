// A parameter server trains MNIST: rank 0 owns the model, the trainers hold nothing but a reference
// to it. README.md walks through this file.
#include <farspan/farspan.h>
#include <torch/nn/functional/loss.h>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <mutex>

#include "console/curves.h"
#include "console/progress.h"
#include "console/run_options.h"
#include "console/table.h"
#include "mnist/batches.h"
#include "mnist/net.h"

using mnist::Net;
using Seconds = std::chrono::duration<double>;

struct Settings : console::RunOptions {
  int trainers = 2;

  mnist::BatchOptions batches(int trainer) const {
    return {.batch_size = batch_size, .seed = seed, .shard = trainer, .shards = trainers};
  }
};

// What a trainer has to tell at its end.
struct Report {
  std::vector<double> calls;      // seconds each
  double waiting = 0, total = 0;  // seconds
  uint64_t rpcs = 0, bytes = 0;
};
FARSPAN_STRUCT(Report, calls, waiting, total, rpcs, bytes);

// The server's side.
struct Server {
  Server(const Settings& settings, int64_t all_steps)
      : steps(all_steps), test(mnist::load_test().sample(settings.images)) {}

  double accuracy_on(const mnist::Dataset& data) const {
    return mnist::accuracy([this](const at::Tensor& images) { return net->forward(images); }, data);
  }

  const int64_t steps;  // of the whole run
  const mnist::Dataset test;
  const std::shared_ptr<Net> net = std::make_shared<Net>();
  console::Progress progress{{.steps = steps}};
  std::mutex mutex;  // for what is below
  std::vector<console::Point> losses, train_accuracies, test_accuracies;
  std::vector<Report> reports;
};
std::unique_ptr<Server> server;

std::shared_ptr<Net> share_net() { return server->net; }
void trained(double loss, double right, int64_t samples) {
  constexpr int64_t kLooks = 10, kLookAt = 1000;  // times in a run, images
  server->progress.step(loss, samples);
  std::unique_lock lock(server->mutex);
  const auto step = static_cast<int64_t>(server->losses.size());
  server->losses.push_back({double(step), loss});
  server->train_accuracies.push_back({double(step), right});
  if (step % (server->steps / kLooks + 1) != server->steps / kLooks) return;
  lock.unlock();
  const double accuracy = server->accuracy_on(server->test.sample(kLookAt));
  lock.lock();
  server->test_accuracies.push_back({double(step), accuracy});
}
void finished(const Report& report) {
  std::lock_guard lock(server->mutex);
  server->reports.push_back(report);
}
FARSPAN_REGISTER(share_net, trained, finished);
FARSPAN_REGISTER_METHODS(Net, forward, parameters);

void train(const Settings& settings, const mnist::Batches& batches) {
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
      farspan::rpc_sync("ps", trained, loss.item<double>(), mnist::share_right(scores, labels),
                        images.size(0));
    }
  }
  report.total = Seconds(farspan::Clock::now() - begun).count();
  for (const double seconds : report.calls) report.waiting += seconds;
  const auto counters = farspan::current_worker().counters();
  report.rpcs = counters.calls_sent;
  report.bytes = counters.bytes_sent + counters.bytes_received;
  farspan::rpc_sync("ps", finished, report);
}

void print_result(const Settings& settings, Seconds took) {
  console::Summary summary{.title = "Parameter server, " + std::to_string(settings.trainers) +
                                    (settings.trainers == 1 ? " trainer" : " trainers")};
  std::vector<double> calls;
  double waiting = 0, total = 0, bytes = 0;
  int64_t rpcs = 0;
  for (const Report& report : server->reports) {
    calls.insert(calls.end(), report.calls.begin(), report.calls.end());
    waiting += report.waiting;
    total += report.total;
    rpcs += static_cast<int64_t>(report.rpcs);
    bytes += static_cast<double>(report.bytes);
  }
  std::sort(calls.begin(), calls.end());
  summary.accuracy = server->accuracy_on(server->test);
  summary.samples_per_s = double(settings.epochs * settings.images) / took.count();
  summary.rpcs = rpcs;
  summary.bytes = bytes;
  summary.rpc_p50 = Seconds(calls.at(calls.size() / 2));
  summary.rpc_p99 = Seconds(calls.at(calls.size() * 99 / 100));
  summary.waiting = waiting / total;
  summary.curves = settings.curves;
  server->test_accuracies.push_back({double(server->steps), *summary.accuracy});
  console::write_curves(
      settings.curves, summary.title, "step",
      console::training_panels(server->losses, server->train_accuracies, server->test_accuracies));
  console::print(summary);
}

int main(int argc, char** argv) {
  Settings settings;
  settings.curves = "parameter_server.svg";
  CLI::App app("A parameter server and its trainers learn MNIST over RPC.");
  app.add_option("--trainers", settings.trainers, "processes that train")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  console::add_run_options(app, settings);
  CLI11_PARSE(app, argc, argv);
  try {
    farspan::spawn(1 + settings.trainers, [&](int rank, int) {
      at::set_num_threads(1);
      at::manual_seed(settings.seed);
      farspan::WorkerOptions options;
      options.transports = settings.transports();
      options.shutdown_timeout = farspan::kNoTimeout;  // the server waits as long as they train
      if (rank > 0) {
        const mnist::Batches batches(mnist::load_train().sample(settings.images),
                                     settings.batches(rank - 1));
        farspan::init_rpc("trainer" + std::to_string(rank), options);
        train(settings, batches);
        return farspan::shutdown();
      }
      int64_t steps = 0;
      for (int trainer = 0; trainer < settings.trainers; ++trainer) {
        steps += settings.epochs * mnist::batches_of(settings.batches(trainer), settings.images);
      }
      server = std::make_unique<Server>(settings, steps);
      farspan::init_rpc("ps", options);
      const auto begun = farspan::Clock::now();
      farspan::shutdown();  // when all trainers have come to their ends
      const Seconds took = farspan::Clock::now() - begun;
      server->progress.finish();
      print_result(settings, took);
    });
  } catch (const farspan::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
