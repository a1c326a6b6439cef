// The rules under test: rpc/rpc.h, over every transport.
#include <farspan/rpc/rpc.h>

#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <thread>

#include "support/workers.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using std::chrono::milliseconds;
using std::chrono::seconds;

Tensor twice(const Tensor& x) { return x + x; }
int64_t add(int64_t a, int64_t b) { return a + b; }
std::string greet(const std::string& name, bool loud) {
  return (loud ? "HELLO " : "hello ") + name;
}
std::vector<Tensor> split(const Tensor& x, int64_t parts) { return x.chunk(parts); }
void fail_with(const std::string& what) { throw std::out_of_range(what); }
std::string whoami() { return current_worker().name(); }
bool grad_mode() { return c10::GradMode::is_enabled(); }
std::atomic<int> touched{0};
void touch() { ++touched; }
int64_t nest(int64_t depth) {
  Worker& here = current_worker();
  if (depth == 0) return 0;
  return 1 + here.rpc_sync((here.rank() + 1) % here.world_size(), nest, depth - 1);
}
std::atomic<bool> gate{false};
void wait_at_gate() {
  while (!gate) std::this_thread::sleep_for(milliseconds(1));  // a function that takes long
}
Future<int64_t> later(int64_t value) {
  Promise<int64_t> promise;
  std::thread([promise, value] { promise.set_value(value); }).detach();
  return promise.future();
}
Future<int64_t> forward_to(int64_t rank, int64_t value) {
  return current_worker().rpc_async(static_cast<int>(rank), add, value, int64_t{1});
}
int64_t remaining_ms() {
  return std::chrono::duration_cast<Millis>(agent::current_call().deadline.remaining()).count();
}
int64_t nested_remaining_ms() {
  return current_worker().rpc_sync(0, CallOptions{.timeout = seconds(50)}, remaining_ms);
}
FARSPAN_REGISTER(twice, add, greet, split, fail_with, whoami, grad_mode, touch, nest, wait_at_gate,
                 later, forward_to, remaining_ms, nested_remaining_ms);
int64_t unregistered(int64_t x) { return x; }

class RpcTest : public ::testing::TestWithParam<const char*> {
 protected:
  Workers workers{{.count = 2, .transport = GetParam(), .settings = {}, .reactor = {}}};
};

TEST_P(RpcTest, PassesValuesBothWays) {
  Worker& here = workers[0];
  EXPECT_EQ(here.rpc_sync("w1", add, 2, 3), 5);
  EXPECT_EQ(here.rpc_sync(1, greet, "you", true), "HELLO you");
  EXPECT_EQ(here.rpc_sync(here.workers()[1], whoami), "w1");
  EXPECT_EQ(here.rpc_sync("w0", whoami), "w0");
  const Tensor x = at::arange(6).reshape({2, 3});
  EXPECT_TRUE(at::equal(here.rpc_sync("w1", twice, x), x * 2));
  EXPECT_TRUE(at::equal(here.rpc_sync("w1", twice, x.t()), x.t() * 2));
  EXPECT_EQ(here.rpc_sync("w1", split, x, 2).size(), 2u);
  const int before = touched;
  here.rpc_sync("w1", touch);
  EXPECT_EQ(touched, before + 1);
}

TEST_P(RpcTest, LargeTensorsArriveWhole) {
  for (const int64_t n : {1000, 20'000, 3'000'000}) {
    const Tensor x = at::rand({n});
    EXPECT_TRUE(at::equal(workers[0].rpc_sync("w1", twice, x), x + x)) << n;
  }
}

TEST_P(RpcTest, CallsBuiltinOperators) {
  CurrentWorker current(workers[0]);
  const Tensor x = at::ones({2});
  EXPECT_TRUE(at::equal(rpc_sync<Tensor>("w1", builtin("aten::add.Tensor"), x, x), x * 2));
}

TEST_P(RpcTest, AsynchronousCallsAndFunctions) {
  Worker& here = workers[0];
  std::vector<Future<int64_t>> sums;
  for (int i = 0; i < 100; ++i) sums.push_back(here.rpc_async("w1", add, i, 1));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(sums[static_cast<size_t>(i)].wait(), i + 1);
  EXPECT_EQ(here.rpc_sync("w1", later, 7), 7);
  EXPECT_EQ(here.rpc_sync("w1", forward_to, 0, 4), 5);
  EXPECT_EQ(here.rpc_async("w1", add, 1, 1).then([](int64_t x) { return x * 10; }).wait(), 20);
}

TEST_P(RpcTest, ExceptionsArriveWithTypeMessageWorkerAndFunction) {
  try {
    workers[0].rpc_sync("w1", fail_with, "no such row");
    FAIL() << "it must throw";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kRemote);
    EXPECT_EQ(e.message(), "no such row");
    EXPECT_EQ(e.remote_type(), "std::out_of_range");
    EXPECT_NE(e.trail().find("'fail_with' on worker 'w1' (rank 1)"), std::string::npos) << e.what();
  }
}

TEST_P(RpcTest, WhatIsNotThereIsNamed) {
  const auto code_of = [](auto&& fn) {
    try {
      fn();
    } catch (const Error& e) {
      return e.code();
    }
    return Code::kOk;
  };
  EXPECT_EQ(code_of([&] { workers[0].rpc_sync("w1", unregistered, 1); }), Code::kNotRegistered);
  EXPECT_EQ(code_of([&] { workers[0].rpc_sync("nobody", add, 1, 1); }), Code::kInvalidArgument);
  EXPECT_EQ(code_of([&] { workers[0].rpc_sync(7, add, 1, 1); }), Code::kInvalidArgument);
}

TEST_P(RpcTest, NestsDeeply) { EXPECT_EQ(workers[0].rpc_sync("w1", nest, 200), 200); }

TEST_P(RpcTest, ManyNestedCallsAtOnceEnd) {
  std::vector<Future<int64_t>> futures;
  for (int i = 0; i < 64; ++i) futures.push_back(workers[0].rpc_async("w1", nest, 20));
  for (auto& future : futures) EXPECT_EQ(future.wait(), 20);
}

TEST_P(RpcTest, NothingOfTheCallersThreadShows) {
  c10::AutoGradMode no_grad(false);
  EXPECT_TRUE(workers[0].rpc_sync("w1", grad_mode));
  EXPECT_TRUE(workers[0].rpc_sync("w0", grad_mode));
}

TEST_P(RpcTest, TimeoutsNameCallWorkerAndTime) {
  gate = false;
  try {
    workers[0].rpc_sync("w1", CallOptions{.timeout = milliseconds(30)}, wait_at_gate);
    FAIL() << "it must throw";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kTimeout);
    EXPECT_EQ(e.operation(), "rpc_sync wait_at_gate");
    EXPECT_EQ(e.worker(), "w1");
    EXPECT_GE(e.elapsed(), milliseconds(30));
  }
  gate = true;
}

TEST_P(RpcTest, NestedCallsInheritTheSmallerDeadline) {
  const auto left =
      workers[0].rpc_sync("w1", CallOptions{.timeout = seconds(10)}, nested_remaining_ms);
  EXPECT_LE(left, 10'000);
  EXPECT_GT(left, 5'000);
}

TEST_P(RpcTest, GracefulShutdownWaitsForAll) {
  gate = false;
  auto slow = workers[0].rpc_async("w1", wait_at_gate);
  std::thread other([&] { workers[1].shutdown(); });
  std::thread opener([&] { gate = true; });
  workers[0].shutdown();
  // Expect: the call that was under way has been answered.
  EXPECT_NO_THROW(slow.wait(seconds(5)));
  other.join();
  opener.join();
}

INSTANTIATE_TEST_SUITE_P(Transports, RpcTest, ::testing::Values("unix", "tcp", "loopback"),
                         [](const auto& transport) { return std::string(transport.param); });

}  // namespace
}  // namespace farspan::testing
