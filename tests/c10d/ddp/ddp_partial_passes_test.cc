// The rules under test: c10d/ddp/README.md, "Passes that leave .grad alone".
#include <torch/csrc/autograd/autograd.h>

#include "c10d/ddp/ddp_suite.h"

namespace farspan::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class DdpPartialPasses : public DdpSuite {
 protected:
  static inline const DdpOptions kModes[] = {
      {}, {.find_unused_parameters = true}, {.static_graph = true}};

  // Trains with a loss of the net's function in each mode, and compares with the average.
  //   loss  of a forward function and an input that requires a gradient
  using Forward = std::function<Tensor(const Tensor& x)>;
  void expect_averages(const std::function<Tensor(const Forward&, const Tensor& x)>& loss) {
    for (const DdpOptions& options : kModes) {
      on_each(2, [&](int rank) {
        const auto net = seeded(std::make_shared<TwoLayers>(), 3);
        Ddp<TwoLayers> ddp(net, options);
        for (int step = 0; step < 4; ++step) {
          const Tensors expected = averaged(2, *net, [&](int one) {
            return loss([&](const Tensor& x) { return net->forward(x); },
                        input_of(one, step).requires_grad_());
          });
          drop_gradients(*net);
          loss([&](const Tensor& x) { return ddp(x); }, input_of(rank, step).requires_grad_())
              .backward();
          expect_equal(gradients_of(*net), expected, "step " + std::to_string(step));
        }
        EXPECT_EQ(ddp.statistics().iterations, 4u);
      });
    }
  }
};
FARSPAN_DDP_SUITE(DdpPartialPasses);

Tensor gradient_of(const Tensor& y, const Tensor& x, bool create_graph = false) {
  return torch::autograd::grad({y}, {x}, {}, /*retain_graph=*/true, create_graph)[0];
}

TEST_P(DdpPartialPasses, GradOfTheInputOrOfOutputsIsNoReduction) {
  expect_averages([](const auto& forward, const Tensor& x) {
    const Tensor y = forward(x), loss = y.sin().sum();
    EXPECT_TRUE(at::equal(gradient_of(loss, y), y.detach().cos()));
    EXPECT_EQ(gradient_of(loss, x).sizes(), x.sizes());
    return loss;
  });
}

TEST_P(DdpPartialPasses, AGradientPenaltyIsAveragedWithTheLoss) {
  expect_averages([](const auto& forward, const Tensor& x) {
    const Tensor y = forward(x).sin().sum();
    return y + gradient_of(y, x, /*create_graph=*/true).square().sum();
  });
}

TEST_P(DdpPartialPasses, GradOfParametersIsNoReductionAndStaysOnTheRank) {
  for (const DdpOptions& options : kModes) {
    on_each(2, [&](int rank) {
      const auto net = seeded(std::make_shared<TwoLayers>(), 3);
      Ddp<TwoLayers> ddp(net, options);
      for (int step = 0; step < 3; ++step) {
        const auto loss = [&](int one) { return net->forward(input_of(one, step)).sin().sum(); };
        const Tensors own = torch::autograd::grad({loss(rank)}, net->parameters());
        const Tensors expected = averaged(2, *net, loss);
        drop_gradients(*net);
        const Tensor y = ddp(input_of(rank, step)).sin().sum();
        expect_equal(torch::autograd::grad({y}, net->parameters(), {}, true), own, "its own");
        for (const Tensor& one : net->parameters()) EXPECT_FALSE(one.grad().defined());
        y.backward();
        expect_equal(gradients_of(*net), expected, "step " + std::to_string(step));
      }
    });
  }
}

// No bias but the first takes part, and the pass does not come to the output.
TEST_P(DdpPartialPasses, APenaltyAloneLeavesParametersUnused) {
  on_each(2, [](int rank) {
    const auto net = seeded(std::make_shared<TwoLayers>(), 3);
    Ddp<TwoLayers> ddp(net, {.find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      const auto penalty = [&](const Tensor& x, const Tensor& y) {
        return gradient_of(y.sum(), x, /*create_graph=*/true).square().sum();
      };
      const Tensors expected = averaged(2, *net, [&](int one) {
        const Tensor x = input_of(one, step).requires_grad_();
        return penalty(x, net->forward(x));
      });
      drop_gradients(*net);
      const Tensor x = input_of(rank, step).requires_grad_();
      penalty(x, ddp(x)).backward();
      EXPECT_FALSE(net->second->bias.grad().defined());
      Tensors ours = gradients_of(*net);
      ours.back() = expected.back();
      expect_equal(ours, expected, "step " + std::to_string(step));
    }
  });
}

TEST_P(DdpPartialPasses, OneThatThrowsIsNoFailureOfDdp) {
  for (const DdpOptions& options : kModes) {
    on_each(2, [&](int rank) {
      const auto net = seeded(std::make_shared<TwoLayers>(), 3);
      Ddp<TwoLayers> ddp(net, options);
      const Tensors expected =
          averaged(2, *net, [&](int one) { return net->forward(input_of(one)).sum(); });
      Tensor x = input_of(rank).requires_grad_();
      bool throws = rank == 1;
      x.register_hook([&](const Tensor&) {
        if (throws) throw std::runtime_error("out of luck");
      });
      const Tensor y = ddp(x).sum();
      if (throws) {
        EXPECT_THROW(gradient_of(y, x), std::runtime_error);
      }
      throws = false;
      y.backward();
      expect_equal(gradients_of(*net), expected, "after it");
    });
  }
}

// backward() for some leaves only.
void backward_to(const Tensor& y, const Tensors& leaves) {
  torch::autograd::backward({y}, {}, /*retain_graph=*/true, /*create_graph=*/false, leaves);
}

TEST_P(DdpPartialPasses, BackwardToOtherLeavesIsNoReduction) {
  expect_averages([](const auto& forward, const Tensor& x) {
    const Tensor y = forward(x).sum();
    backward_to(y, {x});
    EXPECT_TRUE(x.grad().defined());
    return y;
  });
}

TEST_P(DdpPartialPasses, BackwardToSomeParametersLeavesTheOthersUnused) {
  on_each(2, [](int rank) {
    const auto net = seeded(std::make_shared<TwoLayers>(), 3);
    Ddp<TwoLayers> ddp(net, {.find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      const auto loss = [&](int one) { return net->forward(input_of(one, step)).sum(); };
      // Rank 0 takes the gradient of one parameter, rank 1 those of all.
      const Tensors all = averaged(2, *net, loss);
      const Tensors of_rank_1 = averaged(1, *net, [&](int) { return loss(1); });
      drop_gradients(*net);
      const Tensor y = ddp(input_of(rank, step)).sum();
      if (rank == 0) {
        backward_to(y, {net->second->weight});
      } else {
        y.backward();
      }
      for (size_t i = 0; i < all.size(); ++i) {
        const Tensor expected = i == 2 ? all[i] : of_rank_1[i] / 2;
        EXPECT_TRUE(at::equal(gradients_of(*net)[i], expected)) << step << ", parameter " << i;
      }
    }
  });
}

TEST_P(DdpPartialPasses, WithoutFindUnusedParametersThoseThatAreMissingAreNamed) {
  on_each(1, [](int) {
    const auto net = seeded(std::make_shared<TwoLayers>(), 3);
    Ddp<TwoLayers> ddp(net);
    backward_to(ddp(input_of(0)).sum(), {net->second->weight});
    EXPECT_THAT(error_of([&] { ddp(input_of(0)); }).what(),
                AllOf(HasSubstr("gave no gradient to 'first.weight', 'first.bias', 'second.bias'"),
                      HasSubstr("set find_unused_parameters")));
    drop_gradients(*net);
    Ddp<TwoLayers> fixed(net, {.group = dist::new_group({0}), .static_graph = true});
    fixed(input_of(0)).sum().backward();
    const Tensor y = fixed(input_of(0)).sum();
    EXPECT_THAT(error_of([&] { backward_to(y, {net->second->weight}); }).what(),
                HasSubstr("got fewer gradients"));
  });
}

// The others wait for a gradient of its, and do without.
TEST_P(DdpPartialPasses, ARankThatTakesNothingElseIsNamedWhenItLeaves) {
  for (const DdpOptions& options : kModes) {
    on_each(2, [&](int rank) {
      const auto net = seeded(std::make_shared<TwoLayers>(), 3);
      auto ddp = std::make_unique<Ddp<TwoLayers>>(net, options);
      const Tensor x = input_of(rank).requires_grad_(), y = (*ddp)(x).sum();
      if (rank == 0) {
        gradient_of(y, x);
        return;
      }
      const Error error = error_of([&] { y.backward(); });
      EXPECT_EQ(error.code(), Code::kDisconnected);
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("rank 0"), HasSubstr("run as many forward and backward passes")));
    });
  }
}

TEST_P(DdpPartialPasses, InJoinRanksThatTakeOtherPassesAreNamed) {
  on_each(2, [](int rank) {
    Ddp<TwoLayers> ddp(seeded(std::make_shared<TwoLayers>(), 3), {.find_unused_parameters = true});
    const Error error = error_of([&] {
      ddp.join([&] {
        for (int step = 0; step < 2; ++step) {
          const Tensor x = input_of(rank, step).requires_grad_(), y = ddp(x).sum();
          if (rank == 0) gradient_of(y, x);
          if (rank == 1) y.backward();
        }
      });
    });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0"), HasSubstr("rank 1")));
  });
}

}  // namespace
}  // namespace farspan::testing
