// Data-parallel trainers whose forward passes go over other workers: their averages belong to the
// contexts. The rule: c10d/ddp/README.md, "In an RPC program"; the oracle is LibTorch's engine.
#include <functional>
#include <memory>
#include <thread>

#include <farspan/autograd/room.h>
#include <farspan/farspan.h>
#include <farspan/rpc/init/rooms.h>
#include <torch/optim/sgd.h>

#include "c10d/ddp/ddp_suite.h"
#include "support/held.h"
#include "support/workers.h"

namespace farspan::testing {
namespace {

using dist_autograd::AutogradRoom;
using dist_autograd::Context;
using ::testing::HasSubstr;

constexpr int kTrainers = 2, kServer = 2;

// What the server has: an embedding before the trainers' layers, and a layer behind them.
Tensor the_table, the_head;

Tensor look_up(const Tensor& rows) { return at::embedding(the_table, rows); }
Tensor head(const Tensor& x) { return at::mm(x, the_head).tanh(); }
// Its gradient is never there: backward fails on the server.
Tensor broken(const Tensor& x) {
  const Tensor y = x * 2;
  y.register_hook([](const Tensor&) { throw std::runtime_error("the server is out of luck"); });
  return y;
}
FARSPAN_REGISTER(look_up, head, broken);

Tensor rows_of(int rank, int step) { return at::tensor({rank, 4, 2 + step, 4}, at::kLong); }

class DdpInContexts : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { at::set_num_threads(1); }
  DdpInContexts() {
    the_table = numbers({10, 4}, 50).requires_grad_();
    the_head = numbers({3, 3}, 51).requires_grad_();
    for (int rank = 0; rank <= kTrainers; ++rank) furnish(workers_[rank]);
  }
  void TearDown() override {
    expect_nothing_held(workers_);
    the_table = the_head = Tensor();
  }

  // Each trainer on a thread of its own, as one rank of the group and one worker.
  void train(const std::function<void(int rank)>& body) {
    run_on_fake_ranks(kTrainers, [&](int rank) {
      CurrentWorker current(workers_[rank]);
      body(rank);
    });
  }
  Tensor gradient_at_server(const Context& context, const Tensor& leaf) {
    const auto state = AutogradRoom::of(workers_[kServer])->find(context.id());
    return state ? state->leaves->find(leaf) : Tensor();
  }

  Workers workers_{
      {.count = kTrainers + 1, .transport = "loopback", .settings = {}, .reactor = {}}};
};

TEST_F(DdpInContexts, AveragesGoToTheContextAndOthersStayWhatTheyAre) {
  for (const DdpOptions& options :
       {DdpOptions{}, DdpOptions{.bucket_bytes = 64, .first_bucket_bytes = 32},
        DdpOptions{.find_unused_parameters = true}, DdpOptions{.static_graph = true}}) {
    train([&](int rank) {
      const auto net = seeded(std::make_shared<TwoLayers>(), 3);
      Ddp<TwoLayers> ddp(net, options);
      for (int step = 0; step < 4; ++step) {
        const auto loss_of = [&](int one) {
          return head(net->forward(look_up(rows_of(one, step)))).sin().sum();
        };
        const Tensors expected = averaged(kTrainers, *net, loss_of);
        const Tensors of_server = torch::autograd::grad({loss_of(rank)}, {the_table, the_head});
        Context context;
        const Tensor x = rpc_sync(kServer, look_up, rows_of(rank, step));
        const Tensor loss = rpc_sync(kServer, head, ddp(x)).sin().sum();
        context.backward({loss});
        Tensors ours;
        for (const Tensor& one : net->parameters()) {
          ours.push_back(context.gradient(one));
          EXPECT_FALSE(one.grad().defined());
        }
        expect_equal(ours, expected, "step " + std::to_string(step));
        expect_equal(
            {gradient_at_server(context, the_table), gradient_at_server(context, the_head)},
            of_server, "on the server");
      }
      EXPECT_EQ(ddp.statistics().iterations, 4u);
    });
  }
}

TEST_F(DdpInContexts, GradientsOfOneContextOutliveTheNext) {
  train([&](int rank) {
    const auto net = seeded(std::make_shared<TwoLayers>(), 3);
    Ddp<TwoLayers> ddp(net);
    Tensors kept;
    std::vector<Tensors> expected;
    for (int step = 0; step < 3; ++step) {
      expected.push_back(averaged(kTrainers, *net, [&](int one) {
        return net->forward(look_up(rows_of(one, step))).sum();
      }));
      Context context;
      context.backward({ddp(rpc_sync(kServer, look_up, rows_of(rank, step))).sum()});
      kept.push_back(context.gradient(net->first->weight));
    }
    for (size_t step = 0; step < 3; ++step) {
      EXPECT_TRUE(at::equal(kept[step], expected[step][0])) << "step " << step;
    }
    // Expect: and what goes to .grad still does.
    const Tensors local =
        averaged(kTrainers, *net, [&](int one) { return net->forward(input_of(one)).sum(); });
    ddp(input_of(rank)).sum().backward();
    expect_equal(gradients_of(*net), local, "in .grad");
  });
}

TEST_F(DdpInContexts, OptimizersOfAContextLearnTheSameOnAllTrainers) {
  const auto plain = seeded(std::make_shared<TwoLayers>(), 3);
  for (int step = 0; step < 5; ++step) {
    const Tensors gradients = averaged(kTrainers, *plain, [&](int one) {
      return plain->forward(look_up(rows_of(one, step))).sin().sum();
    });
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < gradients.size(); ++i) plain->parameters()[i].sub_(gradients[i], 0.1);
  }
  train([&](int rank) {
    const auto net = seeded(std::make_shared<TwoLayers>(), 3);
    Ddp<TwoLayers> ddp(net);
    DistributedOptimizer<torch::optim::SGD> optimizer(RRef<Tensors>(net->parameters()),
                                                      torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 5; ++step) {
      Context context;
      const Tensor x = rpc_sync(kServer, look_up, rows_of(rank, step));
      context.backward({ddp(x).sin().sum()});
      optimizer.step(context);
    }
    for (size_t i = 0; i < net->parameters().size(); ++i) {
      EXPECT_TRUE(at::allclose(net->parameters()[i], plain->parameters()[i], 1e-6, 1e-7));
    }
  });
}

TEST_F(DdpInContexts, UnusedParametersAreFoundThoughTheGraphGoesOnElsewhere) {
  // The server's layer lies between the trunk and the branches.
  struct Through : torch::nn::Module {
    Through() {
      trunk = register_module("trunk", torch::nn::Linear(4, 3));
      left = register_module("left", torch::nn::Linear(3, 2));
      right = register_module("right", torch::nn::Linear(3, 2));
    }
    Tensor forward(const Tensor& x, bool to_left, bool far) {
      const Tensor h = trunk->forward(x);
      const Tensor between = far ? rpc_sync(kServer, head, h) : head(h);
      return (to_left ? left : right)->forward(between);
    }
    torch::nn::Linear trunk{nullptr}, left{nullptr}, right{nullptr};
  };
  train([&](int rank) {
    const auto net = seeded(std::make_shared<Through>(), 3);
    Ddp<Through> ddp(net, {.find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      const Tensors expected = averaged(kTrainers, *net, [&](int one) {
        return net->forward(input_of(one, step), (one + step) % 2 == 0, false).sum();
      });
      Context context;
      context.backward({ddp(input_of(rank, step), (rank + step) % 2 == 0, true).sum()});
      Tensors ours;
      for (const Tensor& one : net->parameters()) ours.push_back(context.gradient(one));
      expect_equal(ours, expected, "step " + std::to_string(step));
    }
  });
}

TEST_F(DdpInContexts, APassThatFailsElsewhereEndsTheOtherTrainersToo) {
  struct Interrupted : torch::nn::Module {
    Interrupted() {
      first = register_module("first", torch::nn::Linear(4, 3));
      second = register_module("second", torch::nn::Linear(3, 3));
    }
    Tensor forward(const Tensor& x, bool fails) {
      const Tensor h = first->forward(x);
      return second->forward(fails ? rpc_sync(kServer, broken, h) : h * 2);
    }
    torch::nn::Linear first{nullptr}, second{nullptr};
  };
  train([&](int rank) {
    Ddp<Interrupted> ddp(seeded(std::make_shared<Interrupted>(), 3));
    Context context;
    const Tensor y = ddp(input_of(rank), rank == 0);
    const Error error = error_of([&] { context.backward({y.sum()}); });
    if (rank == 0) {
      EXPECT_THAT(error.what(), HasSubstr("the server is out of luck"));
    } else {
      EXPECT_EQ(error.code(), Code::kCancelled);
      EXPECT_THAT(error.what(), HasSubstr("a backward pass of rank 0 has thrown"));
    }
    EXPECT_NE(code_of([&] { ddp(input_of(rank), false); }), Code::kOk);
  });
}

}  // namespace
}  // namespace farspan::testing
