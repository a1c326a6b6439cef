// References, futures, gradients and optimizers of tensors on devices: their work comes in the
// order in which the program has passed results on. The rules: rpc/device/README.md, "Order".
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <farspan/autograd/context.h>
#include <farspan/autograd/room.h>
#include <farspan/optim/distributed_optimizer.h>
#include <farspan/rpc/rpc.h>
#include <farspan/rref/remote.h>

#include "integration/device_workers.h"
#include "support/errors.h"
#include "support/sanitizers.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using device::cuda;
using dist_autograd::AutogradRoom;
using dist_autograd::Context;
using dist_autograd::ContextId;
using Weights = RRef<std::vector<Tensor>>;

Tensor reals(int64_t seed) { return at::arange(seed, seed + 200, at::kDouble) / 100; }
bool near(const Tensor& x, const Tensor& expected) {
  return x.defined() && at::allclose(x.cpu(), expected, 1e-12);
}

bool holds(const RRef<Tensor>& value, int64_t seed) {
  return is(value.local_value().clone(), numbers(seed));
}
bool holds_beside(const RRef<Tensor>& value, int64_t seed, const Tensor& x) {
  return is(value.local_value() + x, numbers(seed) + numbers(0));
}
void add_to(const RRef<Tensor>& value, const Tensor& x) { value.local_value().add_(x); }
void twice(const RRef<Tensor>& value) { value.local_value().add_(value.local_value()); }
bool fetches(const RRef<Tensor>& value, int64_t seed) { return is(value.to_here(), numbers(seed)); }
Tensor sum(const Tensor& x, const Tensor& y) { return x + y; }
// Of a call to the caller, which has two of x.
Future<Tensor> later(const Tensor& x) {
  return rpc_async(0, sum, x, x).then([](const Tensor& two) { return two + two; });
}

std::vector<Tensor> weights(int64_t device, int64_t seed) {
  return {reals(seed).to(accelerator(static_cast<int>(device))).requires_grad_()};
}
Tensor weight(int64_t device, int64_t seed) { return weights(device, seed)[0]; }
Tensor times(const Weights& w, const Tensor& x) { return w.local_value()[0] * x; }
Tensor gradient_here(int64_t context, const Tensor& leaf) {
  const auto state = AutogradRoom::of(current_worker())->find(ContextId(context));
  return state->leaves->find(leaf).cpu();
}
Tensor gradient_of(int64_t context, const Weights& w) {
  return gradient_here(context, w.local_value()[0]);
}
Tensor gradient_of_one(int64_t context, const RRef<Tensor>& w) {
  return gradient_here(context, w.local_value());
}
Tensor now(const Weights& w) { return w.local_value()[0].detach().cpu(); }

// Of a call to the caller, whose value it is.
void adds(const RRef<Tensor>& value, const Tensor& x) { rpc_sync(0, add_to, value, x); }
bool adds_and_looks(const RRef<Tensor>& value, const Tensor& x, int64_t seed) {
  rpc_sync(0, add_to, value, x);
  return rpc_sync(0, last_kept_is, seed);
}
std::pair<Tensor, Tensor> squares(const Tensor& x, const Tensor& y) { return {x * x, y * y}; }

struct Total {
  Tensor value;
  void add(const Tensor& x) { value.add_(x); }
  Tensor get() { return value; }
};
std::shared_ptr<Total> make_total(const Tensor& first) {
  return std::make_shared<Total>(Total{first.clone()});
}
FARSPAN_REGISTER_METHODS(Total, add, get);

FARSPAN_REGISTER_AS("training.make_total", make_total);
FARSPAN_REGISTER_AS("training.adds", adds);
FARSPAN_REGISTER_AS("training.adds_and_looks", adds_and_looks);
FARSPAN_REGISTER_AS("training.squares", squares);
FARSPAN_REGISTER_AS("training.holds", holds);
FARSPAN_REGISTER_AS("training.holds_beside", holds_beside);
FARSPAN_REGISTER_AS("training.add_to", add_to);
FARSPAN_REGISTER_AS("training.twice", twice);
FARSPAN_REGISTER_AS("training.fetches", fetches);
FARSPAN_REGISTER_AS("training.sum", sum);
FARSPAN_REGISTER_AS("training.later", later);
FARSPAN_REGISTER_AS("training.weights", weights);
FARSPAN_REGISTER_AS("training.weight", weight);
FARSPAN_REGISTER_AS("training.times", times);
FARSPAN_REGISTER_AS("training.gradient_of", gradient_of);
FARSPAN_REGISTER_AS("training.gradient_of_one", gradient_of_one);
FARSPAN_REGISTER_AS("training.now", now);

using DeviceReferences = DeviceWorkers;
using DeviceFutures = DeviceWorkers;
using DeviceGradients = DeviceWorkers;
class MappedDeviceGradients : public DeviceWorkers {};
class UnopenedDeviceGradients : public DeviceWorkers {};

TEST_P(DeviceReferences, HoldWhatTheCallThatMadeThemHasWritten) {
  for (int round = 0; round < repetitions(50); ++round) {
    const Tensor x = numbers(round).to(accelerator(0));
    const auto value = w0().remote(1, copied, x);
    EXPECT_TRUE(w0().rpc_sync(1, holds, value, round));
    EXPECT_TRUE(w0().rpc_sync(1, holds_beside, value, round, numbers(0).to(accelerator(0))));
    EXPECT_TRUE(is(value.to_here(), numbers(round)));
  }
}

TEST_P(DeviceReferences, SeeTheCallsOnThemInTheirOrder) {
  const Tensor one = at::ones({1000}, at::kLong).to(accelerator(0));
  const auto value = w0().remote(1, copied, numbers(0).to(accelerator(0)));
  Tensor expected = numbers(0);
  for (int round = 0; round < repetitions(50); ++round) {
    w0().rpc_sync(1, add_to, value, one);
    expected += 1;
    if (round % 16 != 3) continue;
    w0().rpc_sync(1, twice, value);
    expected += expected;
  }
  EXPECT_TRUE(is(value.to_here(), expected));
}

TEST_P(DeviceReferences, ToObjectsSeeTheirMethodsInOrder) {
  const Tensor one = at::ones({1000}, at::kLong).to(accelerator(0));
  const auto total = w0().remote(1, make_total, numbers(0).to(accelerator(0)));
  const int64_t rounds = repetitions(50);
  for (int64_t round = 0; round < rounds; ++round) total.rpc_sync(&Total::add, one);
  EXPECT_TRUE(is(total.rpc_sync(&Total::get), numbers(rounds)));
}

TEST_P(DeviceReferences, ToWhatAnotherStreamOfTheOwnerWritesAreReadWhenItIsThere) {
  for (int round = 0; round < repetitions(50); ++round) {
    const OnAnotherStream stream(accelerator(0));
    const Tensor x = numbers(round).to(accelerator(0));
    const RRef<Tensor> value(w0(), x.clone());
    EXPECT_TRUE(w0().rpc_sync(1, fetches, value, round));
  }
}

TEST_P(DeviceReferences, AreFetchedToTheDeviceThatIsAskedFor) {
  const auto value = w0().remote(1, copied, numbers(5).to(accelerator(0)));
  for (const at::Device device : {accelerator_of(1), accelerator(0), at::Device(at::kCPU)}) {
    const Tensor here = value.to_here(device);
    EXPECT_EQ(here.device(), device);
    EXPECT_TRUE(is(here, numbers(5)));
  }
  const RRef<Tensor> own(w0(), numbers(6));
  EXPECT_EQ(own.to_here(accelerator_of(1)).device(), accelerator_of(1));
  EXPECT_TRUE(is(own.to_here(accelerator_of(1)), numbers(6)));
  EXPECT_THAT(error_of([&] {
                value.to_here({accelerator(0).type(), 77});
              }).what(),
              ::testing::HasSubstr("has no device 77"));
}

// While a call waits, its thread may serve others; what these see and leave has an order, too.
TEST_P(DeviceReferences, SeeWhatCallsBackHaveDone) {
  const Tensor one = at::ones({1000}, at::kLong).to(accelerator(0));
  for (int round = 0; round < repetitions(30); ++round) {
    const OnAnotherStream stream(accelerator(0));
    const RRef<Tensor> value(w0(), numbers(round).to(accelerator(0)));
    keep_here(value.local_value());
    EXPECT_TRUE(w0().rpc_sync(1, adds_and_looks, value, one, round + 1));
    EXPECT_TRUE(is(value.local_value() + one, numbers(round + 2)));
    w0().rpc_sync(1, adds, value, one);
    EXPECT_TRUE(is(kept_here().back() + one, numbers(round + 3)));
  }
}

TEST_P(DeviceFutures, OfContinuationsAreTakenWhenTheirDevicesAreThere) {
  for (int round = 0; round < repetitions(50); ++round) {
    const OnAnotherStream stream(accelerator(0));
    const Tensor x = numbers(round).to(accelerator(0));
    const auto two = w0().rpc_async(1, copied, x).then([](const Tensor& y) { return y + y; });
    const Tensor back = two.wait() + x;
    EXPECT_TRUE(is(back, numbers(round) * 3));
  }
}

TEST_P(DeviceFutures, ThatFunctionsReturnAreAnsweredWhenTheirDevicesAreThere) {
  for (int round = 0; round < repetitions(50); ++round) {
    const Tensor x = numbers(round).to(accelerator(0));
    EXPECT_TRUE(is(w0().rpc_sync(1, later, x), numbers(round) * 4));
  }
}

// One round over the weight of w1: what is wrong with its gradients.
//   unopened  the worker that cannot open them, if any
int wrong_gradients(Worker& here, const Weights& w, int64_t seed, int passes,
                    std::optional<int> unopened = std::nullopt) {
  Tensor a = reals(seed).to(accelerator(0)).requires_grad_();
  const Tensor cpu_a = reals(seed).requires_grad_(), cpu_w = reals(3).requires_grad_();
  const Tensor product = cpu_w * (cpu_a * cpu_a);
  const auto expected = torch::autograd::grad({(product * product).sum()}, {cpu_a, cpu_w});
  Context context(here);
  const Tensor y = here.rpc_sync(1, times, w, a * a);
  const Tensor out = y * y;
  const Tensor ones = at::ones({200}, at::kDouble).to(accelerator(0));
  std::optional<Unopened> gradients;
  if (unopened) gradients.emplace(here, *unopened);
  for (int pass = 0; pass < passes; ++pass) {
    context.backward({out}, {ones}, {.retain_graph = true});
  }
  const Tensor gradient = context.gradient(a);
  const Tensor there = here.rpc_sync(1, gradient_of, static_cast<int64_t>(context.id()), w);
  return (gradient.device() != accelerator(0)) + !near(gradient, expected[0] * passes) +
         !near(there, expected[1] * passes);
}

TEST_P(DeviceGradients, AreThoseOfOneProcessAndLieWhereTheTensorsDo) {
  const Weights w = w0().remote(1, weights, 0, 3);
  for (int round = 0; round < repetitions(30); ++round) {
    EXPECT_EQ(wrong_gradients(w0(), w, round, 1), 0);
  }
  EXPECT_EQ(wrong_gradients(w0(), w, 7, 3), 0) << "of passes that add up";
}

TEST_P(DeviceGradients, UnderLoad) {
  const Weights w = w0().remote(1, weights, 0, 3);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const CurrentWorker current(w0());
      const OnAnotherStream stream(accelerator(0));
      for (int round = 0; round < repetitions(25); ++round) {
        EXPECT_EQ(wrong_gradients(w0(), w, thread * 100 + round, 1), 0);
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

// They come from and to several threads of either worker at once.
TEST_P(DeviceGradients, OfSeveralCallsOfOneContext) {
  constexpr int kCalls = 6;
  const Weights w = w0().remote(1, weights, 0, 3);
  for (int round = 0; round < repetitions(20); ++round) {
    std::vector<Tensor> leaves, cpu_leaves{reals(3).requires_grad_()};
    Tensor expected_out = at::zeros({200}, at::kDouble);
    for (int64_t call = 0; call < kCalls; ++call) {
      leaves.push_back(reals(round + call).to(accelerator(0)).requires_grad_());
      cpu_leaves.push_back(reals(round + call).requires_grad_());
      expected_out = expected_out + cpu_leaves[0] * cpu_leaves.back() * cpu_leaves.back();
    }
    const auto expected = torch::autograd::grad({expected_out.sum()}, cpu_leaves);
    Context context(w0());
    std::vector<Future<Tensor>> answers;
    for (const Tensor& leaf : leaves) answers.push_back(w0().rpc_async(1, times, w, leaf));
    Tensor out = answers[0].wait() * leaves[0];
    for (size_t i = 1; i < answers.size(); ++i) out = out + answers[i].wait() * leaves[i];
    context.backward({out}, {at::ones({200}, at::kDouble).to(accelerator(0))});
    for (size_t i = 0; i < leaves.size(); ++i) {
      EXPECT_TRUE(near(context.gradient(leaves[i]), expected[i + 1]));
    }
    EXPECT_TRUE(
        near(w0().rpc_sync(1, gradient_of, static_cast<int64_t>(context.id()), w), expected[0]));
  }
}

TEST_P(DeviceGradients, OfOneMessageWithTensorsOnTwoDevices) {
  const Tensor ones = at::ones({200}, at::kDouble);
  for (int round = 0; round < repetitions(30); ++round) {
    const Tensor a = reals(round).to(accelerator(0)).requires_grad_();
    const Tensor b = reals(round + 7).to(accelerator_of(1)).requires_grad_();
    Context context(w0());
    const auto [x, y] = w0().rpc_sync(1, squares, a + a, b + b);
    context.backward({x * x, y * y}, {ones.to(accelerator(0)), ones.to(accelerator_of(1))});
    // Of (2a)^4.
    EXPECT_TRUE(near(context.gradient(a), reals(round).pow(3) * 64));
    EXPECT_TRUE(near(context.gradient(b), reals(round + 7).pow(3) * 64));
  }
}

TEST_P(DeviceGradients, OfAGraphOnTheCpuAndOnDevices) {
  const Weights w = w0().remote(1, weights, accelerator_of(1).index(), 3);
  for (int round = 0; round < repetitions(20); ++round) {
    const Tensor x = reals(round).requires_grad_();
    const Tensor cpu_w = reals(3).requires_grad_();
    const auto expected = torch::autograd::grad({(cpu_w * (x * x)).sum()}, {x, cpu_w});
    Context context(w0());
    const Tensor y = w0().rpc_sync(1, times, w, (x * x).to(accelerator_of(1)));
    context.backward({y.cpu().sum()});
    EXPECT_TRUE(context.gradient(x).is_cpu());
    EXPECT_TRUE(near(context.gradient(x), expected[0]));
    EXPECT_TRUE(
        near(w0().rpc_sync(1, gradient_of, static_cast<int64_t>(context.id()), w), expected[1]));
  }
}

TEST_P(DeviceGradients, OfWhatWasFetchedToAnotherDeviceGoBackToItsOwn) {
  const auto w = w0().remote(1, weight, 0, 3);
  Context context(w0());
  const Tensor here = w.to_here(accelerator_of(1));
  context.backward({here * here}, {at::ones({200}, at::kDouble).to(accelerator_of(1))});
  EXPECT_TRUE(
      near(w0().rpc_sync(1, gradient_of_one, static_cast<int64_t>(context.id()), w), reals(3) * 2));
}

TEST_P(DeviceGradients, MoveTheParametersThatTheOptimizerHas) {
  const Weights w = w0().remote(1, weights, 0, 3);
  DistributedOptimizer<torch::optim::SGD> optimizer(w0(), {w}, 0.01);
  Tensor expected = reals(3);
  for (int round = 0; round < repetitions(20); ++round) {
    Context context(w0());
    const Tensor y = w0().rpc_sync(1, times, w, reals(round).to(accelerator(0)));
    context.backward({y.cpu().sum()});
    optimizer.step(context);
    expected = expected - reals(round) * 0.01;
  }
  EXPECT_TRUE(near(w0().rpc_sync(1, now, w), expected));
}

// What an optimizer keeps of a parameter is on its device, and of the same order as it.
TEST_P(DeviceGradients, MoveTheParametersWithMomentumAsInOneProcess) {
  const torch::optim::SGDOptions options = torch::optim::SGDOptions(0.01).momentum(0.9);
  const Weights w = w0().remote(1, weights, 0, 3);
  DistributedOptimizer<torch::optim::SGD> optimizer(w0(), {w}, options);
  Tensor expected = reals(3).requires_grad_();
  torch::optim::SGD in_one_process({expected}, options);
  for (int round = 0; round < repetitions(20); ++round) {
    Context context(w0());
    const Tensor y = w0().rpc_sync(1, times, w, reals(round).to(accelerator(0)));
    context.backward({y.cpu().sum()});
    optimizer.step(context);
    in_one_process.zero_grad();
    (expected * reals(round)).sum().backward();
    in_one_process.step();
  }
  EXPECT_TRUE(near(w0().rpc_sync(1, now, w), expected.detach()));
}

// No step is lost, though each has streams of its own.
TEST_P(DeviceGradients, OfTwoTrainersMoveTheSameParameters) {
  for (const StepMode mode : {StepMode::kHogwild, StepMode::kConsistent}) {
    const Weights w = w0().remote(1, weights, 0, 3);
    constexpr int kTrainers = 2;
    const int rounds = repetitions(20);
    std::vector<std::thread> trainers;
    for (int trainer = 0; trainer < kTrainers; ++trainer) {
      trainers.emplace_back([&, trainer] {
        DistributedOptimizer<torch::optim::SGD> optimizer(w0(), {w}, 0.01, {.mode = mode});
        for (int round = 0; round < rounds; ++round) {
          Context context(w0());
          const Tensor x = reals(round + 1000 * trainer).to(accelerator_of(trainer));
          const Tensor y = w0().rpc_sync(1, times, w, x.to(accelerator(0)));
          context.backward({y.cpu().sum()});
          optimizer.step(context);
        }
      });
    }
    for (std::thread& trainer : trainers) trainer.join();
    Tensor expected = reals(3);
    for (int trainer = 0; trainer < kTrainers; ++trainer) {
      for (int round = 0; round < rounds; ++round) {
        expected = expected - reals(round + 1000 * trainer) * 0.01;
      }
    }
    EXPECT_TRUE(near(w0().rpc_sync(1, now, w), expected))
        << (mode == StepMode::kHogwild ? "hogwild" : "consistent");
  }
}

TEST_P(MappedDeviceGradients, GoBackByTheInverseOfTheMap) {
  if (accelerators() < 2) GTEST_SKIP() << kNeedsTwo;
  use({{"w1", {{cuda(0), cuda(1)}, {cuda(1), cuda(0)}}}}, {});
  const Weights w = w0().remote(1, weights, 1, 3);
  for (int round = 0; round < repetitions(10); ++round) {
    EXPECT_EQ(wrong_gradients(w0(), w, round, 1), 0);
  }
}

TEST_P(UnopenedDeviceGradients, ArriveThroughTheProcessor) {
  if (!has_a_region_for_each_tensor()) GTEST_SKIP() << kSharesRegions;
  const Weights w = w0().remote(1, weights, 0, 3);
  EXPECT_EQ(wrong_gradients(w0(), w, 1, 1), 0);
  for (const int rank : {0, 1}) EXPECT_EQ(wrong_gradients(w0(), w, 5 + rank, 1, rank), 0);
  EXPECT_NE(w0().rpc_sync(1, way_back), "") << "they were asked for";
  EXPECT_FALSE(way_of(w0(), 0).is_direct);
}

INSTANTIATE_TEST_SUITE_P(EachWay, DeviceReferences,
                         ::testing::Values(kSameProcess, kByName, kByHost), name_of_way);
INSTANTIATE_TEST_SUITE_P(EachWay, DeviceFutures, ::testing::Values(kSameProcess, kByName, kByHost),
                         name_of_way);
INSTANTIATE_TEST_SUITE_P(EachWay, DeviceGradients,
                         ::testing::Values(kSameProcess, kByName, kByHost), name_of_way);
INSTANTIATE_TEST_SUITE_P(EachWay, MappedDeviceGradients,
                         ::testing::Values(kSameProcess, kByName, kByHost), name_of_way);
INSTANTIATE_TEST_SUITE_P(EachWay, UnopenedDeviceGradients, ::testing::Values(kByName), name_of_way);

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) { return farspan::testing::run_device_tests(argc, argv); }
