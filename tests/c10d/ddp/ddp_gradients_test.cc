// The rules under test: c10d/ddp/README.md, "An iteration": what gradients are after backward().
#include <sstream>

#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "c10d/ddp/ddp_suite.h"

namespace farspan::testing {
namespace {

class DdpGradients : public DdpSuite {};
FARSPAN_DDP_SUITE(DdpGradients);

TEST_P(DdpGradients, AreTheSumInTheOrderOfRanksDividedByTheirNumber) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const int ranks : {1, 2, 3, 4}) {
      on_each(ranks, [&](int rank) {
        const auto net = seeded(std::make_shared<TwoLayers>(), 3);
        net->to(type);
        Ddp<TwoLayers> ddp(net);
        for (int step = 0; step < 4; ++step) {
          const Tensors expected = averaged(ranks, *net, [&](int one) {
            return net->forward(input_of(one, step, type)).sin().sum();
          });
          drop_gradients(*net);
          ddp(input_of(rank, step, type)).sin().sum().backward();
          expect_equal(gradients_of(*net), expected, "step " + std::to_string(step));
        }
      });
    }
  }
}

TEST_P(DdpGradients, AnyModuleCanBeWrapped) {
  on_each(2, [](int rank) {
    dist::DistributedDataParallel whole(std::make_shared<TwoLayers>());
    dist::DistributedDataParallel held(torch::nn::Linear(4, 3));
    dist::DistributedDataParallel<torch::nn::Linear> named(torch::nn::Linear(4, 3));
    static_assert(std::is_same_v<decltype(whole(Tensor())), Tensor>);
    for (const Tensor& y :
         {whole(input_of(rank)), held.forward(input_of(rank)), named(input_of(rank))}) {
      EXPECT_EQ(y.sizes(), at::IntArrayRef({5, 3}));
    }
    EXPECT_EQ(whole.parameters().size(), 4u);
    EXPECT_EQ(held.named_parameters().keys()[0], "module.weight");
    EXPECT_EQ(named.module()->weight.sizes(), at::IntArrayRef({3, 4}));
    whole.eval();
    EXPECT_FALSE(whole.module()->is_training());
  });
}

TEST_P(DdpGradients, ParametersAndBuffersOfRank0ComeToAllAtConstruction) {
  on_each(3, [](int rank) {
    const auto net = seeded(std::make_shared<TwoLayers>(), rank * 10);
    const auto first = seeded(std::make_shared<TwoLayers>(), 0);
    net->second->weight.requires_grad_(false);
    const auto norm = net->register_module("norm", torch::nn::BatchNorm1d(3));
    norm->running_mean.fill_(rank);
    norm->num_batches_tracked.fill_(7 + rank);
    const Ddp<TwoLayers> ddp(net);
    EXPECT_TRUE(at::equal(net->first->weight, first->first->weight));
    EXPECT_TRUE(at::equal(net->second->weight, first->second->weight)) << "frozen, but equal";
    EXPECT_TRUE(at::equal(norm->running_mean, at::zeros({3})));
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 7);
    EXPECT_TRUE(net->first->weight.requires_grad());
  });
}

TEST_P(DdpGradients, WithoutInitSyncEachRankKeepsItsParameters) {
  on_each(2, [](int rank) {
    const auto net = seeded(std::make_shared<TwoLayers>(), rank * 10);
    const Ddp<TwoLayers> ddp(net, {.init_sync = false});
    EXPECT_TRUE(at::equal(net->first->weight, numbers({8, 4}, rank * 10 + 1)));
  });
}

TEST_P(DdpGradients, AreAveragedOverTheRanksOfTheGroup) {
  on_each(3, [](int rank) {
    const auto some = dist::new_group({2, 0});
    const auto net = seeded(std::make_shared<TwoLayers>(), rank * 10);
    if (rank == 1) {
      EXPECT_EQ(code_of([&] { Ddp<TwoLayers> ddp(net, {.group = some}); }), Code::kInvalidArgument);
      return;
    }
    Ddp<TwoLayers> ddp(net, {.group = some});
    EXPECT_TRUE(at::equal(net->first->weight, numbers({8, 4}, 21))) << "the group's first is 2";
    for (int step = 0; step < 3; ++step) {
      const Tensors expected = averaged(2, *net, [&](int one) {
        return net->forward(input_of(some->global_rank(one), step)).sum();
      });
      drop_gradients(*net);
      ddp(input_of(rank, step)).sum().backward();
      expect_equal(gradients_of(*net), expected, "step " + std::to_string(step));
    }
  });
}

TEST_P(DdpGradients, AddUpWhereTheyAreNotSetToZero) {
  for (const bool views : {true, false}) {
    on_each(2, [&](int rank) {
      const auto net = seeded(std::make_shared<TwoLayers>(), 3);
      Ddp<TwoLayers> ddp(net, {.gradient_as_bucket_view = views});
      const auto loss = [&](int one) { return net->forward(input_of(one)).sum(); };
      const Tensors once = averaged(2, *net, loss);
      for (int step = 1; step <= 4; ++step) {
        ddp(input_of(rank)).sum().backward();
        for (size_t i = 0; i < once.size(); ++i) {
          EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), once[i] * step, 1e-5, 1e-6));
        }
      }
    });
  }
}

TEST_P(DdpGradients, LieInTheirBucketOrWhereTheyWere) {
  on_each(2, [](int rank) {
    for (const bool views : {true, false}) {
      const auto net = seeded(std::make_shared<TwoLayers>(), 3);
      Ddp<TwoLayers> ddp(net, {.gradient_as_bucket_view = views});
      const auto step = [&] { ddp(input_of(rank)).sum().backward(); };
      step();
      step();
      const auto storage = [](const Tensor& tensor) { return tensor.storage().data(); };
      const void* const first = storage(net->first->weight.grad());
      EXPECT_EQ(storage(net->second->bias.grad()) == first, views);
      const Tensor held = net->first->weight.grad();
      step();
      EXPECT_EQ(held.data_ptr(), net->first->weight.grad().data_ptr()) << "no memory is new";
    }
  });
}

TEST_P(DdpGradients, CanBeClearedBothWays) {
  on_each(2, [](int rank) {
    for (const bool to_none : {true, false}) {
      const auto net = seeded(std::make_shared<TwoLayers>(), 3);
      Ddp<TwoLayers> ddp(net);
      torch::optim::SGD optimizer(ddp.parameters(), 0.1);
      for (int step = 0; step < 3; ++step) {
        const Tensors expected =
            averaged(2, *net, [&](int one) { return net->forward(input_of(one, step)).sum(); });
        optimizer.zero_grad(to_none);
        ddp(input_of(rank, step)).sum().backward();
        expect_equal(gradients_of(*net), expected, to_none ? "to none" : "to zero");
        optimizer.step();
      }
    }
  });
}

TEST_P(DdpGradients, StayOnTheRankInNoSyncAndAreAveragedWithTheNextOnes) {
  for (const bool views : {true, false}) {
    on_each(3, [&](int rank) {
      const auto net = seeded(std::make_shared<TwoLayers>(), 3);
      Ddp<TwoLayers> ddp(net, {.gradient_as_bucket_view = views});
      for (int round = 0; round < 3; ++round) {  // also across the rebuilding of buckets
        drop_gradients(*net);
        const Tensors own = averaged(1, *net, [&](int) {
          return net->forward(input_of(rank, 0)).sum() + net->forward(input_of(rank, 1)).sum();
        });
        const Tensors expected = averaged(3, *net, [&](int one) {
          return net->forward(input_of(one, 0)).sum() + net->forward(input_of(one, 1)).sum() +
                 net->forward(input_of(one, 2)).sum();
        });
        {
          const auto guard = ddp.no_sync();
          ddp(input_of(rank, 0)).sum().backward();
          ddp(input_of(rank, 1)).sum().backward();
        }
        for (size_t i = 0; i < own.size(); ++i) {
          EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), own[i], 1e-5, 1e-6));
        }
        ddp(input_of(rank, 2)).sum().backward();
        for (size_t i = 0; i < own.size(); ++i) {
          EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), expected[i], 1e-5, 1e-5));
        }
      }
    });
  }
}

// [batch, 4] -> [batch, 4], with buffers that each forward pass changes.
struct Normed : torch::nn::Module {
  Normed() {
    layer = register_module("layer", torch::nn::Linear(4, 4));
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
  }
  Tensor forward(const Tensor& x) { return norm->forward(layer->forward(x).tanh()); }
  torch::nn::Linear layer{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

TEST_P(DdpGradients, SeveralForwardPassesMayPrecedeOneBackward) {
  on_each(2, [](int rank) {
    const auto net = seeded(std::make_shared<Normed>(), 3);
    const auto plain = seeded(std::make_shared<Normed>(), 3);
    Ddp<Normed> ddp(net);
    const auto loss = [](auto& module, int one) {
      return (module(input_of(one, 0)).sin().sum() * module(input_of(one, 1)).cos().sum());
    };
    auto call = [&](const Tensor& x) { return plain->forward(x); };
    const Tensors expected = averaged(2, *plain, [&](int one) { return loss(call, one); });
    for (int step = 0; step < 3; ++step) {
      drop_gradients(*net);
      loss(ddp, rank).backward();
      expect_equal(gradients_of(*net), expected, "step " + std::to_string(step));
    }
  });
}

// [batch, 4] -> [batch, 4], one layer twice.
struct Twice : torch::nn::Module {
  Twice() { layer = register_module("layer", torch::nn::Linear(4, 4)); }
  Tensor forward(const Tensor& x) { return layer->forward(layer->forward(x).tanh()); }
  torch::nn::Linear layer{nullptr};
};

TEST_P(DdpGradients, AModuleMayBeUsedTwiceInAGraph) {
  on_each(2, [](int rank) {
    const auto net = seeded(std::make_shared<Twice>(), 3);
    Ddp<Twice> ddp(net);
    for (int step = 0; step < 3; ++step) {
      const Tensors expected =
          averaged(2, *net, [&](int one) { return net->forward(input_of(one, step)).sin().sum(); });
      drop_gradients(*net);
      ddp(input_of(rank, step)).sin().sum().backward();
      expect_equal(gradients_of(*net), expected, "step " + std::to_string(step));
    }
  });
}

// Two names, one tensor.
TEST_P(DdpGradients, AParameterWithTwoNamesIsReducedOnce) {
  on_each(2, [](int rank) {
    const auto net = std::make_shared<Twice>();
    net->register_module("again", net->layer.ptr());
    seeded(net, 3);
    Ddp<Twice> ddp(net);
    EXPECT_EQ(ddp.statistics().parameters, 2u);
    const Tensors expected =
        averaged(2, *net->layer, [&](int one) { return net->forward(input_of(one)).sum(); });
    drop_gradients(*net);
    ddp(input_of(rank)).sum().backward();
    expect_equal(gradients_of(*net->layer), expected, "tied");
  });
}

// A layer of each type.
struct Mixed : torch::nn::Module {
  Mixed() {
    for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      layers.push_back(
          register_parameter("w" + std::to_string(layers.size()),
                             numbers({4, 4}, static_cast<int64_t>(layers.size()), type)));
    }
  }
  Tensor forward(Tensor x) {
    for (const Tensor& one : layers) x = at::mm(x.to(one.scalar_type()), one).tanh();
    return x.to(at::kDouble);
  }
  Tensors layers;
};

TEST_P(DdpGradients, ParametersMayBeOfDifferentTypes) {
  on_each(2, [](int rank) {
    const auto net = std::make_shared<Mixed>();
    Ddp<Mixed> ddp(net);
    for (int step = 0; step < 3; ++step) {
      const Tensors expected =
          averaged(2, *net, [&](int one) { return net->forward(input_of(one, step)).sum(); });
      drop_gradients(*net);
      ddp(input_of(rank, step)).sum().backward();
      for (size_t i = 0; i < expected.size(); ++i) {
        const Tensor gradient = net->layers[i].grad();
        EXPECT_EQ(gradient.scalar_type(), net->layers[i].scalar_type());
        EXPECT_TRUE(at::allclose(gradient.to(at::kDouble), expected[i].to(at::kDouble), 1e-2,
                                 i == 2 ? 1e-2 : 0));
      }
      expect_equal({net->layers[0].grad(), net->layers[1].grad()}, {expected[0], expected[1]},
                   "exact types");
    }
    EXPECT_EQ(ddp.statistics().bucket_bytes.size(), 3u);
  });
}

// [batch, 4] -> [batch]
struct Waves : torch::nn::Module {
  Waves() {
    const Tensor real = numbers({4}, 1), imaginary = numbers({4}, 2);
    weight = register_parameter("weight", at::complex(real, imaginary));
  }
  Tensor forward(const Tensor& x) { return at::mv(x.to(at::kComplexFloat), weight).abs(); }
  Tensor weight;
};

TEST_P(DdpGradients, ParametersMayBeComplex) {
  on_each(3, [](int rank) {
    for (const bool views : {true, false}) {
      const auto net = std::make_shared<Waves>();
      Ddp<Waves> ddp(net, {.gradient_as_bucket_view = views});
      for (int step = 0; step < 3; ++step) {
        const Tensors expected =
            averaged(3, *net, [&](int one) { return net->forward(input_of(one, step)).sum(); });
        drop_gradients(*net);
        ddp(input_of(rank, step)).sum().backward();
        EXPECT_TRUE(at::allclose(net->weight.grad(), expected[0], 1e-5, 1e-6)) << step;
      }
    }
  });
}

TEST_P(DdpGradients, KeepTheLayoutOfTheirParameters) {
  on_each(2, [](int rank) {
    const auto net = std::make_shared<Twice>();
    net->layer->weight.set_data(numbers({4, 4}, 3).t());
    Ddp<Twice> ddp(net);
    for (int step = 0; step < 3; ++step) {
      const Tensors expected =
          averaged(2, *net, [&](int one) { return net->forward(input_of(one)).sum(); });
      drop_gradients(*net);
      ddp(input_of(rank)).sum().backward();
      expect_equal(gradients_of(*net), expected, "transposed");
      EXPECT_EQ(net->layer->weight.grad().strides(), net->layer->weight.strides());
    }
  });
}

// rows -> [rows, 3]
struct Lookup : torch::nn::Module {
  Lookup() {
    table = register_module("table",
                            torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).sparse(true)));
    layer = register_module("layer", torch::nn::Linear(4, 3));
  }
  Tensor forward(const Tensor& rows) { return layer->forward(table->forward(rows)); }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear layer{nullptr};
};

TEST_P(DdpGradients, OfAnEmbeddingStaySparse) {
  for (const int ranks : {2, 3}) {
    on_each(ranks, [&](int rank) {
      const auto net = seeded(std::make_shared<Lookup>(), 3);
      const auto plain = seeded(std::make_shared<Lookup>(), 3);
      Ddp<Lookup> ddp(net);
      for (int step = 0; step < 3; ++step) {
        const auto rows = [&](int one) {
          return at::tensor({one, 4 + step, one + 5, 4}, at::kLong);
        };
        Tensor table, weight;
        for (int one = 0; one < ranks; ++one) {
          drop_gradients(*plain);
          plain->forward(rows(one)).sin().sum().backward();
          const Tensor its = plain->table->weight.grad().to_dense();
          table = one == 0 ? its : table + its;
          weight = one == 0 ? plain->layer->weight.grad() : weight + plain->layer->weight.grad();
        }
        drop_gradients(*net);
        ddp(rows(rank)).sin().sum().backward();
        ASSERT_TRUE(net->table->weight.grad().is_sparse());
        EXPECT_TRUE(at::equal(net->table->weight.grad().to_dense(), table / ranks));
        EXPECT_TRUE(at::equal(net->layer->weight.grad(), weight / ranks));
      }
    });
  }
}

TEST_P(DdpGradients, OfIgnoredAndFrozenParametersStayAsTheyAre) {
  on_each(2, [](int rank) {
    const auto net = seeded(std::make_shared<TwoLayers>(), rank * 10);
    net->first->bias.requires_grad_(false);
    Ddp<TwoLayers> ddp(net, {.ignore = {"second.bias"}});
    EXPECT_EQ(ddp.statistics().parameters, 2u);
    const Tensor own_bias = numbers({3}, rank * 10 + 4);
    EXPECT_TRUE(at::equal(net->second->bias, own_bias));
    ddp(input_of(rank)).sum().backward();
    EXPECT_FALSE(net->first->bias.grad().defined());
    EXPECT_TRUE(at::equal(net->second->bias.grad(), at::full({3}, 5.0f))) << "of 5 rows here";
  });
}

TEST_P(DdpGradients, BuffersOfRank0ComeBeforeEachForwardPass) {
  on_each(2, [](int rank) {
    for (const bool broadcast : {true, false}) {
      const auto net = seeded(std::make_shared<Normed>(), 3);
      Ddp<Normed> ddp(net, {.broadcast_buffers = broadcast});
      ddp(input_of(rank, 0)).sum().backward();
      net->norm->running_mean.fill_(rank + 1);
      const Tensor x = input_of(rank, 1);
      ddp(x);
      const Tensor mean = net->layer->forward(x).tanh().mean(0);
      const Tensor started_at = (net->norm->running_mean - 0.1 * mean) / 0.9;
      const float expected = broadcast ? 1 : static_cast<float>(rank + 1);
      EXPECT_TRUE(at::allclose(started_at, at::full({4}, expected), 1e-4)) << started_at;
    }
  });
}

TEST_P(DdpGradients, AForwardPassWithoutGradientsNeedsNoBackward) {
  on_each(2, [](int rank) {
    const auto net = seeded(std::make_shared<TwoLayers>(), 3);
    Ddp<TwoLayers> ddp(net);
    for (int step = 0; step < 3; ++step) {
      drop_gradients(*net);
      ddp(input_of(rank)).sum().backward();
      const at::NoGradGuard no_grad;
      EXPECT_FALSE(ddp(input_of(rank)).requires_grad());
    }
    EXPECT_EQ(ddp.statistics().iterations, 3u);
  });
}

TEST_P(DdpGradients, AModuleThatWasSavedLearnsOnInAnother) {
  on_each(2, [](int rank) {
    const auto train = [rank](Ddp<TwoLayers>& ddp, int first_step) {
      torch::optim::SGD optimizer(ddp.parameters(), 0.1);
      for (int step = first_step; step < first_step + 3; ++step) {
        optimizer.zero_grad();
        ddp(input_of(rank, step)).sin().sum().backward();
        optimizer.step();
      }
    };
    Ddp<TwoLayers> ddp(seeded(std::make_shared<TwoLayers>(), 3));
    train(ddp, 0);
    std::stringstream saved;
    torch::save(ddp.module(), saved);
    train(ddp, 3);
    auto loaded = std::make_shared<TwoLayers>();
    torch::load(loaded, saved);
    Ddp<TwoLayers> other(loaded);
    train(other, 3);
    expect_equal(loaded->parameters(), ddp.module()->parameters(), "from where it was saved");
  });
}

TEST_P(DdpGradients, AreAveragedAlsoAfterALoadIntoTheWrappedModule) {
  on_each(2, [](int rank) {
    for (const DdpOptions& options :
         {DdpOptions{}, DdpOptions{.gradient_as_bucket_view = false},
          DdpOptions{.find_unused_parameters = true}, DdpOptions{.static_graph = true}}) {
      auto net = seeded(std::make_shared<TwoLayers>(), 3);
      Ddp<TwoLayers> ddp(net, options);
      torch::optim::SGD optimizer(ddp.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < 6; ++step) {
        if (step % 2 == 1) {
          std::stringstream saved;
          torch::save(seeded(std::make_shared<TwoLayers>(), 50 + step), saved);
          torch::load(net, saved);
        }
        const Tensors expected =
            averaged(2, *net, [&](int one) { return net->forward(input_of(one, step)).sum(); });
        optimizer.zero_grad();
        ddp(input_of(rank, step)).sum().backward();
        expect_equal(gradients_of(*net), expected, "step " + std::to_string(step));
        const Tensor before = net->first->weight.detach().clone();
        optimizer.step();
        EXPECT_FALSE(at::equal(net->first->weight, before)) << "the optimizer sees the gradients";
      }
    }
  });
}

TEST_P(DdpGradients, BuffersThatAreLoadedComeFromRank0Too) {
  on_each(2, [](int rank) {
    struct Counting : TwoLayers {
      Counting() { seen = register_buffer("seen", at::zeros({1})); }
      Tensor seen;
    };
    auto net = std::make_shared<Counting>();
    Ddp<Counting> ddp(net);
    ddp(input_of(rank)).sum().backward();
    auto other = std::make_shared<Counting>();
    other->seen.fill_(7 + rank);
    std::stringstream saved;
    torch::save(other, saved);
    torch::load(net, saved);
    ddp(input_of(rank)).sum().backward();
    EXPECT_EQ(net->seen.item<float>(), 7);
  });
}

}  // namespace
}  // namespace farspan::testing
