// A hundred steps of DistributedDataParallel beside plain LibTorch in one process, bit by bit, and
// beside PyTorch's own.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <farspan/c10d/ddp/distributed_data_parallel.h>
#include <farspan/c10d/ddp/distributed_sampler.h>

#include "parity/ddp_parity_net.h"
#include "support/ranks.h"

#ifndef FARSPAN_PYTHON
#define FARSPAN_PYTHON ""
#define FARSPAN_DDP_SCRIPT ""
#endif

namespace farspan::testing {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int kSteps = 100;

Tensor loss_of(ParityNet& net, const ParityShard& shard) {
  return at::nll_loss(net.forward(shard.images), shard.labels);
}

torch::optim::SGD optimizer_of(const torch::nn::Module& net) {
  return torch::optim::SGD(net.parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
}

// The documented order: the gradients of ranks 0, 1, 2, ... are added, and divided by their number.
void step_serially(ParityNet& net, int step, int ranks, at::ScalarType type) {
  const Tensors parameters = net.parameters();
  for (int rank = 0; rank < ranks; ++rank) {
    const Tensors own =
        torch::autograd::grad({loss_of(net, ParityShard(step, rank, type))}, parameters);
    for (size_t i = 0; i < parameters.size(); ++i) {
      Tensor& sum = parameters[i].mutable_grad();
      sum = rank == 0 ? own[i] : sum + own[i];
    }
  }
  for (const Tensor& one : parameters) one.mutable_grad() /= ranks;
}

void step_on_joined_batch(ParityNet& net, int step, int ranks) {
  Tensors images, labels;
  for (int rank = 0; rank < ranks; ++rank) {
    const ParityShard shard(step, rank, at::kDouble);
    images.push_back(shard.images);
    labels.push_back(shard.labels);
  }
  for (const Tensor& one : net.parameters()) one.mutable_grad().reset();
  at::nll_loss(net.forward(at::cat(images)), at::cat(labels)).backward();
}

Tensors copy_of(const Tensors& tensors) {
  Tensors copies;
  for (const Tensor& one : tensors) copies.push_back(one.detach().clone());
  return copies;
}

// Parameters after each step.
template <class Step>
std::vector<Tensors> train_alone(at::ScalarType type, const Step& step_of) {
  ParityNet net(type);
  auto optimizer = optimizer_of(net);
  std::vector<Tensors> history;
  for (int step = 0; step < kSteps; ++step) {
    step_of(net, step);
    optimizer.step();
    history.push_back(copy_of(net.parameters()));
  }
  return history;
}

struct Case {
  int ranks;
  at::ScalarType type;
  dist::DdpOptions options = {};
  const char* name = "";
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

// Calls `check(step, parameters)` on each rank after each step.
template <class Check>
void train_with_ddp(const Case& one, const Check& check) {
  run_on_cpu_ranks(one.ranks, [&](int rank) {
    const auto net = std::make_shared<ParityNet>(one.type);
    dist::DistributedDataParallel<ParityNet> ddp(net, one.options);
    auto optimizer = optimizer_of(ddp);
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      const ParityShard shard(step, rank, one.type);
      at::nll_loss(ddp(shard.images), shard.labels).backward();
      optimizer.step();
      check(step, net->parameters());
      if (::testing::Test::HasFailure()) return;
    }
  });
}

void expect_near(const Tensor& ours, const Tensor& theirs, const std::string& what) {
  EXPECT_LE((ours - theirs).norm().item<double>(), 1e-12 * theirs.norm().item<double>()) << what;
}

class DdpParity : public ::testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }
};

TEST_P(DdpParity, AHundredStepsAreTheSameBitsAsAddedInTheOrderOfRanks) {
  const Case& one = GetParam();
  const auto expected = train_alone(
      one.type, [&](ParityNet& net, int step) { step_serially(net, step, one.ranks, one.type); });
  train_with_ddp(one, [&](int step, const Tensors& parameters) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(at::equal(parameters[i], expected[static_cast<size_t>(step)][i]))
          << "parameter " << i << " in step " << step;
    }
  });
}

dist::DdpOptions small_buckets(dist::DdpOptions options = {}) {
  options.bucket_bytes = 2000;
  options.first_bucket_bytes = 100;
  return options;
}
INSTANTIATE_TEST_SUITE_P(
    Nets, DdpParity,
    ::testing::Values(
        Case{2, at::kFloat, {}, "Float_2"}, Case{3, at::kFloat, {}, "Float_3"},
        Case{4, at::kFloat, {}, "Float_4"}, Case{2, at::kDouble, {}, "Double_2"},
        Case{3, at::kDouble, {}, "Double_3"}, Case{4, at::kDouble, {}, "Double_4"},
        Case{3, at::kFloat, small_buckets(), "Float_3_buckets"},
        Case{3, at::kFloat, small_buckets({.gradient_as_bucket_view = false}), "Float_3_copied"},
        Case{3, at::kDouble, small_buckets({.find_unused_parameters = true}), "Double_3_unused"},
        Case{3, at::kDouble, small_buckets({.static_graph = true}), "Double_3_static"}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(DdpParityInDouble, AHundredStepsAreThoseOfTheJoinedBatch) {
  at::set_num_threads(1);
  for (const int ranks : {2, 3, 4}) {
    const auto expected = train_alone(
        at::kDouble, [&](ParityNet& net, int step) { step_on_joined_batch(net, step, ranks); });
    train_with_ddp({ranks, at::kDouble}, [&](int step, const Tensors& parameters) {
      for (size_t i = 0; i < parameters.size(); ++i) {
        expect_near(parameters[i], expected[static_cast<size_t>(step)][i],
                    "parameter " + std::to_string(i) + " in step " + std::to_string(step));
      }
    });
  }
}

// What ddp_pytorch.py prints, line by line; empty where there is no PyTorch.
const std::vector<std::string>& pytorch_says() {
  static const std::vector<std::string> lines = [] {
    std::vector<std::string> all;
    if (std::string(FARSPAN_PYTHON).empty()) {
      if (std::getenv("FARSPAN_NEED_ALL")) ADD_FAILURE() << "PyTorch is needed, and not here";
      return all;
    }
    std::FILE* const output = popen(FARSPAN_PYTHON " " FARSPAN_DDP_SCRIPT, "r");
    std::string text;
    char part[4096];
    for (size_t got; output && (got = std::fread(part, 1, sizeof part, output)) > 0;) {
      text.append(part, got);
    }
    if (!output || pclose(output) != 0) ADD_FAILURE() << "PyTorch's side has failed";
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  }();
  return lines;
}

class DdpBesidePyTorch : public ::testing::Test {
 protected:
  void SetUp() override {
    at::set_num_threads(1);
    if (pytorch_says().empty()) GTEST_SKIP() << "there is no Python with PyTorch beside LibTorch";
  }
};

TEST_F(DdpBesidePyTorch, AHundredStepsAreThoseOfItsOwnOverGloo) {
  std::map<int, std::map<size_t, Tensor>> theirs;  // by step and parameter
  for (const std::string& line : pytorch_says()) {
    std::istringstream in(line);
    std::string kind, value;
    int step = 0;
    size_t index = 0;
    in >> kind >> step >> index;
    if (kind != "parameter") continue;
    std::vector<double> values;
    while (in >> value) values.push_back(std::strtod(value.c_str(), nullptr));
    theirs[step][index] = at::tensor(values, at::kDouble);
  }
  ASSERT_EQ(theirs.size(), 10u);
  train_with_ddp({2, at::kDouble}, [&](int step, const Tensors& parameters) {
    const auto found = theirs.find(step);
    if (found == theirs.end()) return;
    ASSERT_EQ(found->second.size(), parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      expect_near(parameters[i].flatten(), found->second.at(i), "parameter " + std::to_string(i));
    }
  });
}

TEST_F(DdpBesidePyTorch, SamplersGiveTheSameIndices) {
  int samplers = 0;
  for (const std::string& line : pytorch_says()) {
    std::istringstream in(line);
    std::string kind;
    size_t examples = 0, index = 0;
    dist::DistributedSamplerOptions options;
    uint64_t epoch = 0;
    in >> kind;
    if (kind != "sampler") continue;
    in >> examples >> options.replicas >> options.rank >> options.seed >> epoch >>
        options.shuffle >> options.drop_last;
    std::vector<size_t> theirs;
    while (in >> index) theirs.push_back(index);
    dist::DistributedSampler ours(examples, options);
    ours.set_epoch(epoch);
    EXPECT_EQ(ours.indices(), theirs) << line.substr(0, 40);
    EXPECT_EQ(ours.size(), theirs.size());
    ++samplers;
  }
  EXPECT_EQ(samplers, 32);
}

}  // namespace
}  // namespace farspan::testing
