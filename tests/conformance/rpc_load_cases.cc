// Many calls at once, deep ones, large ones: threads, limits, backpressure.
#include "conformance/rpc_suite.h"

#include <ATen/ATen.h>

#include <thread>

namespace farspan::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

// A -> B -> A -> B ...
int64_t nest(int64_t depth) {
  Worker& here = current_worker();
  if (depth == 0) return 0;
  return 1 + here.rpc_sync(here.rank() == 1 ? 0 : 1, nest, depth - 1);
}
// The same, through all workers in turn.
int64_t go_round(int64_t depth) {
  Worker& here = current_worker();
  if (depth == 0) return 0;
  return 1 + here.rpc_sync((here.rank() + 1) % here.world_size(), go_round, depth - 1);
}
// Nests in the own worker.
int64_t descend(int64_t depth) {
  Worker& here = current_worker();
  return depth == 0 ? 0 : 1 + here.rpc_sync(here.rank(), descend, depth - 1);
}
Future<double> sum_later(const Tensor& x) {
  const double sum = x.sum().item<double>();
  return pass_gate_later(0).then([sum](int64_t) { return sum; });
}
// Calls the other way while the other way is full.
double sum_there(const Tensor& x) { return current_worker().rpc_sync(0, sum_of, x); }
FARSPAN_REGISTER(nest, go_round, descend, sum_later, sum_there);

}  // namespace

TEST_P(RpcSuite, CallsNestToDepthTwoHundred) {
  start();
  EXPECT_EQ(w0().rpc_sync("w1", nest, 200), 200);
  EXPECT_EQ(w0().rpc_sync("w1", go_round, 200), 200);
  EXPECT_EQ(w0().rpc_sync("w1", descend, 100), 100);
}

TEST_P(RpcSuite, CallsNestToDepthTwentyFromSixtyFourAtOnce) {
  start();
  std::vector<Future<int64_t>> nests;
  for (int i = 0; i < 64; ++i) nests.push_back(w0().rpc_async("w1", nest, 20));
  for (const auto& future : nests) {
    ASSERT_TRUE(future.wait_for(60s)) << "deadlock";
    EXPECT_EQ(future.value(), 20);
  }
}

TEST_P(RpcSuite, AfterAllThatFewThreadsAreLeft) {
  if (!GetParam().real) GTEST_SKIP() << "the World has no threads to spare";
  start();
  std::vector<Future<int64_t>> nests;
  for (int i = 0; i < 64; ++i) nests.push_back(w0().rpc_async("w1", nest, 20));
  wait_all(nests);
  EXPECT_TRUE(eventually([&] { return w0().rpc_sync("w1", thread_count) <= 6; }, 30s))
      << w0().rpc_sync("w1", thread_count);
  EXPECT_TRUE(eventually([&] { return w0().counters().threads <= 6; }, 30s));
}

TEST_P(RpcSuite, PastTheLimitOfThreadsACallRunsOnItsOwnChain) {
  if (!GetParam().real) GTEST_SKIP() << "the World has no limit of threads";
  start({.threads = 2, .max_threads = 4});
  EXPECT_EQ(w0().rpc_sync("w1", nest, 60), 60);
  EXPECT_EQ(w0().rpc_sync("w1", nest, 60), 60);
}

TEST_P(RpcSuite, ABurstThatTheLimitOfThreadsOnlySlowsDownLosesNothing) {
  if (!GetParam().real) GTEST_SKIP() << "the World has no limit of threads";
  start({.threads = 2, .max_threads = 8});
  std::vector<Future<int64_t>> nests;
  for (int i = 0; i < 64; ++i) nests.push_back(w0().rpc_async("w1", nest, 20));
  for (const auto& future : nests) EXPECT_EQ(future.wait(60s), 20);
}

TEST_P(RpcSuite, PastTheLimitOfThreadsOtherCallsGetOverloaded) {
  if (!GetParam().real) GTEST_SKIP() << "the World has no limit of threads";
  start({.threads = 2, .max_threads = 4});
  std::vector<Future<void>> calls;
  for (int i = 0; i < 16; ++i) calls.push_back(w0().rpc_async("w1", doze, 3'000));
  int answered = 0;
  for (const auto& call : calls) {
    ASSERT_TRUE(call.wait_for(60s));
    answered += !call.has_error();
    if (!call.has_error()) continue;
    EXPECT_EQ(call.error().code(), Code::kOverloaded) << call.error().what();
    EXPECT_EQ(call.error().worker(), "w1");
    EXPECT_THAT(call.error().what(), HasSubstr("WorkerOptions::max_threads"));
  }
  EXPECT_GE(answered, 1);
  EXPECT_LE(answered, 5);
  // Expect: those that were turned away may be tried again.
  EXPECT_NO_THROW(w0().rpc_sync("w1", doze, 1));
}

TEST_P(RpcSuite, TenThousandCallsMayBeInFlight) {
  start();
  constexpr int64_t kCalls = 10'000;
  std::vector<Future<int64_t>> calls;
  for (int64_t i = 0; i < kCalls; ++i) calls.push_back(w0().rpc_async("w1", pass_gate_later, i));
  EXPECT_EQ(w0().counters().in_flight, kCalls);
  w0().rpc_sync("w1", open_gate);
  for (int64_t i = 0; i < kCalls; ++i) {
    ASSERT_TRUE(calls[static_cast<size_t>(i)].wait_for(60s));
    EXPECT_EQ(calls[static_cast<size_t>(i)].value(), i);
  }
  EXPECT_EQ(w0().counters().in_flight, 0);
}

TEST_P(RpcSuite, ACallBeyondTheBytesInFlightWaitsForRoom) {
  if (!GetParam().real) GTEST_SKIP() << "the World has no limit of bytes";
  start({.max_in_flight_bytes = 1 << 20});
  const Tensor x = at::ones({64 << 10});  // 256 KiB
  std::vector<Future<double>> calls;
  for (int i = 0; i < 3; ++i) calls.push_back(w0().rpc_async("w1", sum_later, x));
  EXPECT_EQ(w0().counters().in_flight, 3);
  // Expect: no room for one more before its deadline; what has room already goes on.
  const auto refused = w0().rpc_async("w1", CallOptions{.timeout = 100ms}, sum_later, x);
  EXPECT_EQ(error_in(refused).code(), Code::kTimeout);
  EXPECT_EQ(w0().counters().in_flight, 3);
  w0().rpc_sync("w1", CallOptions{.timeout = 10s}, open_gate);
  // Expect: many more than have room, since each waits until it has.
  for (int i = 0; i < 60; ++i) {
    calls.push_back(w0().rpc_async("w1", sum_later, x));
    EXPECT_LE(w0().counters().in_flight, 3);
  }
  for (const auto& call : calls) EXPECT_EQ(call.wait(), 65536.0);
}

TEST_P(RpcSuite, ACallLargerThanTheLimitGoesAlone) {
  if (!GetParam().real) GTEST_SKIP() << "the World has no limit of bytes";
  start({.max_in_flight_bytes = 1 << 20});
  const Tensor x = at::ones({1 << 20});  // 4 MiB
  std::vector<Future<double>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(w0().rpc_async("w1", sum_of, x));
    EXPECT_LE(w0().counters().in_flight, 1);
  }
  for (const auto& call : calls) EXPECT_EQ(call.wait(), 1048576.0);
}

TEST_P(RpcSuite, LargeTensorsPassEachOther) {
  start();
  const Tensor x = at::ones({4 << 20});  // 16 MiB, and the same back, four at once
  std::vector<Future<double>> calls;
  for (int i = 0; i < 4; ++i) calls.push_back(w0().rpc_async("w1", sum_there, x));
  for (const auto& call : calls) EXPECT_EQ(call.wait(), 4194304.0);
}

TEST_P(RpcSuite, SmallCallsAreNotHeldUpByFunctionsThatToil) {
  if (!GetParam().real) GTEST_SKIP() << "toil takes no time in the World";
  start({.threads = 4});
  const auto toiling = w0().rpc_async("w1", toil_at_gate);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(w0().rpc_sync("w1", add, i, 1), i + 1);
  EXPECT_FALSE(toiling.ready());
  w0().rpc_sync("w1", open_gate);
  toiling.wait();
}

TEST_P(RpcSuite, AnythingMayCallAnythingAtOnce) {
  start();
  if (!GetParam().real) {
    std::vector<Future<int64_t>> calls;
    for (int i = 0; i < 60; ++i) calls.push_back(w0().rpc_async(i % 3, go_round, i % 7));
    for (int i = 0; i < 60; ++i) EXPECT_EQ(calls[static_cast<size_t>(i)].wait(), i % 7);
    return;
  }
  Worker& here = w0();
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 100; ++i) {
        const int64_t depth = (thread + i) % 7;
        wrong += here.rpc_sync((thread + i) % 3, go_round, depth) != depth;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace farspan::testing
