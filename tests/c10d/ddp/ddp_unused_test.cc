// The rules under test: c10d/ddp/README.md, "Unused parameters" and "Static graphs".
#include <array>
#include <map>
#include <optional>
#include <tuple>

#include <torch/csrc/autograd/custom_function.h>

#include <farspan/c10d/values/codec_struct.h>

#include "c10d/ddp/ddp_suite.h"

namespace farspan::testing {
namespace {

class DdpUnused : public DdpSuite {};
FARSPAN_DDP_SUITE(DdpUnused);

const char* const kWays[] = {"left", "right", "both"};

TEST_P(DdpUnused, ParametersMayDifferFromRankToRankAndFromStepToStep) {
  for (const bool views : {true, false}) {
    on_each(3, [&](int rank) {
      const auto net = seeded(std::make_shared<Branches>(), 3);
      Ddp<Branches> ddp(net, {.gradient_as_bucket_view = views, .find_unused_parameters = true});
      for (int step = 0; step < 6; ++step) {
        const auto way = [&](int one) { return kWays[(one + step) % 3]; };
        const Tensors expected = averaged(
            3, *net, [&](int one) { return net->forward(input_of(one, step), way(one)).sum(); });
        drop_gradients(*net);
        ddp(input_of(rank, step), way(rank)).sum().backward();
        expect_equal(gradients_of(*net), expected, "step " + std::to_string(step));
      }
    });
  }
}

TEST_P(DdpUnused, WhatNoRankUsesKeepsItsGradientBitByBit) {
  for (const bool views : {true, false}) {
    on_each(3, [&](int rank) {
      const auto net = seeded(std::make_shared<Branches>(), 3);
      Ddp<Branches> ddp(net, {.gradient_as_bucket_view = views, .find_unused_parameters = true});
      ddp(input_of(rank), "left").sum().backward();
      EXPECT_FALSE(net->right->weight.grad().defined()) << "undefined stays undefined";
      ddp(input_of(rank), "both").sum().backward();
      const Tensor average = net->right->weight.grad().clone();
      net->right->weight.grad().mul_(rank + 1);  // from now on each rank has another one
      const Tensor before = net->right->weight.grad().clone();
      for (int step = 0; step < 2; ++step) {
        ddp(input_of(rank), "left").sum().backward();
        EXPECT_TRUE(at::equal(net->right->weight.grad(), before));
      }
      // Expect: and it counts again once one rank uses it.
      const Tensors more = averaged(3, *net, [&](int one) {
        return net->forward(input_of(one), one == 1 ? "right" : "left").sum();
      });
      ddp(input_of(rank), rank == 1 ? "right" : "left").sum().backward();
      EXPECT_TRUE(at::allclose(net->right->weight.grad(), average * 2 + more[4], 1e-5, 1e-6));
    });
  }
}

TEST_P(DdpUnused, WhatIsUsedInNoSyncOnlyIsAveragedToo) {
  on_each(2, [](int rank) {
    const auto net = seeded(std::make_shared<Branches>(), 3);
    Ddp<Branches> ddp(net, {.find_unused_parameters = true});
    const Tensors expected = averaged(2, *net, [&](int one) {
      const Tensor last = net->forward(input_of(one), "left").sum();
      return one == 0 ? last + net->forward(input_of(one), "right").sum() : last;
    });
    drop_gradients(*net);
    if (rank == 0) {
      const auto local = ddp.no_sync();
      ddp(input_of(rank), "right").sum().backward();
    }
    // Rank 1 has the same forward passes of rank 0's buffers: there are none.
    ddp(input_of(rank), "left").sum().backward();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::allclose(gradients_of(*net)[i], expected[i], 1e-5, 1e-6)) << i;
    }
  });
}

// An output that the loss leaves out has parameters of its own.
struct TwoOutputs : torch::nn::Module {
  TwoOutputs() {
    trunk = register_module("trunk", torch::nn::Linear(4, 4));
    one = register_module("one", torch::nn::Linear(4, 3));
    two = register_module("two", torch::nn::Linear(4, 3));
  }
  std::tuple<Tensor, Tensor> forward(const Tensor& x) {
    const Tensor h = trunk->forward(x);
    return {one->forward(h), two->forward(h)};
  }
  torch::nn::Linear trunk{nullptr}, one{nullptr}, two{nullptr};
};

TEST_P(DdpUnused, OutputsMayBeLeftOutOfTheLoss) {
  on_each(2, [](int rank) {
    const auto net = seeded(std::make_shared<TwoOutputs>(), 3);
    Ddp<TwoOutputs> ddp(net, {.find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      const Tensors expected = averaged(2, *net, [&](int rank_of) {
        const auto [a, b] = net->forward(input_of(rank_of, step));
        return rank_of == 0 ? a.sum() : b.sum();
      });
      drop_gradients(*net);
      const auto [a, b] = ddp(input_of(rank, step));
      (rank == 0 ? a : b).sum().backward();
      expect_equal(gradients_of(*net), expected, "step " + std::to_string(step));
    }
  });
}

// Its outputs: of the graph, of no graph, and a leaf that is no parameter.
struct WithOthers : torch::nn::Module {
  WithOthers() { layer = register_module("layer", torch::nn::Linear(4, 3)); }
  std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& x) {
    const Tensor leaf = at::ones({1}).requires_grad_();
    return {layer->forward(x) * leaf, at::ones({2}), leaf};
  }
  torch::nn::Linear layer{nullptr};
};

TEST_P(DdpUnused, OutputsMayHoldWhatLeadsToNoParameter) {
  on_each(2, [](int rank) {
    for (const DdpOptions& options : {DdpOptions{}, DdpOptions{.find_unused_parameters = true},
                                      DdpOptions{.static_graph = true}}) {
      const auto net = seeded(std::make_shared<WithOthers>(), 3);
      Ddp<WithOthers> ddp(net, options);
      for (int step = 0; step < 3; ++step) {
        const Tensors expected = averaged(
            2, *net, [&](int one) { return std::get<0>(net->forward(input_of(one, step))).sum(); });
        drop_gradients(*net);
        const auto [y, constant, leaf] = ddp(input_of(rank, step));
        (y.sum() + constant.sum() + leaf.sum()).backward();
        expect_equal(gradients_of(*net), expected, "step " + std::to_string(step));
      }
    }
  });
}

TEST_P(DdpUnused, AStaticGraphFindsThemOnce) {
  for (const bool views : {true, false}) {
    on_each(3, [&](int rank) {
      const auto net = seeded(std::make_shared<Branches>(), 3);
      Ddp<Branches> ddp(net, {.bucket_bytes = 64,
                              .first_bucket_bytes = 16,
                              .gradient_as_bucket_view = views,
                              .static_graph = true});
      const auto way = [](int one) { return one == 1 ? "left" : "both"; };
      for (int step = 0; step < 4; ++step) {
        const Tensors expected = averaged(
            3, *net, [&](int one) { return net->forward(input_of(one, step), way(one)).sum(); });
        drop_gradients(*net);
        ddp(input_of(rank, step), way(rank)).sum().backward();
        expect_equal(gradients_of(*net), expected, "step " + std::to_string(step));
      }
      EXPECT_TRUE(ddp.statistics().rebuilt);
      EXPECT_GT(ddp.statistics().bucket_bytes.size(), 1u);
    });
  }
}

// The loss holds a parameter that comes to it beside the outputs, too, and sooner.
TEST_P(DdpUnused, AParameterMayComeToTheLossBesideTheOutputs) {
  on_each(2, [](int rank) {
    for (const bool is_static : {false, true}) {
      const auto net = seeded(std::make_shared<Branches>(), 3);
      Ddp<Branches> ddp(net, {.static_graph = is_static});
      for (int step = 0; step < 3; ++step) {
        const auto loss = [&](const Tensor& y) {
          return y.sum() + net->right->bias.square().sum();
        };
        const char* const way = is_static ? "left" : "both";
        const Tensors expected =
            averaged(2, *net, [&](int one) { return loss(net->forward(input_of(one), way)); });
        drop_gradients(*net);
        const Tensor y = ddp(input_of(rank), way);
        loss(y).backward();
        EXPECT_TRUE(at::equal(net->right->bias.grad(), expected[5]));
        EXPECT_TRUE(at::equal(net->left->weight.grad(), expected[2]));
      }
    }
  });
}

TEST_P(DdpUnused, AStaticGraphLeavesWhatNoRankUsesAlone) {
  on_each(2, [](int rank) {
    const auto net = seeded(std::make_shared<Branches>(), 3);
    Ddp<Branches> ddp(net, {.static_graph = true});
    for (int step = 0; step < 3; ++step) {
      ddp(input_of(rank, step), "right").sum().backward();
      EXPECT_FALSE(net->left->weight.grad().defined());
      EXPECT_TRUE(net->right->weight.grad().defined());
    }
  });
}

// Runs the layer again in backward, in a pass of its own, as reentrant checkpointing does.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        torch::nn::Linear layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<int64_t>(layer.get());
    const at::NoGradGuard no_grad;
    return layer->forward(x).tanh();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    auto* const layer =
        reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    const at::AutoGradMode recording(true);
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({layer->forward(x).tanh()}, {gradients[0]});
    return {x.grad(), Tensor()};
  }
};

// [batch, 4] -> [batch, 4]; each layer checkpointed as often as it is told.
struct Checkpointed : torch::nn::Module {
  explicit Checkpointed(int how_often) : times(how_often) {
    first = register_module("first", torch::nn::Linear(4, 4));
    second = register_module("second", torch::nn::Linear(4, 4));
  }
  Tensor forward(Tensor x) {
    if (!x.requires_grad()) x = x.detach().requires_grad_();
    for (int i = 0; i < times; ++i) x = Checkpoint::apply(x, first);
    return Checkpoint::apply(x, second);
  }
  Tensor plain(Tensor x) {
    for (int i = 0; i < times; ++i) x = first->forward(x).tanh();
    return second->forward(x).tanh();
  }
  const int times;
  torch::nn::Linear first{nullptr}, second{nullptr};
};

void train_checkpointed(int rank, int times, const DdpOptions& options) {
  const auto net = seeded(std::make_shared<Checkpointed>(times), 3);
  Ddp<Checkpointed> ddp(net, options);
  for (int step = 0; step < 4; ++step) {
    const Tensors expected =
        averaged(2, *net, [&](int one) { return net->plain(input_of(one, step)).sin().sum(); });
    drop_gradients(*net);
    ddp(input_of(rank, step)).sin().sum().backward();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::allclose(gradients_of(*net)[i], expected[i], 1e-5, 1e-6))
          << "step " << step << ", parameter " << i;
    }
  }
}

TEST_P(DdpUnused, ACheckpointedLayerIsReducedOnceItsPassIsOver) {
  on_each(2, [](int rank) {
    train_checkpointed(rank, 1, {});
    train_checkpointed(rank, 1, {.bucket_bytes = 1, .first_bucket_bytes = 1});
  });
}

TEST_P(DdpUnused, AStaticGraphTakesSeveralGradientsOfAParameter) {
  on_each(2, [](int rank) {
    for (const bool views : {true, false}) {
      train_checkpointed(rank, 3, {.gradient_as_bucket_view = views, .static_graph = true});
      train_checkpointed(rank, 2,
                         {.bucket_bytes = 1,
                          .first_bucket_bytes = 1,
                          .gradient_as_bucket_view = views,
                          .static_graph = true});
    }
  });
}

TEST_P(DdpUnused, WithoutAStaticGraphSeveralGradientsAreRefused) {
  on_each(1, [](int rank) {
    const Error error = error_of([&] { train_checkpointed(rank, 2, {}); });
    EXPECT_THAT(error.what(), ::testing::HasSubstr("set static_graph"));
  });
}

// [batch, 4] -> [batch, 4] twice, by a layer each.
struct TwoWays : torch::nn::Module {
  TwoWays() {
    one = register_module("one", torch::nn::Linear(4, 4));
    two = register_module("two", torch::nn::Linear(4, 4));
  }
  std::tuple<Tensor, Tensor> forward(const Tensor& x) { return {one->forward(x), two->forward(x)}; }
  torch::nn::Linear one{nullptr}, two{nullptr};
};

// The loss uses a layer in a checkpoint: its gradients come before any of an output.
TEST_P(DdpUnused, APassInsideOfAnotherDoesNotEndTheIteration) {
  on_each(2, [](int rank) {
    const auto net = seeded(std::make_shared<TwoWays>(), 3);
    Ddp<TwoWays> ddp(net, {.find_unused_parameters = true});
    for (int step = 0; step < 3; ++step) {
      const Tensors expected = averaged(2, *net, [&](int one) {
        return net->two->forward(net->one->forward(input_of(one, step))).tanh().sum();
      });
      drop_gradients(*net);
      const auto [a, b] = ddp(input_of(rank, step));
      Checkpoint::apply(a, net->two).sum().backward();
      expect_equal(gradients_of(*net), expected, "step " + std::to_string(step));
    }
  });
}

struct Fields {
  Tensor scores;
  int64_t count = 0;
};
template <class Visit>
void visit_tensors(const Fields& fields, Visit&& visit) {
  visit(fields.scores);
}

struct Listed {
  Tensor one;
  int64_t count = 0;
  std::vector<Tensor> more;
};
FARSPAN_STRUCT(Listed, one, count, more);

template <class T>
size_t count_in(const T& value) {
  const auto found = dist::tensors_in(value);
  return found ? found->size() : 999;
}

TEST(OutputTensors, AreFoundInWhateverHoldsThem) {
  const Tensor t = at::ones({1});
  EXPECT_EQ(count_in(t), 1u);
  EXPECT_EQ(count_in(std::vector<Tensor>{t, t}), 2u);
  EXPECT_EQ(count_in(std::tuple(t, 3, std::string("x"), std::pair(t, true))), 2u);
  EXPECT_EQ(count_in(std::optional<Tensor>(t)), 1u);
  EXPECT_EQ(count_in(std::optional<Tensor>()), 0u);
  EXPECT_EQ(count_in(std::array<Tensor, 3>{t, t, t}), 3u);
  EXPECT_EQ(count_in(std::map<std::string, std::vector<Tensor>>{{"a", {t, t}}, {"b", {t}}}), 3u);
  EXPECT_EQ(count_in(Fields{t, 1}), 1u);
  EXPECT_EQ(count_in(std::vector<Fields>{{t, 1}, {t, 2}}), 2u);
  EXPECT_EQ(count_in(std::make_shared<Fields>(Fields{t, 1})), 1u);
  EXPECT_EQ(count_in(Listed{t, 1, {t, t}}), 3u);
  struct Unknown {
    Tensor t;
  };
  EXPECT_FALSE(dist::tensors_in(Unknown{t}).has_value());
  EXPECT_FALSE(dist::tensors_in(std::vector<Unknown>{}).has_value());
}

}  // namespace
}  // namespace farspan::testing
