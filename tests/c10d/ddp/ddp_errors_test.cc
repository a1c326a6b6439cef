// The rules under test: c10d/ddp/README.md, "Errors": each says which parameters and what to do,
// and no rank is left waiting.
#include <torch/nn/modules/container/sequential.h>

#include <farspan/c10d/group/collectives.h>

#include "c10d/ddp/ddp_suite.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class DdpErrors : public DdpSuite {
 protected:
  // What each of two ranks gets that builds what it likes.
  template <class Make>
  void expect_construction_fails(Make make, Code code, const std::string& text) {
    on_each(2, [&](int rank) {
      const Error error = error_of([&] { make(rank); });
      EXPECT_EQ(error.code(), code);
      EXPECT_THAT(error.what(), HasSubstr(text));
    });
  }
};
FARSPAN_DDP_SUITE(DdpErrors);

template <class Net>
void make_ddp(std::shared_ptr<Net> net, const DdpOptions& options = {}) {
  Ddp<Net> ddp(net, options);
}

TEST_P(DdpErrors, RanksWithOtherParametersAreNamedByAll) {
  using torch::nn::Linear;
  expect_construction_fails(
      [](int rank) { make_ddp(Linear(3, 2 + rank).ptr()); }, Code::kShapeMismatch,
      "rank 1 has 'weight' Float [3, 3] with strides [3, 1], and rank 0 has 'weight' Float [2, 3]");
  expect_construction_fails(
      [](int rank) { make_ddp(Linear(torch::nn::LinearOptions(3, 2).bias(rank == 0)).ptr()); },
      Code::kShapeMismatch, "rank 1 has 1 parameters, and rank 0 has 2");
  expect_construction_fails(
      [](int rank) {
        Linear net(3, 2);
        net->to(rank == 0 ? at::kFloat : at::kDouble);
        make_ddp(net.ptr());
      },
      Code::kShapeMismatch, "'weight' Double");
  expect_construction_fails(
      [](int rank) { make_ddp(Linear(3, 2).ptr(), {.find_unused_parameters = rank == 1}); },
      Code::kShapeMismatch, "find_unused_parameters 1");
}

TEST_P(DdpErrors, AModuleThatCannotLearnIsRefused) {
  on_each(1, [](int) {
    torch::nn::Linear net(3, 2);
    for (Tensor& one : net->parameters()) one.requires_grad_(false);
    const Error none = error_of([&] { make_ddp(net.ptr()); });
    EXPECT_EQ(none.code(), Code::kInvalidArgument);
    EXPECT_THAT(none.what(), HasSubstr("no parameter of the module requires a gradient"));
    const Error null = error_of([] { make_ddp(std::shared_ptr<TwoLayers>()); });
    EXPECT_THAT(null.what(), HasSubstr("the module is null"));
    const Error empty = error_of([] { Ddp<torch::nn::Linear> ddp(torch::nn::Linear(nullptr)); });
    EXPECT_THAT(empty.what(), HasSubstr("the module is null"));
    const Error name =
        error_of([&] { make_ddp(torch::nn::Linear(3, 2).ptr(), {.ignore = {"weihgt"}}); });
    EXPECT_THAT(name.what(), HasSubstr("no parameter or buffer 'weihgt'"));
  });
}

TEST_P(DdpErrors, AParameterThatIsNotOnTheCpuIsNamed) {
  on_each(1, [](int) {
    struct Elsewhere : TwoLayers {
      Elsewhere() {
        register_parameter("absent", at::empty({2}, at::TensorOptions().device(at::kMeta)));
      }
    };
    const Error error = error_of([] { make_ddp(std::make_shared<Elsewhere>()); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("'absent' is Strided on meta"));
  });
}

// [4, 3] of the layout that it is told, as a parameter or a buffer.
struct Laid : torch::nn::Module {
  Laid(const Tensor& tensor, bool is_buffer) {
    weight = register_parameter("weight", is_buffer ? at::ones({4, 3}) : tensor);
    if (is_buffer) register_buffer("mask", tensor);
  }
  Tensor forward(const Tensor& x) { return at::mm(x, weight); }
  Tensor weight;
};

TEST_P(DdpErrors, ATensorWhoseElementsShareMemoryOnOneRankIsNamedByAll) {
  for (const bool is_buffer : {false, true}) {
    for (const Tensor& shares :
         {at::ones({1, 3}).expand({4, 3}), at::arange(6.0).as_strided({4, 3}, {1, 1})}) {
      on_each(2, [&](int rank) {
        const auto make = [&] {
          make_ddp(
              std::make_shared<Laid>(rank == 1 ? shares.detach() : at::ones({4, 3}), is_buffer));
        };
        const Error error = error_of(make);
        EXPECT_EQ(error.code(), Code::kInvalidArgument);
        const std::string its = is_buffer ? "'mask'" : "'weight'";
        EXPECT_THAT(error.what(), AllOf(HasSubstr((rank == 0 ? "rank 1: " : "") + its +
                                                  " has elements that share memory"),
                                        HasSubstr("clone()")));
      });
    }
  }
}

TEST_P(DdpErrors, TensorsWithGapsBetweenTheirElementsAreTaken) {
  on_each(2, [](int rank) {
    const Tensor memory = at::full({24}, rank + 1.0);
    for (const Tensor& gaps :
         {memory.as_strided({4, 3}, {6, 1}), memory.as_strided({4, 3}, {5, 2})}) {
      const auto net = std::make_shared<Laid>(gaps.detach(), false);
      Ddp<Laid> ddp(net);
      EXPECT_TRUE(at::equal(net->weight, at::ones({4, 3}))) << "rank 0's have come";
    }
  });
}

TEST_P(DdpErrors, WhatOneRankRefusesOrThrowsAtConstructionAllDo) {
  expect_construction_fails(
      [](int rank) {
        torch::nn::Linear net(3, 2);
        for (Tensor& one : net->parameters()) one.requires_grad_(rank == 0);
        make_ddp(net.ptr());
      },
      Code::kInvalidArgument, "no parameter of the module requires a gradient");
  expect_construction_fails(
      [](int rank) { make_ddp(rank == 0 ? torch::nn::Linear(3, 2).ptr() : nullptr); },
      Code::kInvalidArgument, "the module is null");
  // Not an Error: LibTorch's, of a parameter that is no leaf.
  expect_construction_fails(
      [](int rank) {
        const Tensor leaf = at::ones({4, 3}).requires_grad_();
        make_ddp(std::make_shared<Laid>(rank == 1 ? leaf * 2 : leaf, false));
      },
      Code::kInternal, "leaf");
}

TEST_P(DdpErrors, WhatOneRankThrowsWhileParametersComeEndsTheOthersToo) {
  on_each(2, [](int rank) {
    const auto net = std::make_shared<Laid>(at::ones({4, 3}), false);
    if (rank == 1) net->weight.storage().unsafeGetStorageImpl()->set_throw_on_mutable_data_ptr();
    const Error error = error_of([&] {
      Ddp<Laid> ddp(net);
      ddp(input_of(rank)).sum().backward();
    });
    EXPECT_THAT(error.what(), HasSubstr("DistributedDataParallel of "));
    EXPECT_EQ(error.code(), rank == 1 ? Code::kInternal : Code::kCancelled);
  });
}

TEST_P(DdpErrors, ASecondOneOfParametersThatHaveOneIsRefusedOnAllRanks) {
  struct Both : torch::nn::Module {
    explicit Both(const std::shared_ptr<TwoLayers>& net) {
      shared = register_module("shared", net);
      own = register_module("own", torch::nn::Linear(3, 2));
    }
    Tensor forward(const Tensor& x) { return own->forward(shared->forward(x)); }
    std::shared_ptr<TwoLayers> shared;
    torch::nn::Linear own{nullptr};
  };
  on_each(2, [](int rank) {
    const auto net = seeded(std::make_shared<TwoLayers>(), 3);
    auto ddp = std::make_unique<Ddp<TwoLayers>>(net);
    const auto expect_refused = [&](const std::function<void()>& make, const std::string& name) {
      const Error error = error_of(make);
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      EXPECT_THAT(error.what(), AllOf(HasSubstr(name + " is a parameter of another "
                                                       "DistributedDataParallel, of "),
                                      HasSubstr("destroy that one first")));
    };
    expect_refused([&] { make_ddp(net); }, "'first.weight'");
    expect_refused([&] { make_ddp(std::make_shared<Both>(net)); }, "'shared.first.weight'");
    // Where only one rank's module has another.
    const auto other = seeded(std::make_shared<TwoLayers>(), 4);
    expect_refused([&] { make_ddp(rank == 1 ? net : other); },
                   rank == 1 ? "'first.weight'" : "rank 1: 'first.weight'");
    // Expect: the first one has not noticed.
    const auto train = [&] {
      const Tensors expected =
          averaged(2, *net, [&](int one) { return net->forward(input_of(one)).sum(); });
      drop_gradients(*net);
      (*ddp)(input_of(rank)).sum().backward();
      expect_equal(gradients_of(*net), expected, "of the one that lives");
    };
    train();
    ddp.reset();
    ddp = std::make_unique<Ddp<TwoLayers>>(net);
    train();
  });
}

TEST_P(DdpErrors, AParameterThatIsConvertedOrReshapedLaterIsNamed) {
  const auto expect_refused = [&](const std::function<void(TwoLayers&)>& change,
                                  const std::string& what) {
    on_each(2, [&](int rank) {
      const auto net = seeded(std::make_shared<TwoLayers>(), 3);
      Ddp<TwoLayers> ddp(net);
      ddp(input_of(rank)).sum().backward();
      change(*net);
      const Error error = error_of([&] { ddp(input_of(rank)); });
      EXPECT_EQ(error.code(), Code::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr(what));
    });
  };
  expect_refused([](TwoLayers& net) { net.second->to(at::kDouble); },
                 "'second.weight' was Float [3, 8] on cpu, and is Double [3, 8] on cpu now");
  expect_refused([](TwoLayers& net) { net.first->bias.set_data(at::zeros({5})); },
                 "'first.bias' was Float [8] on cpu, and is Float [5] on cpu now");
}

TEST_P(DdpErrors, ParametersWithoutGradientsAreNamedAtTheNextForward) {
  on_each(2, [](int rank) {
    Ddp<Branches> ddp(seeded(std::make_shared<Branches>(), 3));
    ddp(input_of(rank), "left").sum().backward();
    const Error error = error_of([&] { ddp(input_of(rank), "left"); });
    // Expect: whoever is second hears of it from the first.
    EXPECT_THAT(error.what(), AnyOf(AllOf(HasSubstr("gave no gradient to 'right.weight', "
                                                    "'right.bias'"),
                                          HasSubstr("set find_unused_parameters")),
                                    HasSubstr("gave no gradient to")));
    const Error again = error_of([&] { ddp(input_of(rank), "left"); });
    EXPECT_THAT(again.what(), HasSubstr("failed before"));
  });
}

TEST_P(DdpErrors, AfterAFailureANewOneOfTheSameModuleGoesOnWhileTheOldOneLives) {
  on_each(2, [](int rank) {
    const auto net = seeded(std::make_shared<Branches>(), 3);
    Ddp<Branches> failed(net);
    failed(input_of(rank), "left").sum().backward();
    error_of([&] { failed(input_of(rank), "left"); });
    Ddp<Branches> ddp(net, {.group = dist::new_group({0, 1})});
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      (ddp(input_of(rank), "both").sum() * (rank + 1)).backward();
      const Tensor mine = net->right->bias.grad().clone(), others = mine.clone();
      dist::broadcast(others, 0);
      EXPECT_TRUE(at::equal(mine, others)) << "they are averages";
    }
    EXPECT_THAT(error_of([&] { failed(input_of(rank), "left"); }).what(),
                HasSubstr("failed before"));
  });
}

TEST_P(DdpErrors, ARankThatUsesLessDoesNotLeaveTheOthersWaiting) {
  on_each(2, [](int rank) {
    Ddp<Branches> ddp(seeded(std::make_shared<Branches>(), 3));
    const auto step = [&] { ddp(input_of(rank), rank == 0 ? "both" : "left").sum().backward(); };
    const Error error = error_of([&] {
      step();
      step();
    });
    EXPECT_THAT(error.what(), HasSubstr("gave no gradient to 'right.weight', 'right.bias'"));
    EXPECT_EQ(error.code(), rank == 1 ? Code::kInvalidArgument : Code::kCancelled);
  });
}

TEST_P(DdpErrors, ASecondGradientInOneIterationIsNamed) {
  on_each(1, [](int rank) {
    Ddp<Branches> ddp(seeded(std::make_shared<Branches>(), 3));
    const Tensor y = ddp(input_of(rank), "left").sum();
    y.backward({}, /*retain_graph=*/true);
    const Error error = error_of([&] { y.backward(); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("a second gradient of 'left."), HasSubstr("set static_graph")));
  });
}

TEST_P(DdpErrors, AGradientAfterTheAverageIsNamed) {
  on_each(1, [](int rank) {
    const auto net = seeded(std::make_shared<TwoLayers>(), 3);
    Ddp<TwoLayers> ddp(net);
    const Tensor y = ddp(input_of(rank)).sum();
    y.backward({}, /*retain_graph=*/true);
    {
      const auto local = ddp.no_sync();  // Expect: said to be meant
      y.backward({}, /*retain_graph=*/true);
    }
    const Error error = error_of([&] { y.backward(); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("another gradient of 'second."),
                                    HasSubstr("came after"), HasSubstr("no_sync()")));
  });
}

TEST_P(DdpErrors, AGraphThatIsNotThatOfTheFirstIterationIsNamed) {
  on_each(1, [](int) {
    Ddp<Branches> ddp(seeded(std::make_shared<Branches>(), 3), {.static_graph = true});
    ddp(input_of(0), "both").sum().backward();
    const Error fewer = error_of([&] { ddp(input_of(0), "left").sum().backward(); });
    EXPECT_EQ(fewer.code(), Code::kInvalidArgument);
    EXPECT_THAT(fewer.what(),
                AllOf(HasSubstr("the graph is not that of the first iteration: 'right.weight', "
                                "'right.bias' got fewer gradients"),
                      HasSubstr("unset static_graph")));
    Ddp<Branches> other(seeded(std::make_shared<Branches>(), 3), {.static_graph = true});
    other(input_of(0), "left").sum().backward();
    const Error more = error_of([&] { other(input_of(0), "both").sum().backward(); });
    EXPECT_THAT(more.what(), AllOf(HasSubstr("'right."), HasSubstr("got more than 0 gradients")));
  });
}

// [batch, 4] -> [batch, 3]; keeps another tensor of its graph to itself.
struct Secretive : torch::nn::Module {
  Secretive() {
    shown = register_module("shown", torch::nn::Linear(4, 3));
    hidden = register_module("hidden", torch::nn::Linear(4, 3));
  }
  Tensor forward(const Tensor& x) {
    secret = hidden->forward(x);
    return shown->forward(x);
  }
  torch::nn::Linear shown{nullptr}, hidden{nullptr};
  Tensor secret;
};

TEST_P(DdpErrors, AGradientThatNoOutputLeadsToIsNamed) {
  on_each(1, [](int) {
    const auto net = std::make_shared<Secretive>();
    Ddp<Secretive> ddp(net, {.find_unused_parameters = true});
    const Tensor y = ddp(input_of(0));
    const Error error = error_of([&] { (y.sum() + net->secret.sum()).backward(); });
    EXPECT_THAT(error.what(), AllOf(HasSubstr("a gradient of 'hidden."),
                                    HasSubstr("return all tensors from forward()")));
  });
}

TEST_P(DdpErrors, WhatThrowsInABackwardPassEndsTheOthersToo) {
  on_each(3, [](int rank) {
    Ddp<TwoLayers> ddp(seeded(std::make_shared<TwoLayers>(), 3),
                       {.bucket_bytes = 1, .first_bucket_bytes = 1});
    for (int step = 0; step < 2; ++step) ddp(input_of(rank)).sum().backward();
    const auto thrown = [&] {
      Tensor x = input_of(rank).requires_grad_();
      if (rank == 1) {
        // Comes with the gradient of the input, after those of all parameters but not their end.
        x.register_hook([](const Tensor&) { throw std::runtime_error("out of luck"); });
      }
      ddp(x).sum().backward();
    };
    if (rank == 1) {
      EXPECT_THROW(thrown(), std::runtime_error) << "its own error, not ours";
      EXPECT_EQ(code_of([&] { ddp(input_of(rank)); }), Code::kCancelled);
    } else {
      const Error error = error_of(thrown);
      EXPECT_EQ(error.code(), Code::kCancelled);
      EXPECT_THAT(error.what(), HasSubstr("a backward pass of rank 1 has thrown"));
    }
  });
}

// Of different numbers of inputs without join(), the usual cause of both.
TEST_P(DdpErrors, RanksThatRunOtherPassesAreToldOfJoin) {
  on_each(2, [](int rank) {
    auto ddp = std::make_unique<Ddp<TwoLayers>>(seeded(std::make_shared<TwoLayers>(), 3));
    (*ddp)(input_of(rank)).sum().backward();
    if (rank == 0) return;  // has no input left
    const Error error = error_of([&] { (*ddp)(input_of(rank)).sum().backward(); });
    EXPECT_EQ(error.code(), Code::kDisconnected);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("DistributedDataParallel of "),
                                    HasSubstr("TwoLayers, its broadcast"),
                                    HasSubstr("has left the group"), HasSubstr("join()")));
  });
}

TEST_P(DdpErrors, RanksThatRunOtherPassesAreToldOfJoinThroughAHook) {
  on_each(2, [](int rank) {
    auto ddp = std::make_unique<Ddp<TwoLayers>>(seeded(std::make_shared<TwoLayers>(), 3));
    ddp->register_comm_hook(dist::fp16_compress_hook);
    for (int step = 0; step < 2; ++step) (*ddp)(input_of(rank)).sum().backward();
    if (rank == 0) return;
    const Error error = error_of([&] { (*ddp)(input_of(rank)).sum().backward(); });
    EXPECT_EQ(error.code(), Code::kDisconnected);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("TwoLayers, communication hook, its all_reduce"),
                                    HasSubstr("join()")));
  });
}

TEST_P(DdpErrors, EvaluationOnOneRankIsToldOfTheModule) {
  on_each(2, [](int rank) {
    struct Normed : torch::nn::Module {
      Normed() { norm = register_module("norm", torch::nn::BatchNorm1d(4)); }
      Tensor forward(const Tensor& x) { return norm(x); }
      torch::nn::BatchNorm1d norm{nullptr};
    };
    Ddp<Normed> ddp(std::make_shared<Normed>());
    ddp(input_of(rank)).sum().backward();
    const Error error = error_of([&] {
      if (rank == 0) {
        ddp.eval();
        ddp(input_of(rank));  // brings the buffers to all
        ddp.train();
      }
      for (int step = 0; step < 3; ++step) ddp(input_of(rank)).sum().backward();
    });
    EXPECT_EQ(error.code(), Code::kShapeMismatch);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("DistributedDataParallel of "),
                                    HasSubstr("module() can be evaluated on one rank")));
  });
}

TEST_P(DdpErrors, AfterOneTheRanksCanBuildAnother) {
  on_each(2, [](int rank) {
    const auto net = seeded(std::make_shared<Branches>(), 3);
    {
      Ddp<Branches> ddp(net);
      ddp(input_of(rank), "left").sum().backward();
      EXPECT_NE(code_of([&] { ddp(input_of(rank), "left"); }), Code::kOk);
    }
    Ddp<Branches> ddp(net);
    const Tensors expected =
        averaged(2, *net, [&](int one) { return net->forward(input_of(one), "both").sum(); });
    drop_gradients(*net);
    ddp(input_of(rank), "both").sum().backward();
    expect_equal(gradients_of(*net), expected, "of the second");
  });
}

TEST_P(DdpErrors, ADenseGradientIsNotTakenForASparseOne) {
  on_each(1, [](int) {
    struct Raw : torch::nn::Module {
      Raw() { table = register_parameter("table", at::ones({5, 2})); }
      Tensor forward(const Tensor& rows) {
        return at::embedding(table, rows, -1, false, /*sparse=*/true);
      }
      Tensor table;
    };
    const Tensor rows = at::tensor({1, 2}, at::kLong);
    Ddp<Raw> untold(std::make_shared<Raw>());
    const Error error = error_of([&] { untold(rows).sum().backward(); });
    EXPECT_THAT(error.what(), AllOf(HasSubstr("'table' is not dense"),
                                    HasSubstr("DdpOptions::sparse_parameters")));
    const auto net = std::make_shared<Raw>();
    Ddp<Raw> told(net, {.sparse_parameters = {"table"}});
    told(rows).sum().backward();
    EXPECT_TRUE(net->table.grad().is_sparse());
    const Error dense = error_of([&] {
      net->table.mutable_grad().reset();
      (told(rows).sum() + net->table.sum()).backward();
    });
    EXPECT_THAT(dense.what(), HasSubstr("'table' is not sparse"));
  });
}

TEST_P(DdpErrors, ABackwardPassWithCreateGraphIsRefused) {
  on_each(1, [](int) {
    Ddp<TwoLayers> ddp(seeded(std::make_shared<TwoLayers>(), 3));
    const Error error =
        error_of([&] { ddp(input_of(0)).sum().backward({}, true, /*create_graph=*/true); });
    EXPECT_THAT(error.what(), HasSubstr("a backward pass with create_graph"));
  });
}

struct Opaque {
  explicit Opaque(Tensor y) : scores(std::move(y)) {}
  Tensor scores;
};
struct GivesOpaque : torch::nn::Module {
  GivesOpaque() { layer = register_module("layer", torch::nn::Linear(4, 3)); }
  Opaque forward(const Tensor& x) { return Opaque(layer->forward(x)); }
  torch::nn::Linear layer{nullptr};
};

TEST_P(DdpErrors, AnOutputWhoseTensorsAreNotKnownIsNamedWhereTheyAreNeeded) {
  on_each(1, [](int) {
    Ddp<GivesOpaque> plain(std::make_shared<GivesOpaque>());
    plain(input_of(0)).scores.sum().backward();
    Ddp<GivesOpaque> ddp(std::make_shared<GivesOpaque>(), {.find_unused_parameters = true});
    const Error error = error_of([&] { ddp(input_of(0)); });
    EXPECT_THAT(error.what(), AllOf(HasSubstr("Opaque"), HasSubstr("visit_tensors()")));
  });
}

TEST(DdpLostRank, EndsTheBackwardPassesOfTheOthersSoon) {
  at::set_num_threads(1);
  FakeRanks ranks(3, kRanksTimeout);
  ranks.run(3, [&](int rank) {
    Ddp<TwoLayers> ddp(seeded(std::make_shared<TwoLayers>(), 3));
    for (int step = 0; step < 2; ++step) ddp(input_of(rank)).sum().backward();
    const Tensor y = ddp(input_of(rank)).sum();
    if (rank == 2) {
      ranks.fabric->kill(2);
      return;
    }
    const TimePoint began = Clock::now();
    const Error error = error_of([&] { y.backward(); });
    EXPECT_LT(Clock::now() - began, 2s);
    EXPECT_EQ(error.code(), Code::kDisconnected);
    EXPECT_THAT(error.what(), HasSubstr("rank 2"));
    EXPECT_EQ(code_of([&] { ddp(input_of(rank)); }), Code::kDisconnected);
  });
}

}  // namespace
}  // namespace farspan::testing
