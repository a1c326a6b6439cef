// Processes of a job of RPC, of which some are data-parallel trainers as well: their passes go
// through a module of the one that is none. The oracle is LibTorch's engine, in one process.
#include <cstdio>
#include <cstdlib>
#include <memory>

#include <farspan/autograd/context.h>
#include <farspan/autograd/room.h>
#include <farspan/c10d/init/init.h>
#include <farspan/rpc/init/init.h>
#include <farspan/rpc/rpc.h>
#include <farspan/rref/remote.h>

#include "c10d/ddp/ddp_suite.h"
#include "c10d/store/temporary_folder.h"
#include "support/processes.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using dist_autograd::AutogradRoom;
using dist_autograd::Context;

constexpr int kTrainers = 2, kServer = 2;
constexpr int kSteps = 3;

// What the server has.
struct Stem : torch::nn::Module {
  Stem() { layer = register_module("layer", torch::nn::Linear(4, 4)); }
  Tensor forward(const Tensor& x) { return layer->forward(x).tanh(); }
  torch::nn::Linear layer{nullptr};
};
FARSPAN_REGISTER_METHODS(Stem, forward);

const std::shared_ptr<Stem>& the_stem() {
  static const auto stem = seeded(std::make_shared<Stem>(), 9);
  return stem;
}
std::shared_ptr<Stem> open_stem() { return the_stem(); }
Tensors stem_gradients(int64_t context) {
  const auto state =
      AutogradRoom::of(current_worker())->find(static_cast<dist_autograd::ContextId>(context));
  Tensors gradients;
  for (const Tensor& one : the_stem()->parameters()) gradients.push_back(state->leaves->find(one));
  return gradients;
}
FARSPAN_REGISTER(open_stem, stem_gradients);

// Every bit.
void print(const Tensors& tensors, std::string& out) {
  for (const Tensor& one : tensors) {
    const Tensor flat = one.flatten().to(at::kDouble);
    for (int64_t i = 0; i < flat.numel(); ++i) {
      char text[40];
      std::snprintf(text, sizeof text, " %a", flat[i].item<double>());
      out += text;
    }
    out += '\n';
  }
}

Tensor loss_of(TwoLayers& net, Stem& stem, int rank, int step) {
  return net.forward(stem.forward(input_of(rank, step))).sin().sum();
}

// What a trainer prints.
std::string expected_of(int rank) {
  const auto net = seeded(std::make_shared<TwoLayers>(), 3);
  std::string text;
  for (int step = 0; step < kSteps; ++step) {
    const auto loss = [&](int one) { return loss_of(*net, *the_stem(), one, step); };
    print(averaged(kTrainers, *net, loss), text);
    print(torch::autograd::grad({loss(rank)}, the_stem()->parameters()), text);
  }
  return text;
}

void train(int rank) {
  dist::InitOptions options;
  options.rank = rank;
  options.world_size = kTrainers;
  options.init_method = std::getenv("TRAINERS_METHOD");
  dist::init_process_group("cpu", options);
  std::string text;
  {
    const auto stem = remote(kServer, open_stem);
    const auto net = seeded(std::make_shared<TwoLayers>(), 3);
    Ddp<TwoLayers> ddp(net);
    for (int step = 0; step < kSteps; ++step) {
      Context context;
      const Tensor x = stem.rpc_sync(&Stem::forward, input_of(rank, step));
      context.backward({ddp(x).sin().sum()});
      Tensors ours;
      for (const Tensor& one : net->parameters()) ours.push_back(context.gradient(one));
      print(ours, text);
      print(rpc_sync(kServer, stem_gradients, static_cast<int64_t>(context.id())), text);
    }
  }
  dist::destroy_process_group();
  std::fputs(text.c_str(), stdout);
}

int worker() {
  at::set_num_threads(1);
  WorkerOptions options;
  options.init_method = std::getenv("WORKERS_METHOD");
  const int rank = init_rpc("w" + std::string(std::getenv("RANK")), options)->rank();
  if (rank < kTrainers) train(rank);
  shutdown();
  return 0;
}

TEST(DdpWorkers, AverageTheGradientsOfTheirContextsAndNotThoseOfTheServer) {
  at::set_num_threads(1);
  const TemporaryFolder folder;
  std::vector<std::unique_ptr<Process>> processes;
  for (int rank = 0; rank <= kTrainers; ++rank) {
    processes.push_back(std::make_unique<Process>(
        "worker", Process::Environment{{"WORLD_SIZE", std::to_string(kTrainers + 1)},
                                       {"RANK", std::to_string(rank)},
                                       {"WORKERS_METHOD", "file://" + folder.file("workers")},
                                       {"TRAINERS_METHOD", "file://" + folder.file("trainers")}}));
  }
  for (int rank = 0; rank <= kTrainers; ++rank) {
    const Process::End end = processes[static_cast<size_t>(rank)]->wait(60s);
    EXPECT_EQ(end.status, 0) << end.output;
    EXPECT_EQ(end.output, rank == kServer ? "" : expected_of(rank)) << "rank " << rank;
  }
}

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) {
  return farspan::testing::run_tests(argc, argv, {{"worker", farspan::testing::worker}});
}
