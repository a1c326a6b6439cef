// The rules under test: optim/README.md, "Consistent", in the World: any order of what happens, and
// trainers that die. The oracle is a serial replay with torch::optim.
#include <farspan/farspan.h>

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "optim/layers.h"
#include "support/held.h"
#include "support/world.h"

namespace farspan::testing {
namespace {

using optim::OptimRoom;
using std::chrono::milliseconds;
using std::chrono::seconds;
using torch::optim::Adam;
using torch::optim::AdamOptions;

constexpr int kOwners = 2, kWorkers = 5;  // w0 has the gate and a layer, w1 has the other layer
constexpr DistributedOptimizerOptions kConsistently{.mode = StepMode::kConsistent};

void train_once() {
  std::vector<Done> log;
  train<Adam>(current_worker().rank(), 1, kOwners, AdamOptions(0.01), kConsistently, log);
}
FARSPAN_REGISTER(train_once);

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

}  // namespace
}  // namespace farspan::testing
