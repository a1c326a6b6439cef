// A hundred steps of DistributedDataParallel, over each backend and between hosts, beside plain
// LibTorch in one process, bit by bit; and beside PyTorch's own.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <string>
#include <tuple>

#include <farspan/c10d/ddp/distributed_sampler.h>

#include "parity/ddp_parity_oracle.h"
#include "support/ranks.h"

#ifndef FARSPAN_PYTHON
#define FARSPAN_PYTHON ""
#define FARSPAN_DDP_SCRIPT ""
#endif

namespace farspan::testing {
namespace {

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

// Where the ranks are, all of them threads.
struct Place {
  const char* name;
  bool is_fake = false;
  dist::testing::HostOf host_of = dist::testing::one_host;

  void run(int ranks, const RankBody& body) const {
    is_fake ? run_on_fake_ranks(ranks, body) : run_on_hosts(host_of, ranks, body);
  }
};
void PrintTo(const Place& place, std::ostream* out) { *out << place.name; }
const Place kFake{"Fake", true}, kOneHost{"Cpu"};
const Place kHosts{"CpuHosts", false, dist::testing::own_host};
const Place kMixed{"CpuMixed", false, dist::testing::mixed_hosts};

struct Case {
  int ranks;
  at::ScalarType type;
  dist::DdpOptions options = {};
  const char* name = "";
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

// Calls `check(step, parameters)` on each rank after each step.
template <class Check>
void train_on(const Place& place, const Case& one, const Check& check) {
  place.run(one.ranks, [&](int rank) { train_with_ddp(rank, one.type, one.options, check); });
}

void expect_near(const Tensor& ours, const Tensor& theirs, const std::string& what) {
  EXPECT_LE((ours - theirs).norm().item<double>(), 1e-12 * theirs.norm().item<double>()) << what;
}

using PlaceAndCase = std::tuple<Place, Case>;
class DdpParity : public ::testing::TestWithParam<PlaceAndCase> {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    // Between hosts both ways are gone: small buckets at once, and large ones in several pieces.
    setenv("FARSPAN_CPU_HOSTS_SMALL_BYTES", "1000", 1);
    setenv("FARSPAN_CPU_PIECE_BYTES", "1024", 1);
  }
};

TEST_P(DdpParity, AHundredStepsAreTheSameBitsAsAddedInTheDocumentedOrder) {
  const auto& [place, one] = GetParam();
  const auto hosts = dist::testing::ranks_by_host(one.ranks, place.host_of);
  const auto expected = train_alone(one.type, [&, type = one.type](ParityNet& net, int step) {
    step_serially(net, step, hosts, type);
  });
  train_on(place, one, [&](int step, const Tensors& parameters) {
    expect_same_bits(step, parameters, expected);
  });
}

std::string name_of_case(const ::testing::TestParamInfo<PlaceAndCase>& each) {
  return std::string(std::get<0>(each.param).name) + "_" + std::get<1>(each.param).name;
}
INSTANTIATE_TEST_SUITE_P(
    Nets, DdpParity,
    ::testing::Combine(
        ::testing::Values(kFake, kOneHost, kHosts, kMixed),
        ::testing::Values(
            Case{2, at::kFloat, {}, "Float_2"}, Case{3, at::kFloat, {}, "Float_3"},
            Case{4, at::kFloat, {}, "Float_4"}, Case{2, at::kDouble, {}, "Double_2"},
            Case{3, at::kDouble, {}, "Double_3"}, Case{4, at::kDouble, {}, "Double_4"},
            Case{3, at::kFloat, small_buckets(), "Float_3_buckets"},
            Case{3, at::kFloat, small_buckets({.gradient_as_bucket_view = false}),
                 "Float_3_copied"},
            Case{3, at::kDouble, small_buckets({.find_unused_parameters = true}),
                 "Double_3_unused"},
            Case{3, at::kDouble, small_buckets({.static_graph = true}), "Double_3_static"})),
    name_of_case);

TEST(DdpParityInDouble, AHundredStepsAreThoseOfTheJoinedBatch) {
  at::set_num_threads(1);
  for (const int ranks : {2, 3, 4}) {
    const auto expected = train_alone(
        at::kDouble, [&](ParityNet& net, int step) { step_on_joined_batch(net, step, ranks); });
    train_on(kOneHost, {ranks, at::kDouble}, [&](int step, const Tensors& parameters) {
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
  train_on(kOneHost, {2, at::kDouble}, [&](int step, const Tensors& parameters) {
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
