// The rule under test: autograd/README.md, "Executor". The oracle is LibTorch's engine, on the same
// graph from the same random state; results must be the same bits.
#include <gtest/gtest.h>

#include <torch/csrc/autograd/custom_function.h>

#include "autograd/local_pass.h"
#include "support/errors.h"

namespace farspan::testing {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

class ExecutorParity : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  at::Tensor leaf(at::IntArrayRef sizes) const {
    return at::randn(sizes, at::TensorOptions(GetParam())).requires_grad_();
  }
  at::Tensor noise(at::IntArrayRef sizes) const {
    return at::randn(sizes, at::TensorOptions(GetParam()));
  }
  void SetUp() override { at::manual_seed(1); }
};

TEST_P(ExecutorParity, ConvolutionalNet) {
  const Tensors p = {leaf({8, 1, 3, 3}), leaf({8}),  leaf({16, 8, 3, 3}), leaf({16}),
                     leaf({32, 1600}),   leaf({32}), leaf({10, 32}),      leaf({10})};
  const at::Tensor images = noise({8, 1, 24, 24});
  const at::Tensor labels = at::randint(10, {8}, at::kLong);
  expect_parity(p, [&]() -> Tensors {
    at::Tensor x = at::relu(at::conv2d(images, p[0], p[1]));
    x = at::max_pool2d(at::relu(at::conv2d(x, p[2], p[3])), 2);
    x = at::dropout(x, 0.25, /*train=*/true).flatten(1);
    x = at::linear(at::relu(at::linear(x, p[4], p[5])), p[6], p[7]);
    return {at::nll_loss(at::log_softmax(x, 1), labels)};
  });
}

TEST_P(ExecutorParity, ChannelsLastKeepsItsStrides) {
  const at::Tensor weight =
      noise({8, 4, 3, 3}).contiguous(at::MemoryFormat::ChannelsLast).requires_grad_();
  const at::Tensor x = noise({2, 4, 9, 9}).contiguous(at::MemoryFormat::ChannelsLast);
  expect_parity({weight}, [&]() -> Tensors { return {at::conv2d(x, weight).sin().sum()}; });
}

TEST_P(ExecutorParity, ParameterUsedInManySteps) {
  const at::Tensor w = leaf({16, 16}), b = leaf({16}), x = leaf({4, 16});
  expect_parity({w, b, x}, [&]() -> Tensors {
    at::Tensor h = x, total = at::zeros({}, x.options());
    for (int step = 0; step < 40; ++step) {
      h = at::tanh(at::addmm(b, h, w));
      total = total + (h * h).mean();
    }
    return {total};
  });
}

TEST_P(ExecutorParity, ManyUsesOfOneInteriorTensor) {
  const at::Tensor a = leaf({32});
  expect_parity({a}, [&]() -> Tensors {
    const at::Tensor x = a.exp();
    at::Tensor y = x;
    for (int i = 1; i <= 20; ++i) y = y + x / i * (i % 2 ? x : x.sin());
    return {y.sum()};
  });
}

TEST_P(ExecutorParity, InPlaceOnViews) {
  const at::Tensor a = leaf({4, 4}), b = leaf({4, 4});
  expect_parity({a, b}, [&]() -> Tensors {
    at::Tensor x = a * 2;
    x.slice(0, 1, 3).mul_(b.slice(0, 1, 3));
    x.select(1, 0).add_(1);
    return {x.sin().sum()};
  });
}

TEST_P(ExecutorParity, InPlaceChainAndIndexPut) {
  const at::Tensor a = leaf({4, 4}), b = leaf({4, 4});
  expect_parity({a, b}, [&]() -> Tensors {
    at::Tensor x = (a * 2).clone();
    x.add_(b).sigmoid_();
    const at::Tensor y = x * 1;
    y.index_put_({at::tensor({0, 2})}, b.slice(0, 0, 2));
    return {(y * y).sum()};
  });
}

TEST_P(ExecutorParity, ViewsOfViews) {
  const at::Tensor a = leaf({4, 6}), b = leaf({24});
  expect_parity({a, b}, [&]() -> Tensors {
    const at::Tensor x = at::cat({a.t().reshape({24}), b, a.view({-1}).slice(0, 3, 21, 2)});
    return {(x.unfold(0, 5, 3) * x.slice(0, 0, 5)).sum()};
  });
}

struct Square : Function<Square> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    context->saved_data["factor"] = 2;
    return x * x;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0];
    const int64_t factor = context->saved_data["factor"].toInt();
    return {gradients[0] * factor * x * (context->needs_input_grad(0) ? 1 : 0)};
  }
};

struct TripleInPlace : Function<TripleInPlace> {
  static at::Tensor forward(AutogradContext* context, at::Tensor x) {
    x.mul_(3);
    context->mark_dirty({x});
    return x;
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0] * 3};
  }
};

// Two outputs, three inputs; says nothing about the second input.
struct Undecided : Function<Undecided> {
  static variable_list forward(AutogradContext*, const at::Tensor& a, const at::Tensor& b,
                               const at::Tensor& c) {
    return {a + b, a * 1 + c};
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    return {gradients[0], at::Tensor(), gradients[1]};
  }
};

struct KeepsUndefined : Function<KeepsUndefined> {
  static variable_list forward(AutogradContext* context, const at::Tensor& a) {
    context->set_materialize_grads(false);
    return {a * 2, a * 3};
  }
  static variable_list backward(AutogradContext*, variable_list gradients) {
    EXPECT_FALSE(gradients[0].defined() && gradients[1].defined());
    return {gradients[0].defined() ? gradients[0] * 2 : gradients[1] * 3};
  }
};

TEST_P(ExecutorParity, CustomFunctions) {
  const at::Tensor a = leaf({4, 4});
  expect_parity({a}, [&]() -> Tensors { return {Square::apply(a).sum()}; });
  expect_parity({a}, [&]() -> Tensors {
    const at::Tensor x = a * 1;
    at::Tensor view = x.slice(0, 0, 2);
    TripleInPlace::apply(view);
    return {(x * x).sum()};
  });
}

TEST_P(ExecutorParity, UndefinedGradients) {
  const at::Tensor a = leaf({3}), b = leaf({3}), c = leaf({3});
  for (const int use : {0, 1}) {
    expect_parity({a, b, c}, [&]() -> Tensors {
      return {Undecided::apply(a, b * 2, c * 2)[static_cast<size_t>(use)].sin().sum()};
    });
    expect_parity({a}, [&]() -> Tensors {
      return {KeepsUndefined::apply(a * 2)[static_cast<size_t>(use)].sum()};
    });
  }
}

TEST_P(ExecutorParity, UnusedOutputsOfANode) {
  const at::Tensor a = leaf({6, 6});
  expect_parity({a}, [&]() -> Tensors { return {std::get<0>(at::topk(a * 2, 3)).sum()}; });
  expect_parity({a}, [&]() -> Tensors { return {(a * 2).split(2)[1].cos().sum()}; });
}

TEST_P(ExecutorParity, SparseEmbeddingUsedTwice) {
  const at::Tensor a = leaf({4, 4});
  const at::Tensor rows = at::tensor({0, 1, 1});
  const auto look_up = [&] { return at::embedding(a, rows, -1, false, /*sparse=*/true); };
  expect_parity({a}, [&]() -> Tensors { return {look_up().sin().sum()}; });
  expect_parity({a}, [&]() -> Tensors { return {look_up().sum() + 2 * look_up().sum()}; });
}

TEST_P(ExecutorParity, SparseAndDenseGradientOfOneLeaf) {
  const at::Tensor a = leaf({4, 4});
  const at::Tensor rows = at::tensor({0, 1, 1});
  const auto look_up = [&] { return at::embedding(a, rows, -1, false, /*sparse=*/true); };
  expect_parity({a}, [&]() -> Tensors {
    const at::Tensor dense = (a * a).sum();
    return {dense + look_up().sum()};
  });
  expect_parity({a}, [&]() -> Tensors {
    const at::Tensor sparse = look_up().sum();
    return {(a * a).sum() + sparse};
  });
  expect_parity({a}, [&]() -> Tensors {
    const at::Tensor first = look_up().sum();
    const at::Tensor dense = (a * a).sum();
    return {first + dense + look_up().sum()};
  });
}

TEST_P(ExecutorParity, SeveralRoots) {
  const at::Tensor a = leaf({4, 4}), b = leaf({4, 4});
  const Tensors two = {noise({2, 4}), noise({2, 4})};
  expect_parity(
      {a}, [&]() -> Tensors { return (a * 2).chunk(2); }, two);
  const Tensors four = {noise({4}), noise({4}), noise({4}), noise({4})};
  expect_parity(
      {a}, [&]() -> Tensors { return at::unbind(a * 2); }, four);
  // One root below another, and one twice.
  expect_parity({a, b}, [&]() -> Tensors {
    const at::Tensor x = (a * b).sum(), y = x.sin();
    return {x, y, x};
  });
}

TEST_P(ExecutorParity, NonScalarRootWithItsGradient) {
  const at::Tensor a = leaf({3, 5});
  const at::Tensor g = noise({3, 5});
  expect_parity({a}, [&]() -> Tensors { return {a.sin() * a}; }, {g});
  expect_parity({a}, [&]() -> Tensors { return {a.sin() * a}; }, {g.t().contiguous().t()});
}

TEST_P(ExecutorParity, LeafAsRoot) {
  const at::Tensor a = leaf({3}), scalar = leaf({});
  expect_parity({a}, [&]() -> Tensors { return {a}; }, {noise({3})});
  expect_parity({scalar}, [&]() -> Tensors { return {scalar}; });
}

TEST_P(ExecutorParity, DtypesAlongTheGraphAndBroadcasts) {
  const at::Tensor a = leaf({3, 1}), b = leaf({1, 4}), c = leaf({});
  expect_parity({a, b, c}, [&]() -> Tensors {
    const at::Tensor x = (a.to(at::kDouble) * b.to(at::kFloat) + c).to(at::kBFloat16);
    return {at::real(at::complex(x.to(at::kFloat), x.to(at::kFloat).sin()).exp()).sum()};
  });
}

TEST_P(ExecutorParity, LinearAlgebraAndRandomness) {
  const at::Tensor a = leaf({5, 5});
  expect_parity({a}, [&]() -> Tensors {
    const at::Tensor m = at::matmul(a, a.t()) + at::eye(5, a.options().requires_grad(false));
    return {at::linalg_cholesky(at::dropout(m, 0.0, true)).sum() + at::logdet(m) +
            at::rrelu(a, 0.1, 0.3, /*training=*/true).sum()};
  });
}

TEST_P(ExecutorParity, RetainedGraphSumsOverPasses) {
  const at::Tensor a = leaf({4}), b = leaf({4});
  const auto root = [&] { return (a.sin() * b.exp()).sum() + (a * a).sum(); };
  const at::Tensor theirs = root();
  torch::autograd::backward({theirs}, {}, /*retain_graph=*/true);
  torch::autograd::backward({theirs}, {});
  const at::Tensor one = root();
  auto ours = std::make_shared<LeafGradients>();
  backward_here({one}, {}, ours, {.retain_graph = true});
  backward_here({one}, {}, ours);
  expect_same(ours->find(a), a.grad());
  expect_same(ours->find(b), b.grad());
}

TEST_P(ExecutorParity, CreateGraphGivesSecondDerivatives) {
  const at::Tensor a = leaf({4}), b = leaf({4});
  const auto root = [&] { return (a.sin() * b * b).sum() + (a * a * b).sum(); };
  const auto second = [&](const at::Tensor& ga, const at::Tensor& gb) {
    return engine_gradients({a, b}, {(ga * ga).sum() + (gb * ga).sum()});
  };
  torch::autograd::backward({root()}, {}, /*retain_graph=*/{}, /*create_graph=*/true);
  const Tensors theirs = second(a.grad(), b.grad());
  a.mutable_grad() = at::Tensor();
  b.mutable_grad() = at::Tensor();
  const auto leaves = backward_here(root(), {.create_graph = true});
  const Tensors ours = second(leaves->find(a), leaves->find(b));
  expect_same(ours[0], theirs[0]);
  expect_same(ours[1], theirs[1]);
}

TEST_P(ExecutorParity, DeepGraphs) {
  const at::Tensor a = leaf({2});
  expect_parity({a}, [&]() -> Tensors {
    at::Tensor x = a;
    for (int i = 0; i < 20'000; ++i) x = x * 1.0001;
    return {x.sum()};
  });
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ExecutorParity, ::testing::Values(at::kFloat, at::kDouble),
                         [](const auto& dtype) { return std::string(at::toString(dtype.param)); });

// A pass over parts of a graph that an earlier one released: LibTorch's own words.
TEST(ExecutorParity, ReleasedGraphGivesLibTorchsError) {
  const at::Tensor a = at::randn({4}).requires_grad_();
  const at::Tensor root = a.sin().sum();
  backward_here(root);
  const Error error = error_of([&] { backward_here(root); });
  EXPECT_NE(error.message().find("Trying to backward through the graph a second time"),
            std::string::npos);
  EXPECT_EQ(error.operation(), "backward through SinBackward0");
  EXPECT_EQ(error.code(), Code::kRemote);
}

TEST(ExecutorParity, VariableChangedInPlaceGivesLibTorchsError) {
  const at::Tensor a = at::randn({4}).requires_grad_();
  const at::Tensor x = a * 2;
  const at::Tensor root = x.sin().sum();
  x.add_(1);
  const Error error = error_of([&] { backward_here(root); });
  EXPECT_NE(error.message().find("modified by an inplace operation"), std::string::npos);
}

}  // namespace
}  // namespace farspan::testing
