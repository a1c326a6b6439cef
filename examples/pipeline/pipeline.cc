// A net in two stages on two workers: a master sends micro-batches through both at once, runs the
// backward pass over both, and steps both stages' parameters. README.md walks through this file.
#include <farspan/farspan.h>
#include <torch/nn/functional/loss.h>
#include <CLI/CLI.hpp>
#include <cstdio>

#include "console/curves.h"
#include "console/progress.h"
#include "console/run_options.h"
#include "console/stopwatch.h"
#include "console/table.h"
#include "mnist/batches.h"
#include "mnist/net.h"
#include "pipeline/trace.h"

using at::Tensor;
namespace console {
FARSPAN_STRUCT(Span, worker, kind, label, begin_ns, end_ns);
}

struct Settings : console::RunOptions {
  int64_t micro_batches = 4;
};

// The stages. Their outputs stay where they are until somebody asks for them.
struct Stage1 : mnist::Convolutions {
  Tensor run(const Tensor& images, const std::string& label) {
    return trace.forward(label, [&] { return forward(images); });
  }
  std::vector<console::Span> spans() const { return trace.spans(); }
  Trace trace{"stage 1"};
};
struct Stage2 : mnist::Classifier {
  Tensor run(const farspan::RRef<Tensor>& maps, const std::string& label) {
    const Tensor here = maps.to_here();  // from stage 1, past the master
    return trace.forward(label, [&] { return forward(here); });
  }
  std::vector<console::Span> spans() const { return trace.spans(); }
  Trace trace{"stage 2"};
};
std::shared_ptr<Stage1> make_stage1() { return std::make_shared<Stage1>(); }
std::shared_ptr<Stage2> make_stage2() { return std::make_shared<Stage2>(); }
uint64_t bytes_come() { return farspan::current_worker().counters().bytes_come(); }
farspan::CallTimes call_times() { return farspan::current_worker().call_times(); }
FARSPAN_REGISTER(make_stage1, make_stage2, bytes_come, call_times);
FARSPAN_REGISTER_METHODS(Stage1, run, spans, parameters);
FARSPAN_REGISTER_METHODS(Stage2, run, spans, parameters);

// Both stages, as the master sees them.
struct Pipeline {
  farspan::RRef<std::shared_ptr<Stage1>> stage1 = farspan::remote("stage1", make_stage1);
  farspan::RRef<std::shared_ptr<Stage2>> stage2 = farspan::remote("stage2", make_stage2);

  // [batch, 1, 28, 28] -> [batch, 10]. All micro-batches are under way at once: while stage 2 works
  // on one, stage 1 works on the next.
  Tensor forward(const Tensor& images, int64_t micro_batches) const {
    std::vector<farspan::Future<Tensor>> scores;
    for (const Tensor& part : images.chunk(micro_batches)) {
      const std::string label = std::to_string(scores.size());
      const auto maps = stage1.remote(&Stage1::run, part, label);
      scores.push_back(stage2.rpc_async(&Stage2::run, maps, label));
    }
    return at::cat(farspan::wait_all(scores));
  }
};

// What the stages did between two times.
std::vector<console::Span> spans_between(const Pipeline& net, int64_t begin_ns, int64_t end_ns) {
  auto spans = net.stage1.rpc_sync(&Stage1::spans);
  for (auto& span : net.stage2.rpc_sync(&Stage2::spans)) spans.push_back(std::move(span));
  std::erase_if(spans, [&](auto& s) { return s.begin_ns < begin_ns || s.end_ns > end_ns; });
  return spans;
}

void train(const Settings& settings) {
  const mnist::Batches batches(mnist::load_train().sample(settings.images),
                               {.batch_size = settings.batch_size, .seed = settings.seed});
  const Pipeline net;
  farspan::DistributedOptimizer<torch::optim::SGD> optimizer(
      {farspan::parameter_rrefs(net.stage1), farspan::parameter_rrefs(net.stage2)},
      torch::optim::SGDOptions(settings.lr));
  const int64_t steps = settings.epochs * batches.size(), shown = steps / 2;
  int64_t step = 0, shown_begin = 0, shown_end = 0;
  console::Progress progress({.steps = steps});
  console::TrainingCurves curves;
  console::Stopwatch training;
  training.start();
  for (int epoch = 0; epoch < settings.epochs; ++epoch) {
    for (const auto& [images, labels] : batches.epoch(epoch)) {
      if (step == shown) shown_begin = console::nanoseconds_now();
      farspan::dist_autograd::Context context;
      const Tensor scores = net.forward(images, settings.micro_batches);
      const Tensor loss = torch::nn::functional::nll_loss(scores, labels);
      context.backward({loss});
      optimizer.step(context);
      if (step == shown) shown_end = console::nanoseconds_now();
      step = curves.add_batch(loss.item<double>(), mnist::share_right(scores, labels)) + 1;
      progress.step(loss.item<double>(), images.size(0));
    }
  }
  training.stop();
  progress.finish();

  const console::Terminal out = console::standard_output();
  const auto spans = spans_between(net, shown_begin, shown_end);
  out.write("\nStep " + std::to_string(shown) + ", which micro-batch was where:\n" +
            console::timeline(spans, out));
  console::Summary summary{.title = "Pipeline, 2 stages"};
  const auto forward = [&](const Tensor& x) { return net.forward(x, settings.micro_batches); };
  summary.accuracy = mnist::accuracy(forward, mnist::load_test().sample(settings.images));
  summary.samples_per_s = double(settings.epochs * batches.samples()) / training.seconds();
  farspan::CallTimes calls;
  double bytes = 0;
  for (const auto* worker : {"master", "stage1", "stage2"}) {
    calls += farspan::rpc_sync(worker, call_times);
    bytes += double(farspan::rpc_sync(worker, bytes_come));
  }
  summary.rpcs = static_cast<int64_t>(calls.count());
  summary.bytes = bytes;
  summary.rpc_p50 = calls.quantile(0.5);
  summary.rpc_p99 = calls.quantile(0.99);
  summary.curves = settings.curves;
  curves.add_test(steps, *summary.accuracy);
  curves.write(settings.curves, summary.title);
  console::print(summary);
}

int main(int argc, char** argv) {
  Settings settings;
  settings.curves = "pipeline.svg";
  CLI::App app("A net in two stages on two workers learns MNIST, micro-batch by micro-batch.");
  app.add_option("--micro-batches", settings.micro_batches, "parts of a batch, under way at once")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  console::add_run_options(app, settings);
  console::add_transport_option(app, settings);
  CLI11_PARSE(app, argc, argv);
  try {
    farspan::spawn(3, [&](int rank, int) {
      at::set_num_threads(1);
      at::manual_seed(settings.seed);
      farspan::WorkerOptions options;
      options.transports = settings.transports();
      options.shutdown_timeout = farspan::kNoTimeout;  // the stages wait as long as it takes
      farspan::init_rpc(rank == 0 ? "master" : "stage" + std::to_string(rank), options);
      if (rank == 0) train(settings);
      farspan::shutdown();
    });
  } catch (const farspan::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
