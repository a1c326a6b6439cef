// A training run whose parameters count what it was trained on, for the tests of restarts.
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>

#include <farspan/c10d/ddp/distributed_data_parallel.h>
#include <farspan/c10d/group/values.h>
#include <farspan/c10d/init/init.h>
#include <farspan/c10d/init/record.h>

#include "training/checkpoint.h"

namespace dist = farspan::dist;

namespace {

constexpr int64_t kExamples = 101;  // no multiple of anything
constexpr int64_t kBatchSize = 2;
constexpr int64_t kEpochs = 3;
constexpr int64_t kCheckpointEvery = 3;

// With a learning rate of 1, `seen` holds how often each example was trained on, whatever the
// number of ranks. `turns`, with a momentum of 1, gets 1 + 2 + .. + steps if no momentum is lost.
struct CountingNet : torch::nn::Module {
  CountingNet() {
    seen = register_parameter("seen", at::zeros({kExamples}));
    turns = register_parameter("turns", at::zeros({1}));
  }
  at::Tensor forward(const at::Tensor& chosen) {
    return -seen.index_select(0, chosen).sum() * dist::get_world_size() - turns.sum();
  }
  at::Tensor seen, turns;
};

// One line for the test, whichever rank 0 writes it.
void say(const char* log, const std::string& line) {
  if (dist::get_rank() != 0) return;
  const int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const std::string whole = line + "\n";
  if (write(fd, whole.data(), whole.size()) < 0) throw std::runtime_error("no log");
  close(fd);
}

std::string where(const checkpoint::Run& run) {
  return "at step " + std::to_string(run.steps) + " with " +
         std::to_string(dist::get_world_size()) + " ranks, " +
         std::to_string(run.sampler.state().taken) + " of epoch " +
         std::to_string(run.sampler.state().epoch);
}

// All ranks wait, in a collective, until the test allows for more steps than there are.
void hold(const char* limit_file, const char* log, const checkpoint::Run& run) {
  for (bool held = false;; held = true) {
    int64_t limit = 0;
    if (dist::get_rank() == 0) std::ifstream(limit_file) >> limit;
    dist::broadcast_value(limit, 0);
    if (run.steps < limit) return;
    if (!held) say(log, "held " + where(run));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

// What the test has asked for: "throw 1 5", rank 1 at step 5.
void fail(const std::string& how, int rank, int64_t at_step, int64_t step) {
  if (dist::get_rank() != rank || step != at_step) return;
  if (how == "throw") throw std::runtime_error("no data for step " + std::to_string(step));
  if (how == "kill") std::raise(SIGKILL);
}

void train(char** argv) {
  const char *const file = argv[1], *const limit_file = argv[2], *const log = argv[3];
  const std::string how = argv[4] ? argv[4] : "";
  const int victim = how.empty() ? -1 : std::stoi(argv[5]);
  const int64_t at_step = how.empty() ? -1 : std::stoll(argv[6]);

  at::set_num_threads(1);
  dist::init_process_group("cpu");
  const auto net = std::make_shared<CountingNet>();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const auto& [parameter, momentum] : {std::pair{net->seen, 0.0}, {net->turns, 1.0}}) {
    groups.emplace_back(
        std::vector<at::Tensor>{parameter},
        std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(1).momentum(momentum)));
  }
  torch::optim::SGD optimizer(groups, torch::optim::SGDOptions(1));
  dist::DistributedSampler sampler(kExamples, {.seed = 1});
  checkpoint::Run run{*net, optimizer, sampler};
  const bool resumed = checkpoint::resume(file, run);
  say(log, (resumed ? "resumed " : "began ") + where(run));
  dist::DistributedDataParallel<CountingNet> ddp(net);
  for (auto epoch = sampler.epoch(); epoch < uint64_t{kEpochs}; ++epoch) {
    sampler.set_epoch(epoch);
    sampler.reset();
    while (true) {
      hold(limit_file, log, run);
      const auto batch = sampler.next(kBatchSize);
      if (!batch) break;
      fail(how, victim, at_step, run.steps);
      optimizer.zero_grad();
      ddp(at::tensor(std::vector<int64_t>(batch->begin(), batch->end()))).backward();
      optimizer.step();
      run.steps += 1, run.samples += std::ssize(*batch) * dist::get_world_size();
      if (dist::get_rank() == 0 && run.steps % kCheckpointEvery == 0) checkpoint::save(file, run);
    }
  }
  say(log, "done " + where(run) + ": " + std::to_string(run.samples) + " samples, seen " +
               std::to_string(net->seen.sum().item<int64_t>()) + ", the least " +
               std::to_string(net->seen.min().item<int64_t>()) + ", turns " +
               std::to_string(net->turns.item<int64_t>()));
  dist::destroy_process_group();
}

}  // namespace

// elastic_training CHECKPOINT LIMIT_FILE LOG [throw|kill RANK STEP]
int main(int argc, char** argv) {
  if (argc < 4) return 2;
  return dist::record([&] { train(argv); });
}
