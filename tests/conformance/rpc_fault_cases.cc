// What goes wrong at the other end, or at this one: deaths, processes that stand still, tensors
// that change under a call.
#include "conformance/rpc_suite.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <csignal>

namespace farspan::testing {
namespace {

using at::Tensor;

// A tensor that tells its thread when an answer is made of it.
struct Snapshot {
  Tensor tensor;
};
thread_local bool has_answered = false;

}  // namespace
}  // namespace farspan::testing

template <>
struct farspan::Codec<farspan::testing::Snapshot> {
  static std::string type_name() { return "snapshot"; }
  static void write(schema::Value::Builder out, const testing::Snapshot& value, Writer& writer) {
    testing::has_answered = true;
    Codec<at::Tensor>::write(out, value.tensor, writer);
  }
  static testing::Snapshot read(schema::Value::Reader in, Reader& reader) {
    return {Codec<at::Tensor>::read(in, reader)};
  }
};

namespace farspan::testing {
namespace {

using ::testing::HasSubstr;

double sum_at_gate(const Tensor& x) {
  pass_gate();
  return x.to_dense().sum().item<double>();
}
int64_t ask_through(int64_t rank, const std::string& what) {
  Worker& here = current_worker();
  if (what == "gate") return here.rpc_sync(static_cast<int>(rank), pass_gate_later, 1);
  return here.rpc_sync(static_cast<int>(rank), add, 1, 1);
}

// A parameter of the worker's, too large for any socket's buffer.
Tensor& parameter() {
  static Tensor* parameter = new Tensor(at::zeros({8 << 20}));
  return *parameter;
}
Tensor get_parameter() { return parameter(); }
std::atomic<int64_t> answers{0};
// The answer leaves when the promise is kept; the step comes right behind it. None comes where the
// promise was kept before anybody waited for it: another thread makes the answer then.
Future<Snapshot> get_parameter_and_step(int64_t part) {
  const Promise<Snapshot> promise;
  auto& messenger = current_worker().messenger();
  messenger.call_at(messenger.now() + 5ms, [promise, part] {
    has_answered = false;
    promise.set_value(
        Snapshot{part == 1 ? parameter() : parameter().slice(0, 0, (8 << 20) / part)});
    if (has_answered) parameter().add_(1);
    ++answers;
  });
  return promise.future();
}
int64_t count_answers() { return answers; }
FARSPAN_REGISTER(sum_at_gate, ask_through, get_parameter, get_parameter_and_step, count_answers);

bool is_uniform(const Tensor& x) { return x.min().item<float>() == x.max().item<float>(); }

}  // namespace

TEST_P(RpcSuite, AWorkerThatDiesFailsItsCallersAtOnceAndByName) {
  if (!GetParam().can_kill) GTEST_SKIP() << "all workers are one process";
  start();
  spoil();
  std::vector<Future<int64_t>> calls;
  for (int64_t i = 0; i < 10; ++i) {
    calls.push_back(w0().rpc_async("w1", CallOptions{.timeout = kNoTimeout}, pass_gate_later, i));
  }
  const auto through = w0().rpc_async("w2", ask_through, 1, "gate");
  ASSERT_TRUE(eventually([&] { return w0().rpc_sync("w1", waiting_at_gate) == 11; }));
  const TimePoint begun = now();
  cluster().kill(1);
  for (const auto& call : calls) {
    const Error error = error_in(call);
    EXPECT_EQ(error.code(), Code::kDisconnected);
    EXPECT_EQ(error.worker(), "w1");
    EXPECT_EQ(error.operation(), "rpc_async pass_gate_later");
  }
  // Expect: so does a call through another worker, whose error says who died.
  const Error error = error_in(through);
  EXPECT_EQ(error.code(), Code::kDisconnected);
  EXPECT_THAT(error.what(), HasSubstr("w1"));
  EXPECT_THAT(error.trail(), HasSubstr("'ask_through' on worker 'w2' (rank 2)"));
  EXPECT_LT(now() - begun, 10s);
  // Expect: a later call fails within the time for connecting; the others serve.
  const Error later = error_of([&] { w0().rpc_sync("w1", CallOptions{.timeout = 15s}, whoami); });
  EXPECT_THAT((std::vector<Code>{Code::kDisconnected, Code::kUnavailable, Code::kTimeout}),
              ::testing::Contains(later.code()));
  EXPECT_EQ(w0().rpc_sync("w2", whoami), "w2");
}

TEST_P(RpcSuite, AWorkerThatStandsStillIsWaitedForUntilTheDeadline) {
  if (!GetParam().can_freeze) GTEST_SKIP() << "all workers are one process";
  start();
  EXPECT_EQ(w0().rpc_sync("w1", add, 1, 1), 2);
  cluster().freeze(1);
  const TimePoint begun = now();
  const Error error =
      error_of([&] { w0().rpc_sync("w1", CallOptions{.timeout = 100ms}, add, 1, 1); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_LT(now() - begun, 10s);
  const auto patient = w0().rpc_async("w1", CallOptions{.timeout = 60s}, add, 2, 2);
  doze(100);
  EXPECT_FALSE(patient.ready());
  cluster().thaw(1);
  EXPECT_EQ(patient.wait(), 4);
}

TEST_P(RpcSuite, AWorkerThatStandsStillIsGivenUpByCallsWithoutADeadline) {
  if (!GetParam().can_freeze) GTEST_SKIP() << "all workers are one process";
  start({.silence_timeout = 1'200ms});
  spoil();
  EXPECT_EQ(w0().rpc_sync("w1", add, 1, 1), 2);
  // Expect: one that is slow, or whose threads are all busy, is waited for as long as it takes.
  w0().rpc_sync("w1", CallOptions{.timeout = kNoTimeout}, doze, 2'000);
  std::vector<Future<void>> busy;
  for (int i = 0; i < (GetParam().real ? 3 : 0); ++i) {  // the World's clock stands meanwhile
    busy.push_back(w0().rpc_async("w1", CallOptions{.timeout = kNoTimeout}, toil, 1'500));
  }
  for (const auto& call : busy) EXPECT_NO_THROW(call.wait());

  const auto endless = w0().rpc_async("w1", CallOptions{.timeout = kNoTimeout}, pass_gate_later, 1);
  ASSERT_TRUE(eventually([&] { return w0().rpc_sync("w1", waiting_at_gate) == 1; }));
  cluster().freeze(1);
  const TimePoint begun = now();
  const Error error = error_in(endless);
  EXPECT_EQ(error.code(), Code::kDisconnected);
  EXPECT_EQ(error.worker(), "w1");
  EXPECT_THAT(error.what(), HasSubstr("does not answer pings"));
  EXPECT_GE(now() - begun, 900ms);
  EXPECT_LT(now() - begun, 20s);
  cluster().thaw(1);
  cluster().kill(1);
}

TEST_P(RpcSuite, AWorkerThatStandsStillIsGivenUpByCallsThatWaitForRoom) {
  if (!GetParam().can_freeze || !GetParam().real) GTEST_SKIP() << "there is room in the World";
  start({.max_in_flight_bytes = 1 << 20, .silence_timeout = 1'200ms});
  spoil();
  const Tensor large = at::ones({4 << 20});
  EXPECT_EQ(w0().rpc_sync("w1", sum_of, large), 4 << 20);
  cluster().freeze(1);
  const Error first =
      error_of([&] { w0().rpc_sync("w1", CallOptions{.timeout = 100ms}, sum_of, large); });
  EXPECT_EQ(first.code(), Code::kTimeout);
  // Expect: its bytes are still there, and the next one waits for room, but not for ever.
  const Error second =
      error_of([&] { w0().rpc_sync("w1", CallOptions{.timeout = kNoTimeout}, sum_of, large); });
  EXPECT_EQ(second.code(), Code::kDisconnected) << second.what();
  cluster().thaw(1);
  cluster().kill(1);
}

// A continuation of a failed call waits for others that have failed with it.
TEST_P(RpcSuite, WhatRunsForAFailedCallMayWaitForOthersThatFail) {
  if (!GetParam().real) GTEST_SKIP() << "the World delivers one after the other";
  start();
  std::vector<Future<int64_t>> calls;
  for (int i = 0; i < 4; ++i) {
    calls.push_back(w0().rpc_async("w1", CallOptions{.timeout = 200ms}, pass_gate_later, i));
  }
  std::vector<Future<bool>> in_time;
  for (const auto& call : calls) {
    in_time.push_back(call.then([calls](const Future<int64_t>&) {
      return std::all_of(calls.begin(), calls.end(),
                         [](const Future<int64_t>& other) { return other.wait_for(20s); });
    }));
  }
  for (const auto& all : in_time) EXPECT_TRUE(all.wait());
}

TEST_P(RpcSuite, AnArgumentThatChangesUnderACallFailsIt) {
  start();
  for (const int64_t size : {100, 100'000, 4'000'000}) {
    SCOPED_TRACE(size);
    w0().rpc_sync("w1", close_gate);
    Tensor x = at::ones({size});
    const auto call = w0().rpc_async("w1", sum_at_gate, x);
    ASSERT_TRUE(eventually([&] { return w0().rpc_sync("w1", waiting_at_gate) == 1; }));
    x.add_(1);
    w0().rpc_sync("w1", open_gate);
    if (size == 100) {
      EXPECT_EQ(call.wait(), 100.0);  // small ones are copied when the call is made
      continue;
    }
    const Error error = error_in(call);
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_EQ(error.operation(), "rpc_async sum_at_gate");
    EXPECT_THAT(error.what(), HasSubstr("changed in place"));
    EXPECT_THAT(error.advice(), HasSubstr("clone()"));
  }
}

TEST_P(RpcSuite, AnArgumentMayChangeWhenTheCallHasEnded) {
  start();
  Tensor x = at::ones({1'000'000});
  for (int i = 1; i <= 10; ++i) {
    EXPECT_EQ(w0().rpc_sync("w1", sum_of, x), 1e6 * i);
    x.add_(1);
  }
  // Expect: what changed before the call does not matter, nor does a view's own history.
  const auto rows = x.reshape({1000, 1000});
  EXPECT_EQ(w0().rpc_async("w1", sum_of, rows.slice(0, 0, 500)).wait(), 11 * 5e5);
}

TEST_P(RpcSuite, AChangeSeenThroughAViewCountsAsWell) {
  start();
  Tensor base = at::ones({1000, 100});
  const auto dense = w0().rpc_async("w1", sum_at_gate, base.slice(0, 500));
  Tensor sparse = at::ones({300, 300}).to_sparse();
  const auto thin = w0().rpc_async("w1", sum_at_gate, sparse);
  ASSERT_TRUE(eventually([&] { return w0().rpc_sync("w1", waiting_at_gate) == 2; }));
  base.zero_();
  sparse.mul_(2);
  w0().rpc_sync("w1", open_gate);
  EXPECT_EQ(error_in(dense).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_in(thin).code(), Code::kInvalidArgument);
}

TEST_P(RpcSuite, AResultThatOthersHoldIsASnapshot) {
  start();
  const Tensor before = w0().rpc_sync("w1", get_parameter);
  EXPECT_TRUE(is_uniform(before));
  float value = before[0].item<float>();
  // Expect: the step that follows the answer, while most of it has not left yet, does not show; nor
  // in a part of the parameter.
  for (const int64_t part : {1, 2}) {
    const auto steps = [&] {
      const int64_t before_it = w0().rpc_sync("w1", count_answers);
      const Tensor snapshot = w0().rpc_sync("w1", get_parameter_and_step, part).tensor;
      EXPECT_TRUE(is_uniform(snapshot));
      EXPECT_EQ(snapshot[0].item<float>(), value);
      EXPECT_TRUE(eventually([&] { return w0().rpc_sync("w1", count_answers) > before_it; }));
      return w0().rpc_sync("w1", get_parameter)[0].item<float>() == value + 1;
    };
    EXPECT_TRUE(eventually(steps));
    value += 1;
  }
  // Expect: what arrived is the caller's own, to change as he likes.
  Tensor mine = w0().rpc_sync("w0", get_parameter);
  mine.fill_(-1);
  EXPECT_NE(w0().rpc_sync("w0", get_parameter)[0].item<float>(), -1.0F);
}

}  // namespace farspan::testing
