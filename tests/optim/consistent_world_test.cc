// The rules under test: optim/README.md, "Consistent", in the World: any order of what happens, and
// trainers that die. The oracle is a serial replay with torch::optim.
#include <farspan/farspan.h>

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <span>
#include <string_view>

#include "optim/layers.h"
#include "support/errors.h"
#include "support/held.h"
#include "support/world.h"

namespace farspan::testing {
namespace {

using optim::OptimRoom;
using std::chrono::milliseconds;
using std::chrono::seconds;
using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr int kOwners = 2, kWorkers = 5;  // w0 has the gate and a layer, w1 has the other layer
constexpr DistributedOptimizerOptions kConsistently{.mode = StepMode::kConsistent};

void train_once() {
  std::vector<Done> log;
  train<Adam>(current_worker().rank(), 1, kOwners, AdamOptions(0.01), kConsistently, log);
}
void look() {}
FARSPAN_REGISTER(train_once, look);

// After arm(), each owner stops in the middle of an SGD step, where it changes a parameter; until
// release().
class HeldSteps {
 public:
  explicit HeldSteps(std::set<int> owners) : owners_(std::move(owners)) {
    live_ = this;
    handle_ = at::addGlobalCallback(at::RecordFunctionCallback(&HeldSteps::hold));
  }
  ~HeldSteps() {
    at::removeCallback(handle_);
    live_ = nullptr;
  }
  HeldSteps(const HeldSteps&) = delete;
  HeldSteps& operator=(const HeldSteps&) = delete;

  void arm() { armed_ = true; }
  size_t count() const { return held_; }
  void release() { go_on_.set_value(); }

 private:
  static std::unique_ptr<at::ObserverContext> hold(const at::RecordFunction& op) {
    if (live_->armed_ && !live_->owners_.empty() && std::string_view(op.name()) == "aten::add_" &&
        live_->owners_.erase(current_worker().rank()) > 0) {
      ++live_->held_;
      live_->go_on_.future().wait_until(Deadline::never());
    }
    return nullptr;
  }

  static inline HeldSteps* live_ = nullptr;
  std::set<int> owners_;  // that have not stopped yet
  const Promise<void> go_on_;
  at::CallbackHandle handle_ = 0;
  bool armed_ = false;
  size_t held_ = 0;
};

class ConsistentWorld : public ::testing::Test {
 protected:
  struct Trainer {
    int rank;
    std::vector<Done> log = {};
    Future<void> end = {};
  };
  // The owners train, too, if asked to: each its layer and the other's.
  void start(World& world, int steps, bool owners_as_well) {
    at::set_num_threads(1);
    layers.clear();
    for (int owner = 0; owner < kOwners; ++owner) layers.push_back(std::make_shared<Layer>(owner));
    trainers.clear();
    for (int rank = owners_as_well ? 0 : kOwners; rank < kWorkers; ++rank) {
      trainers.push_back({.rank = rank});
    }
    for (Trainer& trainer : trainers) {
      trainer.end = world.start(world[trainer.rank].name(), [&trainer, steps] {
        train<Adam>(trainer.rank, steps, kOwners, AdamOptions(0.01), kConsistently, trainer.log);
      });
    }
  }
  bool all_ended() const {
    return std::all_of(trainers.begin(), trainers.end(),
                       [](const Trainer& trainer) { return trainer.end.ready(); });
  }
  std::vector<Done> whole_log() const {
    std::vector<Done> all;
    for (const Trainer& trainer : trainers) {
      all.insert(all.end(), trainer.log.begin(), trainer.log.end());
    }
    return all;
  }
  // Nobody is inside the gate, and there is no context and no reference anywhere.
  static void expect_idle(World& world) {
    world.advance(seconds(60));
    for (int rank = 0; rank < kWorkers; ++rank) {
      if (!world.network().alive(rank)) continue;
      EXPECT_THAT(held_by(world[rank]), ::testing::IsEmpty());
    }
  }
  // One step of worker w2 that has a second; `before` runs in front of it.
  static Future<void> start_step(World& world, Code& outcome, std::function<void()> before) {
    return world.start("w2", [&outcome, before = std::move(before)] {
      const Model model(kOwners);
      DistributedOptimizer<SGD> optimizer(model.parameters, SGDOptions(0.1), kConsistently);
      dist_autograd::Context context;
      context.backward({model.loss(batch(2, 0))});
      before();
      outcome = code_of([&] { optimizer.step(context, {.timeout = seconds(1)}); });
    });
  }
  // Worker w3 reads the layers, in a context.
  static Future<void> start_reading(World& world, std::vector<int64_t>& read) {
    return world.start("w3", [&read] {
      const Model model(kOwners);
      dist_autograd::Context context;
      model.loss(batch(3, 0), &read);
    });
  }
  // Expect: who reads now waits until all of the step has been applied.
  static void expect_whole_step(World& world, HeldSteps& held) {
    std::vector<int64_t> read;
    const auto reading = start_reading(world, read);
    world.advance(seconds(5));
    EXPECT_THAT(read, ::testing::IsEmpty()) << "of a step that is half applied";
    held.release();
    ASSERT_TRUE(world.run_until([&] { return reading.ready(); })) << world.describe();
    EXPECT_NO_THROW(reading.wait());
    EXPECT_THAT(read, ::testing::ElementsAre(1, 1));
    expect_idle(world);
  }
  void TearDown() override { layers.clear(); }

  std::vector<Trainer> trainers;
};

TEST_F(ConsistentWorld, AnyOrderEqualsASerialReplay) {
  for_each_seed(40, [&](uint64_t seed) {
    World world({.workers = kWorkers,
                 .seed = seed,
                 .max_latency = milliseconds(seed % 3),
                 .stragglers = seed % 2 == 0});
    start(world, 6, seed % 4 == 0);
    ASSERT_TRUE(world.run_until([&] { return all_ended(); })) << world.describe();
    for (const Trainer& trainer : trainers) EXPECT_NO_THROW(trainer.end.wait());
    EXPECT_EQ(whole_log().size(), 6 * trainers.size());
    expect_serial<Adam>(whole_log(), kOwners, AdamOptions(0.01));
    expect_idle(world);
    world.shutdown();
  });
}

TEST_F(ConsistentWorld, ATrainerThatDiesHoldsNobodyUp) {
  for_each_seed(60, [&](uint64_t seed) {
    World world({.workers = kWorkers, .seed = seed, .max_latency = milliseconds(seed % 3)});
    start(world, 5, false);
    Trainer& victim = trainers.back();
    const size_t after = seed % 5;  // steps; then anywhere in the next one
    world.run_until([&] { return victim.log.size() >= after; });
    for (auto left = static_cast<int>(world.random().below(200)); left > 0; --left) world.step();
    world.kill(world[victim.rank].name(), seed % 2 ? Sent::kArrives : Sent::kLost);
    ASSERT_TRUE(world.run_until([&] {
      return std::all_of(trainers.begin(), trainers.end() - 1,
                         [](const Trainer& trainer) { return trainer.end.ready(); });
    })) << world.describe();
    for (const Trainer& trainer : trainers) {
      if (trainer.rank == victim.rank) continue;
      EXPECT_NO_THROW(trainer.end.wait()) << "w" << trainer.rank;
      EXPECT_EQ(trainer.log.size(), 5u);
    }
    expect_idle(world);
  });
}

// A step inside a call that w3 serves: when it fails, the deadline of that call has passed.
TEST_F(ConsistentWorld, AStepEndsThoughTheCallThatItIsPartOfHasTimedOut) {
  World world({.workers = kWorkers});
  start(world, 0, false);
  CurrentWorker current(world["w4"]);
  const auto call = rpc_async("w3", CallOptions{.timeout = seconds(1)}, train_once);
  ASSERT_TRUE(world.run_until([&] { return OptimRoom::of(world["w0"])->counters().steps == 1; }));
  world.network().clog("w3", "w1");
  world.advance(seconds(5));
  world.network().unclog("w3", "w1");
  EXPECT_TRUE(call.has_error());
  expect_idle(world);
  EXPECT_NO_THROW(rpc_sync("w2", train_once));
}

TEST_F(ConsistentWorld, EachCallWaitsAtTheGateUntilItsOwnDeadline) {
  World world({.workers = kWorkers});
  const auto owner = OptimRoom::of(world["w1"]), trainer = OptimRoom::of(world["w2"]);
  owner->guard_parameters();
  const auto key = trainer->new_key();
  trainer->begin_step(key, OptimRoom::ContextId((uint64_t{3} << 44) | 1), {1}, {});
  {
    CurrentWorker current(world["w3"]);
    dist_autograd::Context context;
    const auto call = [](Millis timeout) {
      return rpc_async("w1", CallOptions{.timeout = timeout}, look);
    };
    const auto first = call(milliseconds(300));
    ASSERT_TRUE(
        world.run_until([&] { return OptimRoom::of(world["w0"])->counters().entries == 1; }));
    const auto patient = call(seconds(30));
    world.advance(seconds(1));
    EXPECT_TRUE(first.has_error());
    EXPECT_FALSE(patient.ready()) << "the deadline is that of the other call";
    const auto last = call(milliseconds(300));
    world.advance(seconds(1));
    EXPECT_TRUE(last.has_error());
    EXPECT_EQ(world["w1"].counters().threads, 1) << "it waits as long as the other call";
    trainer->end_step(key);
    ASSERT_TRUE(world.run_until([&] { return patient.ready(); }, seconds(1)));
    EXPECT_FALSE(patient.has_error());
  }
  owner->unguard_parameters();
  expect_idle(world);
}

// w2 tells of the ends of thousands of contexts, and w1 of that of one step.
TEST_F(ConsistentWorld, EndsThatOvertakeDoNotPushOutThoseOfOtherWorkers) {
  World world({.workers = kWorkers});
  for (uint64_t context = 1; context <= 5000; ++context) {
    const uint64_t gave_up[2] = {2, (uint64_t{3} << 44) | context};
    wire::OutFrame frame;
    frame.header.kind = wire::Kind::kOptimizer;
    frame.meta = std::as_bytes(std::span(gave_up));
    world["w2"].messenger().post(0, frame);
  }
  world.drain();
  const auto trainer = OptimRoom::of(world["w1"]);
  const auto key = trainer->new_key();
  trainer->end_step(key);
  world.drain();
  const auto context = OptimRoom::ContextId((uint64_t{2} << 44) | 1);
  EXPECT_EQ(code_of([&] { trainer->begin_step(key, context, {3}, {}); }), Code::kCancelled);
  EXPECT_EQ(OptimRoom::of(world["w0"])->counters().steps, 0u);
}

TEST_F(ConsistentWorld, AContextThatTheGateRefusedLeavesNothingBehind) {
  World world({.workers = kWorkers});
  const auto owner = OptimRoom::of(world["w1"]), trainer = OptimRoom::of(world["w2"]);
  owner->guard_parameters();
  const auto key = trainer->new_key();
  trainer->begin_step(key, OptimRoom::ContextId((uint64_t{3} << 44) | 1), {1}, {});
  {
    CurrentWorker current(world["w3"]);
    dist_autograd::Context context;
    EXPECT_THROW(rpc_sync("w1", CallOptions{.timeout = seconds(1)}, look), Error);
  }
  trainer->end_step(key);
  owner->unguard_parameters();
  expect_idle(world);
  EXPECT_EQ(OptimRoom::of(world["w0"])->ends_remembered(), 0u);
}

// Two requests to enter get no answer in time; what they ask for has ended when they come.
TEST_F(ConsistentWorld, RequestsThatComeAfterTheirContextHasEndedAreAllRefused) {
  for_each_seed(20, [&](uint64_t seed) {
    World world({.workers = kWorkers, .seed = seed});
    const auto owner = OptimRoom::of(world["w1"]);
    owner->guard_parameters();
    world.network().clog("w1", "w0");
    {
      CurrentWorker current(world["w3"]);
      dist_autograd::Context context;
      for (int i = 0; i < 2; ++i) {
        EXPECT_THROW(rpc_sync("w1", CallOptions{.timeout = seconds(1)}, look), Error);
      }
    }
    world.drain();
    world.network().unclog("w1", "w0");
    owner->unguard_parameters();
    expect_idle(world);
  });
}

TEST_F(ConsistentWorld, AStepThatTimesOutIsOverWhenItsOwnersHaveAppliedIt) {
  World world({.workers = kWorkers});
  start(world, 0, false);
  HeldSteps held({0, 1});
  Code outcome = Code::kOk;
  const auto step = start_step(world, outcome, [&] { held.arm(); });
  ASSERT_TRUE(world.run_until([&] { return step.ready(); }));
  EXPECT_EQ(outcome, Code::kTimeout);
  EXPECT_EQ(held.count(), 2u);
  expect_whole_step(world, held);
}

TEST_F(ConsistentWorld, TheStepOfATrainerThatDiesIsOverWhenItsOwnersHaveAppliedIt) {
  World world({.workers = kWorkers});
  start(world, 0, false);
  HeldSteps held({0, 1});
  Code outcome = Code::kOk;
  const auto step = start_step(world, outcome, [&] { held.arm(); });
  ASSERT_TRUE(world.run_until([&] { return held.count() == 2; }));
  world.kill("w2");
  expect_whole_step(world, held);
}

// What the trainer sent to w1 is on its way while the step times out, and others step.
TEST_F(ConsistentWorld, AStepThatIsOverDoesNotBeginAtAnOwner) {
  World world({.workers = kWorkers});
  start(world, 0, false);
  Code outcome = Code::kOk;
  const auto step = start_step(world, outcome, [&] { world.network().clog("w2", "w1"); });
  ASSERT_TRUE(world.run_until([&] { return step.ready(); }));
  EXPECT_EQ(outcome, Code::kTimeout);
  std::vector<Done> log;
  const auto other =
      world.start("w3", [&] { train<SGD>(3, 1, kOwners, SGDOptions(0.1), kConsistently, log); });
  ASSERT_TRUE(world.run_until([&] { return other.ready(); })) << world.describe();
  EXPECT_EQ(log.size(), 1u);
  world.network().unclog("w2", "w1");
  world.advance(seconds(5));
  EXPECT_EQ(layers[0]->version() - layers[0]->base, 2);
  EXPECT_EQ(layers[1]->version() - layers[1]->base, 1) << "the step that was over";
  expect_idle(world);
}

TEST_F(ConsistentWorld, AnOwnerThatIsLostWhileItAppliesAStepHoldsNobodyUp) {
  for (const bool dies : {true, false}) {
    World world({.workers = kWorkers, .silence_timeout = seconds(2)});
    start(world, 0, false);
    HeldSteps held({1});
    Code outcome = Code::kOk;
    const auto step = start_step(world, outcome, [&] { held.arm(); });
    ASSERT_TRUE(world.run_until([&] { return step.ready(); }));
    EXPECT_EQ(outcome, Code::kTimeout);
    dies ? world.kill("w1") : world.network().freeze("w1");
    std::vector<Done> log;
    const auto other = world.start(
        "w3", [&] { train<SGD>(3, 1, /*owners=*/1, SGDOptions(0.1), kConsistently, log); });
    ASSERT_TRUE(world.run_until([&] { return other.ready(); }, seconds(20)));
    EXPECT_EQ(log.size(), 1u);
    world.advance(seconds(1));
    EXPECT_EQ(OptimRoom::of(world["w0"])->counters().steps, 0u);
    held.release();
    if (!dies) world.kill("w1");  // or it would hold what it did
  }
}

}  // namespace
}  // namespace farspan::testing
