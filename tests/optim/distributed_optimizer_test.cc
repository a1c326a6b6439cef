// The rules under test: optim/distributed_optimizer.h and optim/README.md. The oracle is
// torch::optim, in one thread.
#include <farspan/farspan.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <future>
#include <set>
#include <string>
#include <thread>

#include <farspan/autograd/room.h>
#include <farspan/c10d/base/log.h>
#include <farspan/rpc/init/rooms.h>

#include "optim/layers.h"
#include "support/errors.h"
#include "support/held.h"
#include "support/sanitizers.h"
#include "support/workers.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using dist_autograd::AutogradRoom;
using dist_autograd::Context;
using optim::OptimRoom;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::Not;
using namespace torch::optim;

constexpr DistributedOptimizerOptions kConsistently{.mode = StepMode::kConsistent};

struct NoParameters {
  std::vector<Tensor> parameters(bool) const { throw std::runtime_error("there are none"); }
};
std::shared_ptr<NoParameters> lend_nothing() { return std::make_shared<NoParameters>(); }
FARSPAN_REGISTER(lend_nothing);
FARSPAN_REGISTER_METHODS(NoParameters, parameters);

class DistributedOptimizerTest : public ::testing::Test {
 protected:
  DistributedOptimizerTest() {
    at::set_num_threads(1);
    for (int rank = 0; rank < workers.count(); ++rank) furnish(workers[rank]);
    for (int owner = 0; owner < 3; ++owner) layers.push_back(std::make_shared<Layer>(owner));
  }
  // Each test ends with nobody inside the gate, and no context and no reference anywhere.
  void TearDown() override {
    expect_nothing_held(workers, stopped);
    layers.clear();
  }
  // Runs `program` as worker `rank`, on a thread of its own.
  template <class Program>
  auto start(int rank, Program program) {
    return std::async(std::launch::async, [this, rank, program] {
      CurrentWorker current(workers[rank]);
      return program();
    });
  }
  Workers workers{{.count = 6, .transport = "loopback", .settings = {}, .reactor = {}}};
  std::set<int> stopped;
};

constexpr int kSteps = repetitions(500), kTrainers = 3, kFirstTrainer = 3;

template <class Opt, class Options>
std::vector<Done> train_all(Workers& workers, int owners, const Options& options,
                            const DistributedOptimizerOptions& how) {
  std::vector<std::future<std::vector<Done>>> trainers;
  for (int trainer = kFirstTrainer; trainer < kFirstTrainer + kTrainers; ++trainer) {
    trainers.push_back(std::async(std::launch::async, [&, trainer] {
      CurrentWorker current(workers[trainer]);
      std::vector<Done> log;
      train<Opt>(trainer, kSteps, owners, options, how, log);
      return log;
    }));
  }
  std::vector<Done> log;
  for (auto& trainer : trainers) {
    for (Done& done : trainer.get()) log.push_back(std::move(done));
  }
  return log;
}

template <class Opt>
class ThreeTrainers : public DistributedOptimizerTest {
 protected:
  static auto options() {
    if constexpr (std::is_same_v<Opt, SGD>) return SGDOptions(0.05).momentum(0.9);
    if constexpr (std::is_same_v<Opt, Adam>) return AdamOptions(0.01);
    if constexpr (std::is_same_v<Opt, AdamW>) return AdamWOptions(0.01);
    if constexpr (std::is_same_v<Opt, Adagrad>) return AdagradOptions(0.02);
    if constexpr (std::is_same_v<Opt, RMSprop>) return RMSpropOptions(0.005).momentum(0.5);
  }
};
using Optimizers = ::testing::Types<SGD, Adam, AdamW, Adagrad, RMSprop>;
TYPED_TEST_SUITE(ThreeTrainers, Optimizers);

TYPED_TEST(ThreeTrainers, HogwildStepsNeverThrow) {
  const auto log = train_all<TypeParam>(this->workers, 2, this->options(), {});
  EXPECT_EQ(log.size(), static_cast<size_t>(kTrainers * kSteps));
  for (const int owner : {0, 1}) {
    const Layer untrained(owner);
    for (size_t p = 0; p < 2; ++p) {
      const Tensor& w = layers[static_cast<size_t>(owner)]->weights[p];
      EXPECT_TRUE(at::isfinite(w).all().template item<bool>());
      // Expect: every single weight has moved.
      EXPECT_TRUE(w.ne(untrained.weights[p]).all().template item<bool>()) << w;
    }
  }
}

TYPED_TEST(ThreeTrainers, ConsistentStepsEqualASerialReplay) {
  const auto log = train_all<TypeParam>(this->workers, 2, this->options(), kConsistently);
  expect_serial<TypeParam>(log, 2, this->options());
}

using Consistent = DistributedOptimizerTest;

TEST_F(Consistent, AStepNamesTheContextThatHoldsItUpAndAppliesNothing) {
  CurrentWorker current(workers[3]);
  const Model model(2);
  DistributedOptimizer<SGD> optimizer(model.parameters, SGDOptions(0.1), kConsistently);
  std::promise<void> used, go_on;
  auto other = start(4, [&] {
    const Model theirs(2);
    Context context;
    theirs.loss(batch(4, 0));
    used.set_value();
    go_on.get_future().wait();
  });
  used.get_future().wait();
  {
    Context context;
    context.backward({model.loss(batch(3, 0))});
    const auto begun = Clock::now();
    const Error error = error_of([&] { optimizer.step(context, {.timeout = seconds(2)}); });
    EXPECT_EQ(error.code(), Code::kTimeout);
    EXPECT_THAT(error.what(), HasSubstr("of worker 'w4'"));
    EXPECT_THAT(error.what(), HasSubstr("'w0', 'w1'"));
    EXPECT_THAT(error.what(), Not(HasSubstr("'w2'")));
    EXPECT_LT(Clock::now() - begun, seconds(5));
    EXPECT_EQ(layers[0]->version(), layers[0]->base);
    EXPECT_EQ(layers[1]->version(), layers[1]->base);
    go_on.set_value();
    other.get();
    // Expect: it can be tried again.
    EXPECT_EQ(optimizer.step(context), 1u);
    EXPECT_EQ(layers[1]->version(), layers[1]->base + 1);
  }
}

TEST_F(Consistent, ACallThatWaitsForAStepNamesWhatTheStepWaitsFor) {
  CurrentWorker current(workers[3]);
  const Model model(1);
  DistributedOptimizer<SGD> optimizer(model.parameters, SGDOptions(0.1), kConsistently);
  Context held;
  model.loss(batch(3, 0));
  auto stepping = start(4, [&] {
    const Model theirs(1);
    DistributedOptimizer<SGD> own(theirs.parameters, SGDOptions(0.1), kConsistently);
    Context context;
    context.backward({theirs.loss(batch(4, 0))});
    EXPECT_THROW(own.step(context, {.timeout = seconds(4)}), Error);
  });
  auto late = start(5, [&] {
    const Model theirs(1);
    const Deadline deadline = Deadline::after(seconds(5));
    while (OptimRoom::of(workers[0])->counters().steps == 0 && !deadline.expired()) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    Context context;
    const Error error = error_of([&] {
      theirs.parts[0].rpc_sync(CallOptions{.timeout = seconds(2)}, &Layer::forward, batch(5, 0));
    });
    EXPECT_EQ(error.code(), Code::kTimeout);
    EXPECT_THAT(error.what(), HasSubstr("of worker 'w4'"));
    EXPECT_THAT(error.what(), HasSubstr("of worker 'w3'"));
  });
  late.get();
  stepping.get();
}

TEST_F(Consistent, AStepEndsItsContext) {
  CurrentWorker current(workers[3]);
  const Model model(2);
  DistributedOptimizer<SGD> optimizer(model.parameters, SGDOptions(0.1), kConsistently);
  Context context;
  const Tensor loss = model.loss(batch(3, 0));
  context.backward({loss}, {.mode = {}, .retain_graph = true, .timeout = {}});
  optimizer.step(context);
  EXPECT_THROW(context.backward({loss}), Error);
  // Expect: what is called now is not recorded, and holds nobody up.
  model.loss(batch(3, 1));
  EXPECT_EQ(OptimRoom::of(workers[0])->counters().contexts, 0u);
  start(4, [&] {
    const Model theirs(2);
    DistributedOptimizer<SGD> own(theirs.parameters, SGDOptions(0.1), kConsistently);
    Context next;
    next.backward({theirs.loss(batch(4, 0))});
    EXPECT_EQ(own.step(next, {.timeout = seconds(10)}), 2u);
  }).get();
}

// The owner trains, too: it uses its parameters without a call.
TEST_F(Consistent, AContextOfTheOwnerCountsFromItsBeginning) {
  CurrentWorker current(workers[1]);
  const auto part = remote(1, lend_layer);
  DistributedOptimizer<SGD> optimizer(parameter_rrefs(part), SGDOptions(0.1), kConsistently);
  std::promise<void> used, go_on;
  auto owner = start(1, [&] {
    Context context;
    const Tensor loss = loss_of(Layer::apply(layers[1]->weights, batch(1, 0)));
    used.set_value();
    go_on.get_future().wait();
    EXPECT_NO_THROW(context.backward({loss}));
    EXPECT_GT(optimizer.step(context), 0u);
  });
  used.get_future().wait();
  auto trainer = start(4, [&] {
    const auto theirs = remote(1, lend_layer);
    DistributedOptimizer<SGD> own(parameter_rrefs(theirs), SGDOptions(0.1), kConsistently);
    Context context;
    context.backward({loss_of(theirs.rpc_sync(&Layer::forward, batch(4, 0))[0])});
    EXPECT_THROW(own.step(context, {.timeout = milliseconds(300)}), Error);
    go_on.set_value();
    EXPECT_GT(own.step(context), 0u);
  });
  owner.get();
  trainer.get();
}

// A context that used the parameters before anybody wanted consistent steps of them.
TEST_F(Consistent, AContextThatIsUnderWayAlreadyIsWaitedFor) {
  CurrentWorker current(workers[3]);
  const Model model(2);
  std::promise<void> made, go_on;
  auto stepping = start(4, [&] {
    go_on.get_future().wait();
    const Model theirs(2);
    DistributedOptimizer<SGD> own(theirs.parameters, SGDOptions(0.1), kConsistently);
    Context context;
    context.backward({theirs.loss(batch(4, 0))});
    EXPECT_THROW(own.step(context, {.timeout = milliseconds(300)}), Error);
    made.set_value();
  });
  Context context;
  const Tensor loss = model.loss(batch(3, 0));
  go_on.set_value();
  made.get_future().wait();
  EXPECT_NO_THROW(context.backward({loss}));
  stepping.get();
}

TEST_F(Consistent, TheGateIsOpenAgainWhenNobodyWantsIt) {
  CurrentWorker current(workers[3]);
  {
    const Model model(1);
    DistributedOptimizer<SGD> optimizer(model.parameters, SGDOptions(0.1), kConsistently);
    Context context;
    model.loss(batch(3, 0));
    EXPECT_EQ(OptimRoom::of(workers[0])->counters().contexts, 1u);
  }
  const Model model(1);
  const Deadline deadline = Deadline::after(seconds(10));
  size_t inside = 1;
  while (inside > 0 && !deadline.expired()) {
    Context context;
    model.loss(batch(3, 0));
    inside = OptimRoom::of(workers[0])->counters().contexts;
  }
  EXPECT_EQ(inside, 0u);
}

using Errors = DistributedOptimizerTest;

TEST_F(Errors, OfAllOwnersOfAStepAreInOne) {
  CurrentWorker current(workers[3]);
  const Model model(3);
  DistributedOptimizer<SGD> optimizer(model.parameters, SGDOptions(0.1));
  Context context;
  context.backward({model.loss(batch(3, 0))});
  for (const int owner : {0, 2}) {
    AutogradRoom::of(workers[owner])->find(context.id())->leaves->clear();
    AutogradRoom::of(workers[owner])
        ->find(context.id())
        ->leaves->add(layers[static_cast<size_t>(owner)]->weights[0],
                      at::ones({4, 4}, at::kComplexFloat));
  }
  const Tensor before = layers[1]->weights[0].detach().clone();
  const Error error = error_of([&] { optimizer.step(context); });
  EXPECT_THAT(error.what(), HasSubstr("on 'w0': "));
  EXPECT_THAT(error.what(), HasSubstr("; on 'w2': "));
  EXPECT_THAT(error.what(), Not(HasSubstr("'w1'")));
  EXPECT_THAT(error.what(), HasSubstr("DistributedOptimizer::step"));
  EXPECT_FALSE(at::equal(layers[1]->weights[0], before)) << "the third has stepped";
}

TEST_F(Errors, OfAllOwnersThatAreGoneAreInOne) {
  CurrentWorker current(workers[3]);
  const Model model(3);
  DistributedOptimizer<SGD> optimizer(model.parameters, SGDOptions(0.1));
  Context context;
  context.backward({model.loss(batch(3, 0))});
  stopped = {1, 2};
  workers.agent(1).stop();
  workers.agent(2).stop();
  const Error error = error_of([&] { optimizer.step(context, {.timeout = seconds(10)}); });
  EXPECT_THAT(error.what(), HasSubstr("on 'w1': "));
  EXPECT_THAT(error.what(), HasSubstr("on 'w2': "));
  EXPECT_THAT(error.what(), Not(HasSubstr("on 'w0'")));
}

TEST_F(Errors, OfMakingAnOptimizerComeWithItAndNameTheOwners) {
  CurrentWorker current(workers[3]);
  ParameterRRefs parameters{parameter_rrefs(remote(0, lend_layer)),
                            parameter_rrefs(remote(1, lend_nothing)),
                            parameter_rrefs(remote(2, lend_nothing))};
  const Error error =
      error_of([&] { DistributedOptimizer<SGD> optimizer(parameters, SGDOptions(0.1)); });
  EXPECT_THAT(error.what(), HasSubstr("on 'w1': "));
  EXPECT_THAT(error.what(), HasSubstr("on 'w2': "));
  EXPECT_THAT(error.what(), HasSubstr("there are none"));
  EXPECT_THAT(error.what(), Not(HasSubstr("on 'w0'")));
  EXPECT_THROW(DistributedOptimizer<SGD>(ParameterRRefs{}, SGDOptions(0.1)), Error);
}

TEST_F(Errors, OptionsThatLibTorchRefusesAreRefusedByName) {
  CurrentWorker current(workers[3]);
  const Model model(1);
  const Error error =
      error_of([&] { DistributedOptimizer<Adam> optimizer(model.parameters, AdamOptions(-1)); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("learning rate"));
}

TEST_F(DistributedOptimizerTest, TheFirstStepThatFindsNoGradientIsSpokenOf) {
  std::string said;
  set_log_sink([&](LogLevel, std::string_view, std::string_view text) { said += text; });
  {
    CurrentWorker current(workers[3]);
    const Model model(2);
    DistributedOptimizer<SGD> optimizer(model.parameters, SGDOptions(0.1));
    {
      Context context;
      context.backward({model.loss(batch(3, 0))});
      optimizer.step(context);
      EXPECT_EQ(said, "");
    }
    Context without;
    optimizer.step(without);
    EXPECT_THAT(said, HasSubstr("backward"));
    said.clear();
    optimizer.step(without);
    EXPECT_EQ(said, "");
  }
  set_log_sink(nullptr);
}

// One group spans two owners; the oracle has the same groups.
TEST_F(DistributedOptimizerTest, GroupsOverSeveralOwnersEqualThoseOfLibTorch) {
  CurrentWorker current(workers[3]);
  const Model model(3);
  using Optimizer = DistributedOptimizer<Adam>;
  Optimizer optimizer(std::vector<Optimizer::Group>{{{model.parameters[0], model.parameters[2]},
                                                     AdamOptions(0.1).betas({0.5, 0.6})},
                                                    {{model.parameters[1]}}},
                      AdamOptions(0.01).weight_decay(0.1));
  std::vector<Layer> local{Layer(0), Layer(1), Layer(2)};
  std::vector<Tensor> first = local[0].weights;
  first.insert(first.end(), local[2].weights.begin(), local[2].weights.end());
  Adam oracle({OptimizerParamGroup(
                   first, std::make_unique<AdamOptions>(AdamOptions(0.1).betas({0.5, 0.6}))),
               OptimizerParamGroup(local[1].weights)},
              AdamOptions(0.01).weight_decay(0.1));
  for (int i = 0; i < 50; ++i) {
    Context context;
    context.backward({model.loss(batch(3, i))});
    optimizer.step(context);
    Tensor x = batch(3, i);
    for (const Layer& layer : local) x = Layer::apply(layer.weights, x);
    oracle.zero_grad();
    torch::autograd::backward({loss_of(x)});
    oracle.step();
  }
  for (size_t owner = 0; owner < 3; ++owner) {
    for (size_t p = 0; p < 2; ++p) {
      EXPECT_TRUE(at::equal(layers[owner]->weights[p], local[owner].weights[p]));
    }
  }
}

}  // namespace
}  // namespace farspan::testing
