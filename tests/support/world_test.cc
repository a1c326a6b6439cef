// The rules under test: support/world.h.
#include "support/world.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <farspan/rpc/rpc.h>

namespace farspan::testing {
namespace {

using at::Tensor;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;

Tensor twice_in_world(const Tensor& x) { return x + x; }
std::string name_in_world() { return current_worker().name(); }
int64_t nest_in_world(int64_t depth) {
  if (depth == 0) return 0;
  Worker& here = current_worker();
  return 1 + rpc_sync((here.rank() + 1) % here.world_size(), nest_in_world, depth - 1);
}
void wait_in_world(int64_t ms) { Promise<void>().future().wait_for(Millis(ms)); }
// All must have called it before the first one returns.
struct Gate {
  int missing = 0;
  Promise<void> open;
};
Gate* gate = nullptr;
void meet_in_world() {
  if (--gate->missing == 0) gate->open.set_value();
  gate->open.future().wait();
}
FARSPAN_REGISTER(twice_in_world, name_in_world, nest_in_world, wait_in_world, meet_in_world);

TEST(World, ItsWorkersCallEachOther) {
  World world({.workers = 3});
  const Tensor x = at::arange(6).reshape({2, 3});
  EXPECT_TRUE(at::equal(world["w0"].rpc_sync("w1", twice_in_world, x), x + x));
  EXPECT_EQ(world[2].rpc_sync("w1", name_in_world), "w1");
  EXPECT_EQ(world["w0"].rpc_sync("w1", nest_in_world, int64_t{50}), 50);
}

TEST(World, AsynchronousCallsMoveWhenTheTestSaysSo) {
  World world;
  const auto name = world["w0"].rpc_async("w2", name_in_world);
  EXPECT_FALSE(name.ready());
  world.drain();
  ASSERT_TRUE(name.ready());
  EXPECT_EQ(name.value(), "w2");
}

TEST(World, ProgramsOfAllWorkersRunAtOnce) {
  World world({.workers = 3});
  Gate three{3, {}};
  gate = &three;
  // Expect: each waits inside a function of w0's until all are there.
  world.run_all([](Worker& worker) {
    EXPECT_EQ(&current_worker(), &worker);
    rpc_sync("w0", meet_in_world);
  });
  EXPECT_EQ(three.missing, 0);
}

TEST(World, WhatAProgramThrowsIsInItsFuture) {
  World world;
  const auto end = world.start("w1", [] { throw std::out_of_range("too far"); });
  world.drain();
  ASSERT_TRUE(end.has_error());
  EXPECT_EQ(end.error().message(), "too far");
}

TEST(World, TimeoutsCostVirtualTimeOnly) {
  World world;
  const TimePoint begun = world.now();
  const auto call = world["w0"].rpc_async("w1", CallOptions{.timeout = seconds(100)}, wait_in_world,
                                          int64_t{1'000'000});
  try {
    call.wait();
    FAIL() << "no timeout";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kTimeout);
    EXPECT_EQ(e.worker(), "w1");
  }
  EXPECT_EQ(world.now() - begun, seconds(100));
}

TEST(World, WithoutATimeoutOfItsOwnACallHasAMinute) {
  World world;
  const TimePoint begun = world.now();
  const auto call = world["w0"].rpc_async("w1", wait_in_world, int64_t{1'000'000});
  world.advance(seconds(60) - milliseconds(1));
  EXPECT_FALSE(call.ready());
  world.advance(milliseconds(1));
  ASSERT_TRUE(call.has_error());
  EXPECT_EQ(call.error().code(), Code::kTimeout);
  EXPECT_EQ(call.error().elapsed(), seconds(60));
  EXPECT_EQ(world.now() - begun, seconds(60));
}

TEST(World, AKilledWorkerFailsItsCallersByName) {
  World world;
  const auto call = world["w0"].rpc_async("w1", wait_in_world, int64_t{1000});
  world.drain();
  world.kill("w1");
  world.drain();
  ASSERT_TRUE(call.has_error());
  EXPECT_EQ(call.error().code(), Code::kDisconnected);
  EXPECT_EQ(call.error().worker(), "w1");
  // Expect: started again, it serves.
  world.restart("w1");
  EXPECT_EQ(world["w0"].rpc_sync("w1", name_in_world), "w1");
}

TEST(World, FaultsHitCalls) {
  World world;
  world.faults().drop(wire::Kind::kCall, {.from = "w0", .to = "w1", .times = 1}, Loss::kFailsCall);
  EXPECT_THROW(world["w0"].rpc_sync("w1", name_in_world), Error);
  EXPECT_EQ(world["w0"].rpc_sync("w1", name_in_world), "w1");
}

TEST(World, AllShutDownTogether) {
  for_each_seed(20, [](uint64_t seed) {
    World world({.workers = 4, .seed = seed, .max_latency = milliseconds(1)});
    std::vector<Future<std::string>> names;
    for (int rank = 0; rank < 4; ++rank) names.push_back(world[rank].rpc_async(0, name_in_world));
    world.shutdown();
    for (const auto& name : names) EXPECT_FALSE(name.has_error());
    for (int rank = 0; rank < 4; ++rank) {
      EXPECT_FALSE(world.network().alive(rank));
    }
    EXPECT_THAT(world.held(), ::testing::IsEmpty());
  });
}

TEST(World, ShutdownNamesWhoIsMissing) {
  World world({.workers = 3, .settings = {.shutdown_timeout = seconds(30)}});
  const auto first = world.start("w0", [] { current_worker().shutdown(); });
  const auto second = world.start("w2", [] { current_worker().shutdown(); });
  world.advance(seconds(31));
  ASSERT_TRUE(first.has_error());
  ASSERT_TRUE(second.has_error());
  EXPECT_EQ(first.error().code(), Code::kTimeout);
  EXPECT_THAT(first.error().what(), ::testing::HasSubstr("'w1'"));
}

TEST(World, TheSameSeedGivesTheSameTrace) {
  const auto hash_of = [](uint64_t seed) {
    World world({.workers = 3, .seed = seed, .max_latency = milliseconds(3)});
    world.faults().delay(kAnyKind, milliseconds(2), {.probability = 0.2});
    world.run_all([](Worker& worker) {
      std::vector<Future<int64_t>> calls;
      for (int i = 0; i < 5; ++i) {
        calls.push_back(worker.rpc_async((worker.rank() + i) % 3, nest_in_world, int64_t{4}));
      }
      wait_all(calls);
      EXPECT_EQ(worker.rpc_sync("w1", twice_in_world, at::ones({3})).sum().item<float>(), 6);
    });
    return world.trace_hash();
  };
  std::set<uint64_t> hashes;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    EXPECT_EQ(hash_of(seed), hash_of(seed)) << "seed " << seed;
    hashes.insert(hash_of(seed));
  }
  EXPECT_EQ(hashes.size(), 10u);
}

TEST(World, SeedsAreTriedInTurn) {
  std::vector<uint64_t> seeds;
  for_each_seed(3, [&](uint64_t seed) { seeds.push_back(seed); });
  if (std::getenv("FARSPAN_SEED") || std::getenv("FARSPAN_SEEDS")) GTEST_SKIP() << "seeds are set";
  EXPECT_THAT(seeds, ElementsAre(1, 2, 3));
}

}  // namespace
}  // namespace farspan::testing
