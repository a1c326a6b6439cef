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
#include "console/stopwatch.h"
#include "console/table.h"
#include "mnist/batches.h"
#include "mnist/net.h"
#include "training/device.h"
#include "training/operator_times.h"

using mnist::Net;
using Seconds = std::chrono::duration<double>;

struct Settings : console::RunOptions {
  int trainers = 2;

  mnist::BatchOptions batches(int trainer) const {
    return {.batch_size = batch_size, .seed = seed, .shard = trainer, .shards = trainers};
  }
};

// The server's side.
struct Server {
  Server(const Settings& settings, int64_t all_steps)
      : steps(all_steps),
        test(mnist::load_test().sample(settings.images)),
        device(training::Device(settings.device).own()) {
    net->to(device);
  }

  double accuracy_on(const mnist::Dataset& data) const {
    return mnist::accuracy(
        [this](const at::Tensor& images) { return net->forward(images.to(device)).cpu(); }, data);
  }

  const int64_t steps;  // of the whole run
  const mnist::Dataset test;
  const at::Device device;
  const std::shared_ptr<Net> net = std::make_shared<Net>();
  console::Progress progress{{.steps = steps}};
  console::TrainingCurves curves;
  std::mutex mutex;  // for what is below: of all trainers that have finished
  farspan::CallTimes calls;
  double bytes = 0, waiting_s = 0, training_s = 0;
  double bytes_come = 0;  // to the server itself
  training::Profile profile;
  training::OperatorTimes times;  // the server's own, from here on
};
std::unique_ptr<Server> server;

std::shared_ptr<Net> share_net() { return server->net; }
void trained(double loss, double right, int64_t samples) {
  constexpr int64_t kLooks = 10, kLookAt = 1000;  // times in a run, images
  server->progress.step(loss, samples);
  const int64_t step = server->curves.add_batch(loss, right);
  if (step % (server->steps / kLooks + 1) != server->steps / kLooks) return;
  server->curves.add_test(step, server->accuracy_on(server->test.sample(kLookAt)));
}
void finished(const farspan::CallTimes& calls, double bytes, double waiting_s, double training_s,
              const training::Profile& profile) {
  std::lock_guard lock(server->mutex);
  server->calls += calls;
  server->bytes += bytes;
  server->bytes_come = double(farspan::current_worker().counters().bytes_come());
  server->waiting_s += waiting_s;
  server->training_s += training_s;
  server->profile += profile;
}
FARSPAN_REGISTER(share_net, trained, finished);
FARSPAN_REGISTER_METHODS(Net, forward, parameters);

void train(const Settings& settings, const mnist::Batches& batches) {
  const auto net = farspan::remote("ps", share_net);
  farspan::DistributedOptimizer<torch::optim::SGD> optimizer(farspan::parameter_rrefs(net),
                                                             torch::optim::SGDOptions(settings.lr));
  const at::Device device = training::Device(settings.device).own();
  const training::OperatorTimes times;
  console::Stopwatch training, waiting;  // waiting: for the server
  training.start();
  for (int epoch = 0; epoch < settings.epochs; ++epoch) {
    for (const auto& batch : batches.epoch(epoch)) {
      const at::Tensor images = batch.images.to(device), labels = batch.labels.to(device);
      farspan::dist_autograd::Context context;
      waiting.start();
      const auto scores = net.rpc_sync(&Net::forward, images);
      waiting.stop();
      const auto loss = torch::nn::functional::nll_loss(scores, labels);
      const double right = mnist::share_right(scores, labels);
      waiting.start();
      context.backward({loss});
      optimizer.step(context);
      farspan::rpc_sync("ps", trained, loss.item<double>(), right, images.size(0));
      waiting.stop();
    }
  }
  const auto counters = farspan::current_worker().counters();
  farspan::rpc_sync("ps", finished, farspan::current_worker().call_times(),
                    double(counters.bytes_come()), waiting.seconds(), training.seconds(),
                    times.so_far());
}

void print_result(const Settings& settings, Seconds took) {
  server->profile += server->times.so_far();
  const training::Profile& profile = server->profile;
  const std::string trainers = settings.trainers == 1 ? " trainer" : " trainers";
  const console::Summary summary{
      .title = "Parameter server, " + std::to_string(settings.trainers) + trainers,
      .accuracy = server->accuracy_on(server->test),
      .samples_per_s = double(settings.epochs * settings.images) / took.count(),
      .rpcs = static_cast<int64_t>(server->calls.count()),
      .bytes = server->bytes + server->bytes_come,
      .rpc_p50 = server->calls.quantile(0.5),
      .rpc_p99 = server->calls.quantile(0.99),
      .waiting = server->waiting_s / server->training_s,
      .busy = Seconds(profile.busy),
      .in_operators = profile.share(),
      .operators = profile.largest(5),
      .curves = settings.curves,
  };
  server->curves.add_test(server->steps, *summary.accuracy);
  server->curves.write(settings.curves, summary.title);
  console::print(summary);
}

int main(int argc, char** argv) {
  Settings settings;
  settings.batch_size = 32;
  settings.lr = 0.05;  // each trainer's: the steps of all add up
  settings.curves = "parameter_server.svg";
  CLI::App app("A parameter server and its trainers learn MNIST over RPC.");
  app.add_option("--trainers", settings.trainers, "processes that train")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  console::add_run_options(app, settings);
  console::add_device_option(app, settings);
  console::add_transport_option(app, settings);
  CLI11_PARSE(app, argc, argv);
  farspan::keep_freed_memory();
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
        // Each has a GPU of its own, if there are so many; the net is on the server's, the first.
        const at::Device own = training::Device(settings.device).own();
        if (!own.is_cpu()) options.device_maps["ps"].set({own.index()}, {0});
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
      server.reset();  // it counts LibTorch's operators, which end with main()
    });
  } catch (const farspan::Error& e) {
    server.reset();
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
