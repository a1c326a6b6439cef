// Ranks as processes of their own, on one host or as if on several: they learn what one process
// learns, and one that dies in the middle of a backward pass ends it on the others in time.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include <farspan/c10d/ddp/power_sgd.h>
#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/init/init.h>
#include <torch/optim/sgd.h>

#include "c10d/ddp/ddp_suite.h"
#include "c10d/store/temporary_folder.h"
#include "support/processes.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

int join_job() {
  at::set_num_threads(1);
  dist::InitOptions options;
  options.init_method = std::getenv("INIT_METHOD");
  options.bind_host = "127.0.0.1";
  dist::init_process_group("cpu", options);
  return dist::get_rank();
}

constexpr int kSteps = 50;

// All bits.
std::string describe(const torch::nn::Module& net) {
  std::string text = "learned";
  char number[40];
  for (const Tensor& parameter : net.parameters()) {
    for (const Tensor& one : parameter.flatten().unbind()) {
      std::snprintf(number, sizeof number, " %a", one.item<double>());
      text += number;
    }
  }
  return text + "\n";
}

Tensor loss_of(const Tensor& output) { return output.sin().sum(); }

// Each rank begins with other parameters; those of rank 0 count.
int train() {
  const int rank = join_job();
  const auto net = seeded(std::make_shared<TwoLayers>(), rank);
  {
    Ddp<TwoLayers> ddp(net, {.bucket_bytes = 64, .first_bucket_bytes = 32});
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      loss_of(ddp(input_of(rank, step))).backward();
      optimizer.step();
    }
  }
  std::printf("%s", describe(*net).c_str());
  dist::destroy_process_group();
  return 0;
}

// What ranks on these hosts should print.
std::string train_alone(const std::vector<std::vector<int>>& hosts) {
  const auto net = seeded(std::make_shared<TwoLayers>(), 0);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < kSteps; ++step) {
    const Tensors gradients = averaged(
        hosts, *net, [&](int rank) { return loss_of(net->forward(input_of(rank, step))); });
    for (size_t i = 0; i < gradients.size(); ++i) {
      net->parameters()[i].mutable_grad() = gradients[i];
    }
    optimizer.step();
  }
  return describe(*net);
}

// Rank 1 dies in the middle of its fourth backward pass; the others say what they got, and when,
// and go on without it.
int lose_a_rank() {
  const int rank = join_job();
  Ddp<TwoLayers> ddp(seeded(std::make_shared<TwoLayers>(), 3),
                     {.bucket_bytes = 1, .first_bucket_bytes = 1});
  for (int step = 0; step < 3; ++step) ddp(input_of(rank, step)).sum().backward();
  Tensor x = input_of(rank).requires_grad_();
  if (rank == 1) {
    x.register_hook([](const Tensor&) { kill(getpid(), SIGKILL); });
  }
  const TimePoint began = Clock::now();
  const Error error = error_of([&] { ddp(x).sum().backward(); });
  const Error later = error_of([&] { ddp(x); });
  std::printf("%s; %s; %s\n", Clock::now() - began < 2s ? "in time" : "late", error.what(),
              later.what());
  const auto left = dist::new_group({0, 2});
  ddp.module()->zero_grad();
  Ddp<TwoLayers> without(ddp.module(), {.group = left});
  (without(input_of(rank)).sum() * (rank + 1)).backward();
  const Tensor bias = without.parameters().back().grad();  // (5 * 1 + 5 * 3) / 2
  std::printf("went on, %s\n", at::equal(bias, at::full({3}, 10.0)) ? "averaged" : "not averaged");
  return 0;
}

// Says in how many numbers this rank's compressed gradients are not those of rank 0. (Its
// parameters might not be: optimizers round as the processor does.)
int compress() {
  const int rank = join_job();
  const auto net = std::make_shared<torch::nn::LinearImpl>(96, 70);
  Ddp<torch::nn::LinearImpl> ddp(net);
  ddp.register_comm_hook(dist::PowerSgdHook({.rank = 4, .start_iteration = 2}));
  int64_t differ = 0;
  for (int step = 0; step < 6; ++step) {
    drop_gradients(*net);
    loss_of(ddp(numbers({8, 96}, 10 * step + rank))).backward();
    const Tensor of_rank_0 = net->weight.grad().clone();
    dist::broadcast(of_rank_0, 0);
    differ += of_rank_0.ne(net->weight.grad()).sum().item<int64_t>();
  }
  std::printf("%lld numbers differ", static_cast<long long>(differ));
  return 0;
}

// What each has in its environment besides.
using MoreOf = std::function<Process::Environment(int rank)>;

std::vector<Process::End> run_processes(
    const char* role, int ranks, const dist::testing::HostOf& host_of = dist::testing::one_host,
    const MoreOf& more_of = [](int) { return Process::Environment(); }) {
  const TemporaryFolder folder;
  std::vector<std::unique_ptr<Process>> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    Process::Environment environment{{"WORLD_SIZE", std::to_string(ranks)},
                                     {"RANK", std::to_string(rank)},
                                     {"FARSPAN_HOST_ID", host_of(rank)},
                                     {"INIT_METHOD", "file://" + folder.file("meet")}};
    environment.merge(more_of(rank));
    processes.push_back(std::make_unique<Process>(role, environment));
  }
  std::vector<Process::End> ends;
  for (const auto& process : processes) ends.push_back(process->wait(60s));
  return ends;
}

void expect_bits_of_one_process(const dist::testing::HostOf& host_of) {
  at::set_num_threads(1);
  constexpr int kRanks = 3;
  const std::string expected = train_alone(dist::testing::ranks_by_host(kRanks, host_of));
  for (const Process::End& end : run_processes("train", kRanks, host_of)) {
    EXPECT_EQ(end.status, 0);
    EXPECT_EQ(end.output, expected);
  }
}

TEST(DdpProcesses, LearnTheBitsThatOneProcessDoes) {
  expect_bits_of_one_process(dist::testing::one_host);
}

TEST(DdpProcesses, OfSeveralHostsLearnTheBitsThatOneProcessDoes) {
  expect_bits_of_one_process(dist::testing::own_host);
  expect_bits_of_one_process(dist::testing::mixed_hosts);
}

// As processors of another kind would do.
TEST(DdpProcesses, DecompressTheSameBitsThoughTheirBlasRoundsOtherwise) {
  const auto more_of = [](int rank) {
    if (rank != 1) return Process::Environment();
    return Process::Environment{{"MKL_CBWR", "COMPATIBLE"}, {"ATEN_CPU_CAPABILITY", "default"}};
  };
  for (const Process::End& end : run_processes("compress", 2, dist::testing::one_host, more_of)) {
    EXPECT_EQ(end.status, 0);
    EXPECT_EQ(end.output, "0 numbers differ");
  }
}

TEST(DdpProcesses, EndInTimeWhenOneDiesInItsBackwardPass) {
  const auto ends = run_processes("lose_a_rank", 3);
  EXPECT_EQ(ends[1].status, 128 + SIGKILL);
  for (const int survivor : {0, 2}) {
    const std::string& output = ends[static_cast<size_t>(survivor)].output;
    EXPECT_THAT(output, HasSubstr("it failed before"));
    const std::string first = output.substr(0, output.find("it failed before"));
    EXPECT_THAT(first, HasSubstr("in time; DISCONNECTED"));
    EXPECT_THAT(first, ContainsRegex("rank 1 [(][^ )]+:[0-9]+[)] is gone"));
    EXPECT_THAT(first, ContainsRegex("all_reduce AVG of float32 .[0-9]+., call [0-9]+ of DDP's"));
    EXPECT_THAT(output, HasSubstr("went on, averaged"));
  }
}

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) {
  return farspan::testing::run_tests(argc, argv,
                                     {{"train", farspan::testing::train},
                                      {"compress", farspan::testing::compress},
                                      {"lose_a_rank", farspan::testing::lose_a_rank}});
}
