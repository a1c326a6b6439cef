// The rules under test: what ends with a worker, or with a call (autograd/README.md, "Contexts";
// optim/README.md, "Consistent"; rref/PROTOCOL.md, "Losing a worker"), over whole workers in the
// World.
#include <farspan/autograd/context.h>
#include <farspan/rpc/init/init.h>
#include <farspan/rpc/rpc.h>
#include <farspan/rref/remote.h>
#include <farspan/rref/rref.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <farspan/autograd/room.h>
#include <farspan/rpc/init/rooms.h>

#include "support/errors.h"
#include "support/world.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using dist_autograd::AutogradRoom;
using dist_autograd::Context;
using std::chrono::milliseconds;
using std::chrono::seconds;

Tensor twice(const Tensor& x) { return x + x; }
Tensor twice_by(const Tensor& x, const std::string& worker) { return rpc_sync(worker, twice, x); }
void pause_for(int64_t ms) { Promise<void>().future().wait_for(Millis(ms)); }
Tensor pause_then_twice_by(const Tensor& x, int64_t ms, const std::string& worker) {
  pause_for(ms);
  return rpc_sync(worker, twice, x);
}
// A result whose backward pass takes that long on the worker that made it.
Tensor slow_backward(const Tensor& x, int64_t ms) {
  Tensor y = x + x;
  y.register_hook([ms](const Tensor&) { pause_for(ms); });
  return y;
}
int64_t sum_of_ref(const RRef<Tensor>& x) { return x.to_here().sum().item<int64_t>(); }
RRef<Tensor> kept;
void keep_ref(const RRef<Tensor>& x) { kept = x; }
Tensor three() { return at::full({3}, 3, at::kLong); }
FARSPAN_REGISTER_AS("lost.twice", twice);
FARSPAN_REGISTER_AS("lost.twice_by", twice_by);
FARSPAN_REGISTER_AS("lost.pause_then_twice_by", pause_then_twice_by);
FARSPAN_REGISTER_AS("lost.slow_backward", slow_backward);
FARSPAN_REGISTER_AS("lost.sum_of_ref", sum_of_ref);
FARSPAN_REGISTER_AS("lost.keep_ref", keep_ref);
FARSPAN_REGISTER_AS("lost.three", three);

size_t contexts_of(World& world, const char* worker) {
  return AutogradRoom::of(world[worker])->counters().contexts;
}

// Both ways to go: true, it is killed; false, it shuts itself down.
class Gone : public ::testing::TestWithParam<bool> {
 protected:
  void go(World& world, const char* worker) {
    GetParam() ? world.kill(worker) : world[worker].shutdown(/*graceful=*/false);
  }
};

TEST_P(Gone, ABackwardPassThatComesLaterFails) {
  World world({.workers = 2});
  CurrentWorker current(world["w0"]);
  Context context;
  const Tensor loss = rpc_sync("w1", twice, at::ones({2}).requires_grad_()).sum();
  go(world, "w1");
  world.drain();  // it has been told
  EXPECT_NE(code_of([&] { context.backward({loss}); }), Code::kOk);
  EXPECT_NE(code_of([&] { context.backward({loss}); }), Code::kOk);
}

TEST_P(Gone, ABackwardPassThatIsUnderWayFails) {
  World world({.workers = 2});
  Code code = Code::kOk;
  const auto end = world.start("w0", [&] {
    Context context;
    const Tensor loss = rpc_sync("w1", slow_backward, at::ones({2}).requires_grad_(), 60'000).sum();
    code = code_of([&] { context.backward({loss}); });
  });
  world.advance(seconds(1));
  EXPECT_EQ(AutogradRoom::of(world["w1"])->counters().passes, 1u);
  go(world, "w1");
  ASSERT_TRUE(world.run_until([&] { return end.ready(); }, seconds(10))) << world.describe();
  EXPECT_NO_THROW(end.wait());
  EXPECT_EQ(code, GetParam() ? Code::kDisconnected : Code::kShutdown);
}

TEST_P(Gone, WhatAReferenceHeldIsFree) {
  World world({.workers = 2});
  CurrentWorker current(world["w0"]);
  {
    const auto mine = remote("w0", three);
    EXPECT_EQ(rpc_sync("w1", sum_of_ref, mine), 9);
    rpc_sync("w1", keep_ref, mine);
  }
  world.drain();
  EXPECT_FALSE(world.held().empty());
  go(world, "w1");
  world.advance(GetParam() ? seconds(120) : seconds(60));  // the lease, and what was on its way
  EXPECT_TRUE(world.held().empty()) << world.held().front();
  kept = {};
}

INSTANTIATE_TEST_SUITE_P(How, Gone, ::testing::Bool(), [](const auto& how) {
  return how.param ? std::string("Killed") : std::string("LeftByItself");
});

TEST(LostWorkers, AFunctionThatOutlivesItsContextBringsItNowhere) {
  World world({.workers = 3});
  CurrentWorker current(world["w0"]);
  {
    Context context;
    EXPECT_EQ(code_of([&] {
                rpc_sync("w1", CallOptions{.timeout = milliseconds(50)}, pause_then_twice_by,
                         at::ones({2}).requires_grad_(), 1000, "w2");
              }),
              Code::kTimeout);
  }
  world.advance(seconds(5));
  EXPECT_EQ(contexts_of(world, "w1"), 0u);
  EXPECT_EQ(contexts_of(world, "w2"), 0u);
}

TEST(LostWorkers, AFunctionThatOutlivesItsCallerBringsItsContextNowhere) {
  for_each_seed(20, [](uint64_t seed) {
    World world({.workers = 3, .seed = seed, .max_latency = milliseconds(3)});
    world.start("w0", [&] {
      Context context;
      rpc_sync("w1", pause_then_twice_by, at::ones({2}).requires_grad_(), 1000, "w2");
    });
    for (auto left = static_cast<int>(world.random().below(20)); left > 0; --left) world.step();
    world.kill("w0");
    world.advance(seconds(5));
    EXPECT_EQ(contexts_of(world, "w1"), 0u);
    EXPECT_EQ(contexts_of(world, "w2"), 0u);
  });
}

TEST(LostWorkers, WhoWasCalledThroughALostWorkerGivesTheContextUpAndSaysSo) {
  World world({.workers = 3});
  CurrentWorker current(world["w0"]);
  Context context;
  const Tensor x = at::ones({2}).requires_grad_();
  const Tensor loss = rpc_sync("w1", twice_by, x, "w2").sum();
  EXPECT_EQ(contexts_of(world, "w2"), 1u);
  world.kill("w1");
  world.drain();
  EXPECT_EQ(contexts_of(world, "w2"), 0u);
  // Expect: w2 does not take part as if nothing had been.
  EXPECT_EQ(code_of([&] { rpc_sync("w2", twice, x); }), Code::kDisconnected);
  EXPECT_NE(code_of([&] { context.backward({loss}); }), Code::kOk);
}

TEST(LostWorkers, ALineThatBreaksBetweenTheLivingEndsContextsForAllBehindIt) {
  World world({.workers = 3});
  CurrentWorker current(world["w0"]);
  const Tensor x = at::ones({2}).requires_grad_();
  {
    Context context;
    rpc_sync("w1", twice_by, x, "w2");
    world.network().break_line("w0", "w1");
    world.drain();
    EXPECT_EQ(contexts_of(world, "w1"), 0u);
    EXPECT_EQ(contexts_of(world, "w2"), 0u);
    EXPECT_EQ(code_of([&] { rpc_sync("w1", twice, x); }), Code::kDisconnected);
    EXPECT_EQ(code_of([&] { rpc_sync("w2", twice, x); }), Code::kDisconnected);
  }
  // Expect: the next one is whole.
  Context context;
  const Tensor loss = rpc_sync("w1", twice_by, x, "w2").sum();
  context.backward({loss});
  EXPECT_TRUE(at::equal(context.gradient(x), at::full({2}, 2.0f)));
}

TEST(LostWorkers, AWorkerThatHasShutDownBeginsNoPass) {
  World world({.workers = 2});
  const auto worker = world.share(0);
  CurrentWorker current(*worker);
  Context context;
  const Tensor loss = rpc_sync("w1", twice, at::ones({2}).requires_grad_()).sum();
  worker->shutdown(/*graceful=*/false);
  EXPECT_EQ(code_of([&] { context.backward({loss}); }), Code::kShutdown);
}

}  // namespace
}  // namespace farspan::testing
