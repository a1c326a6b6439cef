// How passes and contexts end that do not end well.
#include "integration/autograd_suite.h"

#include <optional>
#include <thread>

#include <farspan/autograd/room.h>
#include <farspan/rpc/init/rooms.h>

#include "support/workers.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using dist_autograd::Context;
using dist_autograd::PassMode;
using ::testing::HasSubstr;

Tensor fails_backward(const Tensor& x) {
  Tensor y = x * 2;
  y.register_hook([](const Tensor&) -> Tensor { throw std::runtime_error("this hook fails"); });
  return y * 3;
}
Tensor waits_backward(const Tensor& x) {
  Tensor y = x * 2;
  y.register_hook([](const Tensor& gradient) -> Tensor {
    pass_gate();
    return gradient;
  });
  return y * 3;
}
// Trains with w2, and dies in the midst of it.
void hold_context_at_gate() {
  Worker& here = current_worker();
  Context context(here);
  here.rpc_sync(2, layer, variable({2, 4}, 17));
  pass_gate();
}
int64_t contexts_here() {
  return static_cast<int64_t>(
      dist_autograd::AutogradRoom::of(current_worker())->counters().contexts);
}
// The gradients of the weights are sparse: two parts each.
Tensor embed(const std::vector<Tensor>& weights) {
  const Tensor index = at::zeros({1}, at::kLong);
  std::vector<Tensor> rows;
  for (const Tensor& weight : weights) {
    rows.push_back(at::embedding(weight, index, -1, false, true));
  }
  return at::cat(rows).sum();
}
// A part of the pass that w0 hears of from w1.
Tensor plain_by(const Tensor& x, const std::string& worker) {
  return current_worker().rpc_sync(worker, plain, x);
}
bool in_context() { return dist_autograd::current_context() != nullptr; }
// Asks in a call that is not recorded.
bool ask_outside(int64_t rank) {
  const dist_autograd::OutsideContext outside;
  return current_worker().rpc_sync(static_cast<int>(rank), in_context);
}
FARSPAN_REGISTER(fails_backward, waits_backward, hold_context_at_gate, contexts_here, in_context,
                 ask_outside, embed, plain_by);

}  // namespace

TEST_P(AutogradSuite, AFailureAnywhereEndsThePassEverywhereByName) {
  start();
  for (const PassMode mode : {PassMode::kExact, PassMode::kFast}) {
    for (const int where : {0, 1, 2}) {
      SCOPED_TRACE("on w" + std::to_string(where) + (mode == PassMode::kFast ? ", fast" : ""));
      const Tensor x = variable({2, 4}, 13);
      Context context;
      const Tensor y = w0().rpc_sync("w2", plain, w0().rpc_sync("w1", plain, x));
      const Tensor z = w0().rpc_sync("w1", layer, w0().rpc_sync(where, fails_backward, y));
      const Error error = error_of([&] {
        context.backward({z.sum()}, {.mode = mode, .retain_graph = false, .timeout = 60s});
      });
      EXPECT_EQ(error.code(), Code::kRemote);
      EXPECT_EQ(error.remote_type(), "std::runtime_error");
      EXPECT_THAT(error.what(), HasSubstr("this hook fails"));
      EXPECT_THAT(error.trail(), HasSubstr("worker 'w" + std::to_string(where) + "' (rank "));
      // Expect: nobody goes on with the pass, although the context lives.
      EXPECT_TRUE(eventually([&] { return passes() == 0; })) << passes();
      // Expect: what ran before the failure stays; the context still works for something else.
      EXPECT_TRUE(weight_gradient(1, context).defined());
      EXPECT_FALSE(context.gradient(x).defined());
      EXPECT_NO_THROW(context.backward({w0().rpc_sync("w2", plain, x).sum()}));
      EXPECT_TRUE(context.gradient(x).defined());
      watch(context);
    }
  }
}

TEST_P(AutogradSuite, ADeadlineEndsThePassEverywhereAndNamesWhoIsLate) {
  start();
  const Tensor x = variable({2, 4}, 15);
  Context context;
  const Tensor y = w0().rpc_sync("w1", waits_backward, w0().rpc_sync("w2", plain, x));
  const TimePoint begun = now();
  const Error error = error_of(
      [&] { context.backward({y.sum()}, {.mode = {}, .retain_graph = false, .timeout = 300ms}); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_THAT(error.operation(), HasSubstr("backward"));
  EXPECT_THAT(error.what(), HasSubstr("'w1'"));
  EXPECT_GE(now() - begun, 300ms);
  EXPECT_LT(now() - begun, 20s);
  // Expect: also where a node is still running.
  EXPECT_TRUE(eventually([&] { return passes() == 0; })) << passes();
  watch(context);
  w0().rpc_sync("w1", open_gate);
}

TEST_P(AutogradSuite, AGradientThatIsTooLargeForTheWireEndsThePass) {
  if (!GetParam().real) GTEST_SKIP() << "the World carries frames of any size";
  start();
  const int64_t count = wire::FrameLimits().max_segments / 2 + 1;
  const std::vector<Tensor> weights = variable({count, 1, 1}, 18).unbind();
  Context context;
  const Tensor y = w0().rpc_sync("w1", embed, weights);
  const Error error = error_of([&] { context.backward({y}, {.timeout = 20s}); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_EQ(error.worker(), "w1");
  EXPECT_THAT(error.what(), HasSubstr("tensors or parts of them"));
  EXPECT_TRUE(eventually([&] { return passes() == 0; })) << passes();
  watch(context);
}

TEST_P(AutogradSuite, AWorkerThatDiesEndsThePassForTheOthers) {
  if (!GetParam().can_kill) GTEST_SKIP() << "all workers are one process";
  start();
  spoil();
  const Tensor x = variable({2, 4}, 16);
  Context context;
  const Tensor y = w0().rpc_sync("w1", waits_backward, w0().rpc_sync("w2", plain, x));
  const Promise<void> killed;
  w0().messenger().run([&] {  // while this thread waits
    EXPECT_TRUE(eventually([&] { return w0().rpc_sync("w1", waiting_at_gate) == 1; }));
    cluster().kill(1);
    killed.set_value();
  });
  const Error error = error_of([&] { context.backward({y.sum()}); });
  killed.future().wait();
  EXPECT_EQ(error.code(), Code::kDisconnected);
  EXPECT_EQ(error.worker(), "w1");
  EXPECT_TRUE(eventually([&] { return passes() == 0; })) << passes();
  // Expect: without it, the context goes on.
  EXPECT_NO_THROW(context.backward({w0().rpc_sync("w2", plain, x).sum()}));
  EXPECT_TRUE(context.gradient(x).defined());
  watch(context);
}

TEST_P(AutogradSuite, AWorkerThatStandsStillEndsThePassForTheOthers) {
  if (!GetParam().can_freeze) GTEST_SKIP() << "all workers are one process";
  start({.silence_timeout = 1'200ms});
  spoil();
  const Tensor x = variable({2, 4}, 20);
  Context context;
  const Tensor y = w0().rpc_sync("w1", plain_by, x, "w2");
  cluster().freeze(2);
  const TimePoint begun = now();
  const Error error = error_of([&] { context.backward({y.sum()}, {.timeout = kNoTimeout}); });
  EXPECT_EQ(error.code(), Code::kDisconnected);
  EXPECT_EQ(error.worker(), "w2");
  EXPECT_THAT(error.what(), HasSubstr("does not answer pings"));
  EXPECT_LT(now() - begun, 20s);
  cluster().thaw(2);
  cluster().kill(2);
  EXPECT_TRUE(eventually([&] { return passes() == 0; })) << passes();
  // Expect: without it, the context goes on.
  EXPECT_NO_THROW(context.backward({w0().rpc_sync("w1", plain, x).sum()}));
  EXPECT_TRUE(context.gradient(x).defined());
  watch(context);
}

TEST_P(AutogradSuite, ATrainerThatDiesLeavesNoContextBehind) {
  if (!GetParam().can_kill) GTEST_SKIP() << "all workers are one process";
  start();
  spoil();
  const auto training = w0().rpc_async("w1", hold_context_at_gate);
  ASSERT_TRUE(eventually([&] { return w0().rpc_sync("w1", waiting_at_gate) == 1; }));
  EXPECT_EQ(w0().rpc_sync("w2", contexts_here), 1);
  cluster().kill(1);
  EXPECT_EQ(error_in(training).code(), Code::kDisconnected);
  EXPECT_TRUE(eventually([&] { return w0().rpc_sync("w2", contexts_here) == 0; }));
}

// Past the limit of threads it runs on a thread of its chain, which waits in a context.
TEST_P(AutogradSuite, ACallThatIsNotRecordedRunsInNoContext) {
  if (!GetParam().real) GTEST_SKIP() << "the World has no limit of threads";
  start({.threads = 1, .max_threads = 2});
  Context context;
  EXPECT_TRUE(w0().rpc_sync("w1", in_context));
  EXPECT_FALSE(w0().rpc_sync("w1", ask_outside, 0));
  std::vector<Future<void>> busy;
  {
    const dist_autograd::OutsideContext outside;
    for (int i = 0; i < 2; ++i) busy.push_back(w0().rpc_async("w0", doze, 1'000));
  }
  try {
    EXPECT_FALSE(w0().rpc_sync("w1", ask_outside, 0));
  } catch (const Error& e) {  // it came back before this thread had begun to wait
    EXPECT_EQ(e.code(), Code::kOverloaded) << e.what();
  }
  for (const auto& call : busy) call.wait();
  watch(context);
}

// By a thread of the user's, which nobody waits for: what it needs must not go.
TEST(AutogradShutdown, APassEndsThatItsWaitingThreadRunsWhenTheWorkerIsShutDown) {
  bool waiter_ran = false;
  for (int round = 0; round < 1000 && !waiter_ran; ++round) {
    std::optional<Workers> workers(std::in_place);
    for (int rank = 0; rank < 2; ++rank) furnish((*workers)[rank]);
    const Promise<std::thread::id> entered;
    const Promise<void> gate;
    bool shut_down = false;
    std::thread trainer([&, worker = workers->share(0)]() mutable {
      const CurrentWorker current(*worker);
      const Tensor x = variable({2, 4}, 21);
      const Tensor y = x * 2;
      y.register_hook([=](const Tensor& gradient) -> Tensor {
        entered.set_value(std::this_thread::get_id());
        gate.future().wait();
        return gradient;
      });
      Context context(*worker);
      const Tensor z = worker->rpc_sync(1, plain, y).sum();
      worker = nullptr;
      std::this_thread::sleep_for(1ms);  // who has read the answer sleeps by then
      try {
        context.backward({z});
      } catch (const Error& e) {
        shut_down = e.code() == Code::kShutdown;
      }
    });
    ASSERT_TRUE(entered.future().wait_for(20s));
    waiter_ran = entered.future().wait() == trainer.get_id();
    if (!waiter_ran) gate.set_value();  // the worker's own thread is waited for
    (*workers)[0].shutdown(/*graceful=*/false);
    workers.reset();
    if (waiter_ran) gate.set_value();
    trainer.join();
    EXPECT_TRUE(shut_down || !waiter_ran);
  }
  EXPECT_TRUE(waiter_ran);
}

}  // namespace farspan::testing
