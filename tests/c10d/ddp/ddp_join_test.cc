// The rules under test: c10d/ddp/README.md, "Uneven inputs".
#include <torch/optim/sgd.h>

#include <farspan/c10d/group/collectives.h>

#include "c10d/ddp/ddp_suite.h"

namespace farspan::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

class DdpJoin : public DdpSuite {};
FARSPAN_DDP_SUITE(DdpJoin);

// How many inputs each rank has.
using Inputs = std::vector<int>;

// The parameters after all inputs: in step k those ranks take part that have more than k.
Tensors train_serially(const Inputs& inputs, bool by_all, int start_step = 0) {
  const auto net = seeded(std::make_shared<TwoLayers>(), 3);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const int steps = *std::max_element(inputs.begin(), inputs.end());
  for (int step = start_step; step < steps; ++step) {
    int taking_part = 0;
    Tensors sums;
    for (const Tensor& one : net->parameters()) sums.push_back(at::zeros_like(one));
    for (int rank = 0; rank < static_cast<int>(inputs.size()); ++rank) {
      if (inputs[static_cast<size_t>(rank)] <= step) continue;
      ++taking_part;
      const Tensors own =
          averaged(1, *net, [&](int) { return net->forward(input_of(rank, step)).sin().sum(); });
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += own[i];
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      net->parameters()[i].mutable_grad() =
          sums[i] / (by_all ? static_cast<int>(inputs.size()) : taking_part);
    }
    optimizer.step();
  }
  return net->parameters();
}

void expect_all_ranks_have(const torch::nn::Module& net, const Tensors& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_TRUE(at::allclose(net.parameters()[i], expected[i], 1e-5, 1e-6)) << "parameter " << i;
  }
}

TEST_P(DdpJoin, RanksMayHaveDifferentNumbersOfInputs) {
  for (const Inputs& inputs : {Inputs{3, 5}, Inputs{5, 3}, Inputs{4, 0, 2}, Inputs{1, 2, 7},
                               Inputs{2, 2, 2}, Inputs{0, 0}}) {
    for (const bool by_all : {true, false}) {
      on_each(static_cast<int>(inputs.size()), [&](int rank) {
        const auto net = seeded(std::make_shared<TwoLayers>(), 3);
        Ddp<TwoLayers> ddp(net, {.bucket_bytes = 64, .first_bucket_bytes = 32});
        torch::optim::SGD optimizer(ddp.parameters(), 0.1);
        ddp.join(
            [&] {
              for (int step = 0; step < inputs[static_cast<size_t>(rank)]; ++step) {
                optimizer.zero_grad();
                ddp(input_of(rank, step)).sin().sum().backward();
                optimizer.step();
              }
            },
            {.divide_by_initial_world_size = by_all});
        expect_all_ranks_have(*net, train_serially(inputs, by_all));
      });
    }
  }
}

TEST_P(DdpJoin, MayBeFollowedByAnother) {
  on_each(3, [](int rank) {
    const auto net = seeded(std::make_shared<TwoLayers>(), 3);
    Ddp<TwoLayers> ddp(net, {.bucket_bytes = 64, .first_bucket_bytes = 32});
    torch::optim::SGD optimizer(ddp.parameters(), 0.1);
    const auto plain = seeded(std::make_shared<TwoLayers>(), 3);
    for (const int who : {0, 1, 2}) {  // has inputs alone
      ddp.join([&] {
        for (int step = 0; step < (rank == who ? 2 : 0); ++step) {
          optimizer.zero_grad();
          ddp(input_of(rank, step)).sum().backward();
          optimizer.step();
        }
      });
      for (int step = 0; step < 2; ++step) {
        const Tensors gradients =
            averaged(1, *plain, [&](int) { return plain->forward(input_of(who, step)).sum(); });
        const at::NoGradGuard no_grad;
        for (size_t i = 0; i < gradients.size(); ++i) {
          plain->parameters()[i].sub_(gradients[i] / 3, 0.1);
        }
      }
      expect_all_ranks_have(*net, plain->parameters());
    }
    optimizer.zero_grad();
    ddp(input_of(rank)).sum().backward();  // and without join
  });
}

TEST_P(DdpJoin, WorksWithAllThatCommunicates) {
  struct Everything : torch::nn::Module {
    Everything() {
      table = register_module("table",
                              torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 4).sparse(true)));
      norm = register_module("norm", torch::nn::BatchNorm1d(4));
      branches = register_module("branches", std::make_shared<Branches>());
    }
    Tensor forward(const Tensor& rows, const std::string& way) {
      return branches->forward(norm->forward(table->forward(rows)), way);
    }
    torch::nn::Embedding table{nullptr};
    torch::nn::BatchNorm1d norm{nullptr};
    std::shared_ptr<Branches> branches;
  };
  for (const bool is_static : {false, true}) {
    for (const bool hook : {false, true}) {
      on_each(3, [&](int rank) {
        const auto net = seeded(std::make_shared<Everything>(), 3);
        Ddp<Everything> ddp(net, {.bucket_bytes = 64,
                                  .first_bucket_bytes = 32,
                                  .find_unused_parameters = !is_static,
                                  .static_graph = is_static});
        if (hook) ddp.register_comm_hook(dist::fp16_compress_hook);
        torch::optim::SGD optimizer(ddp.parameters(), 0.1);
        int steps = 0;
        ddp.join([&] {
          for (; steps < 2 + rank * 2; ++steps) {
            optimizer.zero_grad();
            const Tensor rows = at::tensor({rank, steps % 6, 5}, at::kLong);
            ddp(rows, is_static || steps % 2 == 0 ? "left" : "both").sum().backward();
            if (net->table->weight.grad().defined()) {
              net->table->weight.mutable_grad() = net->table->weight.grad().to_dense();
            }
            optimizer.step();
          }
        });
        EXPECT_EQ(steps, 2 + rank * 2);
        for (const Tensor& one : net->parameters()) {
          const Tensor of_rank_0 = one.detach().clone();
          dist::broadcast(of_rank_0, 0);
          EXPECT_TRUE(at::equal(one, of_rank_0));
        }
        const Tensor mean = net->norm->running_mean.clone();
        dist::broadcast(mean, 0);
        EXPECT_TRUE(at::equal(net->norm->running_mean, mean));
      });
    }
  }
}

TEST_P(DdpJoin, LocalPassesDoNotMakeTheOthersReduce) {
  on_each(2, [](int rank) {
    const auto net = seeded(std::make_shared<TwoLayers>(), 3);
    Ddp<TwoLayers> ddp(net);
    const Tensors expected = averaged(1, *net, [&](int) {
      return net->forward(input_of(0, 0)).sum() + net->forward(input_of(0, 1)).sum();
    });
    ddp.join([&] {
      if (rank == 1) return;
      {
        const auto local = ddp.no_sync();
        ddp(input_of(0, 0)).sum().backward();
      }
      ddp(input_of(0, 1)).sum().backward();
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::allclose(gradients_of(*net)[i], expected[i] / 2, 1e-5, 1e-6));
      }
      const at::NoGradGuard no_grad;
      ddp(input_of(0, 2));
    });
  });
}

TEST_P(DdpJoin, CanEndOnAllRanksAsSoonAsOneHasNoInputs) {
  on_each(3, [](int rank) {
    const auto net = seeded(std::make_shared<TwoLayers>(), 3);
    Ddp<TwoLayers> ddp(net);
    int steps = 0;
    const auto train = [&] {
      for (; steps < (rank == 1 ? 3 : 5); ++steps) ddp(input_of(rank, steps)).sum().backward();
    };
    const Error error = error_of([&] { ddp.join(train, {.throw_on_early_termination = true}); });
    EXPECT_EQ(error.code(), Code::kCancelled);
    EXPECT_THAT(error.what(), HasSubstr("no inputs are left on rank 1"));
    EXPECT_EQ(steps, 3);
    // Expect: all know, so all can go on.
    drop_gradients(*net);
    const Tensors expected =
        averaged(3, *net, [&](int one) { return net->forward(input_of(one)).sum(); });
    ddp(input_of(rank)).sum().backward();
    expect_equal(gradients_of(*net), expected, "afterwards");
  });
}

TEST_P(DdpJoin, WhatTheBodyThrowsEndsTheOthersToo) {
  on_each(2, [](int rank) {
    Ddp<TwoLayers> ddp(seeded(std::make_shared<TwoLayers>(), 3));
    const auto train = [&] {
      if (rank == 0) throw std::runtime_error("no such file");
      for (int step = 0; step < 3; ++step) ddp(input_of(rank, step)).sum().backward();
    };
    if (rank == 0) {
      EXPECT_THROW(ddp.join(train), std::runtime_error);
    } else {
      EXPECT_THAT(error_of([&] { ddp.join(train); }).what(),
                  ::testing::ContainsRegex("REMOTE: .*join.*: std::runtime_error: no such file"));
    }
  });
}

}  // namespace
}  // namespace farspan::testing
