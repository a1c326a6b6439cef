// What gradients are: through calls of every shape, and many at once.
#include <torch/csrc/autograd/custom_function.h>

#include <thread>

#include "integration/autograd_suite.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using dist_autograd::Context;
using dist_autograd::PassMode;

Tensor two_uses(const Tensor& x, const Tensor& y) { return x * y + x.sin(); }
std::vector<Tensor> three(const Tensor& x) { return {x * 2, x.exp(), x.detach()}; }
// Goes through the workers below it, and then over this one's weight.
Tensor deep(const Tensor& x, int64_t depth) {
  Worker& here = current_worker();
  Tensor y = layer(x);
  if (depth > 0) y = here.rpc_sync((here.rank() + 1) % here.world_size(), deep, y, depth - 1);
  return y + x;
}

// Trains the other two workers' weights in contexts of its own, and returns how many gradients were
// wrong.
int64_t train_alone(int64_t contexts, int64_t seed) {
  Worker& here = current_worker();
  int64_t wrong = 0;
  for (int64_t i = 0; i < contexts; ++i) {
    const Tensor x = variable({3, 4}, seed * contexts + i);
    const auto to = static_cast<int>((here.rank() + 1 + i % 2) % 3);
    Context context(here);
    context.backward({here.rpc_sync(to, layer, x).sum()});
    const auto expected = engine(at::tanh(at::mm(x, weight_of(to))).sum(), {x, weight_of(to)});
    wrong += !at::equal(context.gradient(x), expected[0]);
    const Tensor gradient = weight_gradient(to, context);
    wrong += !gradient.defined() || !at::equal(gradient, expected[1]);
  }
  return wrong;
}

// Sixteen calls at once, in one context, that use one leaf of this worker and one weight of w1.
int64_t train_by_calls_at_once(int64_t seed, bool fast) {
  constexpr int kCalls = 16;
  Worker& here = current_worker();
  const Tensor x = variable({3, 4}, seed);
  // Every other one gets the leaf itself.
  const auto input = [&](int i) { return i % 2 == 0 ? x : x * (1 + 0.1 * i); };
  const auto weigh = [](const Tensor& y, int i) { return (y.sin() * (i + 1)).sum(); };
  Context context(here);
  std::vector<Future<Tensor>> calls;
  for (int i = 0; i < kCalls; ++i) calls.push_back(here.rpc_async(1, layer, input(i)));
  Tensor loss = at::zeros({}), expected_loss = at::zeros({});
  for (int i = 0; i < kCalls; ++i) {
    loss = loss + weigh(calls[static_cast<size_t>(i)].wait(), i);
    expected_loss = expected_loss + weigh(at::tanh(at::mm(input(i), weight_of(1))), i);
  }
  context.backward(
      {loss},
      {.mode = fast ? PassMode::kFast : PassMode::kExact, .retain_graph = false, .timeout = 60s});
  const auto expected = engine(expected_loss, {x, weight_of(1)});
  return !near(context.gradient(x), expected[0]) + !near(weight_gradient(1, context), expected[1]);
}

// Where its node has run; and that the thread was in no context.
struct Looks : torch::autograd::Function<Looks> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.view_as(x); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    runner = std::this_thread::get_id();
    Context another(*worker);  // a thread in a context gets none
    return gradients;
  }
  inline static Worker* worker = nullptr;
  inline static std::thread::id runner;
};

FARSPAN_REGISTER(two_uses, three, deep, train_alone, train_by_calls_at_once);

}  // namespace

TEST_P(AutogradSuite, GradientsGoThroughACall) {
  start();
  const Tensor x = variable({3, 4}, 7);
  Context context;
  context.backward({w0().rpc_sync("w1", layer, x).sum()});
  watch(context);
  const auto expected = engine(at::tanh(at::mm(x, weight_of(1))).sum(), {x, weight_of(1)});
  EXPECT_TRUE(at::equal(context.gradient(x), expected[0]));
  EXPECT_TRUE(at::equal(weight_gradient(1, context), expected[1]));
  EXPECT_FALSE(x.grad().defined());
}

TEST_P(AutogradSuite, GradientsGoThroughNestedAndRecursiveCallsAndItself) {
  start();
  const Tensor x = variable({3, 4}, 8);
  Context context;
  context.backward({w0().rpc_sync("w0", deep, x, 6).sum()});
  watch(context);
  std::function<Tensor(Tensor, int, int)> local = [&](Tensor in, int rank, int depth) {
    Tensor y = at::tanh(at::mm(in, weight_of(rank)));
    if (depth > 0) y = local(y, (rank + 1) % 3, depth - 1);
    return y + in;
  };
  const auto expected = engine(local(x, 0, 6).sum(), {x, weight_of(0), weight_of(1), weight_of(2)});
  EXPECT_TRUE(near(context.gradient(x), expected[0]));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(near(weight_gradient(rank, context), expected[static_cast<size_t>(rank) + 1]));
  }
}

TEST_P(AutogradSuite, OneTensorInSeveralCallsSumsUp) {
  start();
  const Tensor x = variable({4, 4}, 9), y = variable({4, 4}, 10);
  Context context;
  const Tensor a = w0().rpc_sync("w1", two_uses, x, y);
  const Tensor b = w0().rpc_sync("w2", two_uses, a, x);
  const Tensor c = w0().rpc_sync("w1", plain, b);
  context.backward({(c * a).sum()});
  const Tensor la = x * y + x.sin(), lb = la * x + la.sin();
  const auto expected = engine((at::tanh(lb) * la).sum(), {x, y});
  EXPECT_TRUE(near(context.gradient(x), expected[0]));
  EXPECT_TRUE(near(context.gradient(y), expected[1]));
}

TEST_P(AutogradSuite, ResultsThatAreNotUsedDoNotHang) {
  start();
  const Tensor x = variable({4, 4}, 11);
  Context context;
  w0().rpc_sync("w2", layer, x);  // never used
  const auto parts = w0().rpc_sync("w1", three, x);
  context.backward({parts[1].sum()});
  watch(context);
  EXPECT_TRUE(at::equal(context.gradient(x), x.exp().detach()));
  EXPECT_FALSE(parts[2].requires_grad());
}

TEST_P(AutogradSuite, GivenGradientsSeveralRootsAndSeveralPasses) {
  start();
  const Tensor x = variable({2, 4}, 12);
  Context context;
  const Tensor y = w0().rpc_sync("w1", plain, x), z = w0().rpc_sync("w2", plain, y);
  const Tensor g = variable({2, 4}, 13).detach();
  context.backward({y, z}, {g, g}, {.mode = {}, .retain_graph = true, .timeout = {}});
  context.backward({y, z}, {g, g});
  watch(context);
  const Tensor ly = at::tanh(x), lz = at::tanh(ly);
  const auto expected = torch::autograd::grad({ly, lz}, {x}, {g, g});
  EXPECT_TRUE(near(context.gradient(x), expected[0] * 2));
}

TEST_P(AutogradSuite, FastModeGivesTheSame) {
  start();
  const Tensor x = variable({3, 4}, 14);
  Context context;
  const Tensor y = w0().rpc_sync("w1", layer, w0().rpc_sync("w2", layer, x));
  context.backward({y.sum()}, {.mode = PassMode::kFast, .retain_graph = false, .timeout = 20s});
  watch(context);
  const Tensor l = at::tanh(at::mm(at::tanh(at::mm(x, weight_of(2))), weight_of(1)));
  const auto expected = engine(l.sum(), {x, weight_of(1), weight_of(2)});
  EXPECT_TRUE(near(context.gradient(x), expected[0]));
  EXPECT_TRUE(near(weight_gradient(1, context), expected[1]));
  EXPECT_TRUE(near(weight_gradient(2, context), expected[2]));
}

// The thread that waits in backward() runs what it reads of its pass; to the node that is as if
// another one did.
TEST_P(AutogradSuite, WhoWaitsForAPassRunsItAsAnyOtherWould) {
  start();
  Looks::worker = &w0();
  const Tensor x = variable({3, 4}, 15);
  const auto expected = engine(at::tanh(x).sum(), {x});
  for (const bool fast : {false, true}) {
    bool waiter_ran = false;
    for (int round = 0; round < (GetParam().real ? 1000 : 10) && !waiter_ran; ++round) {
      Context context;
      const Tensor y = w0().rpc_sync("w1", plain, Looks::apply(x)).sum();
      std::this_thread::sleep_for(1ms);  // who has read the answer sleeps by then
      context.backward({y}, {.mode = fast ? PassMode::kFast : PassMode::kExact,
                             .retain_graph = false,
                             .timeout = 60s});
      EXPECT_TRUE(at::equal(context.gradient(x), expected[0]));
      waiter_ran = Looks::runner == std::this_thread::get_id();
    }
    // Of simulated workers others read.
    EXPECT_TRUE(waiter_ran || !GetParam().real) << (fast ? "fast" : "exact");
  }
}

TEST_P(AutogradSuite, ManyContextsAtOnce) {
  start();
  std::vector<Future<int64_t>> trainers;
  for (int64_t i = 0; i < 6; ++i) {
    trainers.push_back(w0().rpc_async(static_cast<int>(i % 3), train_alone, 10, i));
  }
  EXPECT_EQ(wait_all(trainers), std::vector<int64_t>(6, 0));
}

TEST_P(AutogradSuite, OneWeightAndOneLeafOfManyCallsAtOnce) {
  start();
  for (const bool fast : {false, true}) {
    SCOPED_TRACE(fast ? "fast" : "exact");
    EXPECT_EQ(w0().rpc_sync("w0", train_by_calls_at_once, 20, fast), 0);
    // Expect: also while others do the same with the same weight, the weight's own worker too.
    std::vector<Future<int64_t>> trainers;
    for (int64_t i = 0; i < 6; ++i) {
      trainers.push_back(
          w0().rpc_async(static_cast<int>(i % 3), train_by_calls_at_once, 21 + i, fast));
    }
    EXPECT_EQ(wait_all(trainers), std::vector<int64_t>(6, 0));
  }
}

}  // namespace farspan::testing
