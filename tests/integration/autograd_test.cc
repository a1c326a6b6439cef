// The rules under test: autograd/context.h, over real connections; the oracle is LibTorch's engine.
#include <farspan/farspan.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <thread>

#include <farspan/autograd/room.h>
#include <farspan/rpc/init/rooms.h>

#include "support/workers.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using dist_autograd::AutogradRoom;
using dist_autograd::Context;
using std::chrono::milliseconds;
using std::chrono::seconds;

Tensor variable(at::IntArrayRef shape, int64_t seed) {
  at::manual_seed(static_cast<uint64_t>(seed));
  return at::rand(shape).set_requires_grad(true);
}
// Each worker's weight: the same for the whole test.
Tensor& weight_of(int rank) {
  static std::vector<Tensor> weights{variable({4, 4}, 1), variable({4, 4}, 2), variable({4, 4}, 3)};
  return weights.at(static_cast<size_t>(rank));
}
Tensor layer(const Tensor& x) { return at::tanh(at::mm(x, weight_of(current_worker().rank()))); }
Tensor plain(const Tensor& x) { return at::tanh(x); }
Tensor two_uses(const Tensor& x, const Tensor& y) { return x * y + x.sin(); }
std::vector<Tensor> three(const Tensor& x) { return {x * 2, x.exp(), x.detach()}; }
// Goes through the workers below it, and then over this one's weight.
Tensor deep(const Tensor& x, int64_t depth) {
  Worker& here = current_worker();
  Tensor y = layer(x);
  if (depth > 0) y = here.rpc_sync((here.rank() + 1) % here.world_size(), deep, y, depth - 1);
  return y + x;
}
Tensor fails_backward(const Tensor& x) {
  Tensor y = x * 2;
  y.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("this hook fails"); });
  return y * 3;
}
FARSPAN_REGISTER(layer, plain, two_uses, three, deep, fails_backward);

class AutogradTest : public ::testing::TestWithParam<const char*> {
 protected:
  AutogradTest() {
    for (int rank = 0; rank < workers.count(); ++rank) furnish(workers[rank]);
  }
  // Each test ends with every context gone, everywhere.
  void TearDown() override {
    const auto left = [&] {
      size_t count = 0;
      for (int rank = 0; rank < workers.count(); ++rank) {
        const auto c = AutogradRoom::of(workers[rank])->counters();
        count += c.contexts + c.passes;
      }
      return count;
    };
    const Deadline deadline = Deadline::after(seconds(10));
    while (left() > 0 && !deadline.expired()) std::this_thread::sleep_for(milliseconds(2));
    EXPECT_EQ(left(), 0u);
  }
  Tensor gradient(int rank, const Context& context, const Tensor& leaf) {
    const auto state = AutogradRoom::of(workers[rank])->find(context.id());
    return state ? state->leaves->find(leaf) : Tensor();
  }
  Workers workers{{.count = 3, .transport = GetParam(), .settings = {}, .reactor = {}}};
};

std::vector<Tensor> engine(const Tensor& loss, const std::vector<Tensor>& leaves) {
  return torch::autograd::grad({loss}, leaves);
}

TEST_P(AutogradTest, GradientsGoThroughACall) {
  const Tensor x = variable({3, 4}, 7);
  Context context(workers[0]);
  context.backward({workers[0].rpc_sync("w1", layer, x).sum()});
  const auto expected = engine(at::tanh(at::mm(x, weight_of(1))).sum(), {x, weight_of(1)});
  EXPECT_TRUE(at::equal(context.gradient(x), expected[0]));
  EXPECT_TRUE(at::equal(gradient(1, context, weight_of(1)), expected[1]));
  EXPECT_FALSE(x.grad().defined());
}

TEST_P(AutogradTest, GradientsGoThroughNestedAndRecursiveCallsAndItself) {
  const Tensor x = variable({3, 4}, 8);
  Context context(workers[0]);
  context.backward({workers[0].rpc_sync("w0", deep, x, 6).sum()});
  std::function<Tensor(Tensor, int, int)> local = [&](Tensor in, int rank, int depth) {
    Tensor y = at::tanh(at::mm(in, weight_of(rank)));
    if (depth > 0) y = local(y, (rank + 1) % 3, depth - 1);
    return y + in;
  };
  const auto expected = engine(local(x, 0, 6).sum(), {x, weight_of(0), weight_of(1), weight_of(2)});
  EXPECT_TRUE(at::allclose(context.gradient(x), expected[0], 1e-6, 1e-7));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_TRUE(at::allclose(gradient(rank, context, weight_of(rank)),
                             expected[static_cast<size_t>(rank) + 1], 1e-6, 1e-7));
  }
}

TEST_P(AutogradTest, OneTensorInSeveralCallsSumsUp) {
  const Tensor x = variable({4, 4}, 9), y = variable({4, 4}, 10);
  Context context(workers[0]);
  const Tensor a = workers[0].rpc_sync("w1", two_uses, x, y);
  const Tensor b = workers[0].rpc_sync("w2", two_uses, a, x);
  const Tensor c = workers[0].rpc_sync("w1", plain, b);
  context.backward({(c * a).sum()});
  const Tensor la = x * y + x.sin(), lb = la * x + la.sin();
  const auto expected = engine((at::tanh(lb) * la).sum(), {x, y});
  EXPECT_TRUE(at::allclose(context.gradient(x), expected[0], 1e-6, 1e-7));
  EXPECT_TRUE(at::allclose(context.gradient(y), expected[1], 1e-6, 1e-7));
}

TEST_P(AutogradTest, ResultsThatAreNotUsedDoNotHang) {
  const Tensor x = variable({4, 4}, 11);
  Context context(workers[0]);
  workers[0].rpc_sync("w2", layer, x);  // never used
  const auto parts = workers[0].rpc_sync("w1", three, x);
  context.backward({parts[1].sum()});
  EXPECT_TRUE(at::equal(context.gradient(x), x.exp().detach()));
  EXPECT_FALSE(parts[2].requires_grad());
}

TEST_P(AutogradTest, GivenGradientsSeveralRootsAndSeveralPasses) {
  const Tensor x = variable({2, 4}, 12);
  Context context(workers[0]);
  const Tensor y = workers[0].rpc_sync("w1", plain, x), z = workers[0].rpc_sync("w2", plain, y);
  const Tensor g = at::rand({2, 4});
  context.backward({y, z}, {g, g}, {.mode = {}, .retain_graph = true, .timeout = {}});
  context.backward({y, z}, {g, g});
  const Tensor ly = at::tanh(x), lz = at::tanh(ly);
  const auto expected = torch::autograd::grad({ly, lz}, {x}, {g, g});
  EXPECT_TRUE(at::allclose(context.gradient(x), expected[0] * 2, 1e-6, 1e-7));
}

TEST_P(AutogradTest, AFailureAnywhereEndsThePassByName) {
  const Tensor x = variable({2, 4}, 13);
  Context context(workers[0]);
  const Tensor y = workers[0].rpc_sync("w1", fails_backward, workers[0].rpc_sync("w2", plain, x));
  try {
    context.backward({y.sum()});
    FAIL() << "it must throw";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("this hook fails"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("w1"), std::string::npos) << e.what();
  }
  // Expect: the context still works for something else.
  const Tensor z = workers[0].rpc_sync("w2", plain, x);
  EXPECT_NO_THROW(context.backward({z.sum()}));
}

TEST_P(AutogradTest, FastModeGivesTheSame) {
  const Tensor x = variable({3, 4}, 14);
  Context context(workers[0]);
  const Tensor y = workers[0].rpc_sync("w1", layer, workers[0].rpc_sync("w2", layer, x));
  context.backward(
      {y.sum()},
      {.mode = dist_autograd::PassMode::kFast, .retain_graph = false, .timeout = seconds(20)});
  const Tensor l = at::tanh(at::mm(at::tanh(at::mm(x, weight_of(2))), weight_of(1)));
  EXPECT_TRUE(at::allclose(context.gradient(x), engine(l.sum(), {x})[0], 1e-6, 1e-7));
}

TEST_P(AutogradTest, ManyContextsAtOnce) {
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 20; ++i) {
        const Tensor x = at::rand({3, 4}).set_requires_grad(true);
        Context context(workers[thread]);
        const int to = (thread + 1 + i % 2) % 3;
        context.backward({workers[thread].rpc_sync(to, layer, x).sum()});
        wrong += !at::equal(context.gradient(x),
                            engine(at::tanh(at::mm(x, weight_of(to))).sum(), {x})[0]);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

INSTANTIATE_TEST_SUITE_P(Transports, AutogradTest, ::testing::Values("unix", "tcp", "loopback"),
                         [](const auto& transport) { return std::string(transport.param); });

}  // namespace
}  // namespace farspan::testing
