// What is called and how: targets, functions, futures, deadlines, errors, the end.
#include "conformance/rpc_suite.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <thread>

namespace farspan::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

std::atomic<int64_t> touched{0};
void touch() { ++touched; }
int64_t touches() { return touched; }
bool grad_mode() { return c10::GradMode::is_enabled(); }
// As it was, and has been left before in this thread.
std::pair<bool, bool> grad_mode_which_is_left_off() {
  thread_local bool is_left_off = false;
  const bool was_enabled = grad_mode();
  c10::GradMode::set_enabled(false);
  return {was_enabled, std::exchange(is_left_off, true)};
}
int64_t overloaded(int64_t x) { return x + 1; }
std::string overloaded(const std::string& x) { return x + "1"; }
template <class T>
T negated(T x) {
  return -x;
}
int64_t not_registered(int64_t x) { return x; }

// An asynchronous function that itself asks another worker.
Future<int64_t> ask(int64_t rank, int64_t value) {
  return current_worker().rpc_async(static_cast<int>(rank), add, value, int64_t{1});
}
Future<int64_t> ask_to_fail(int64_t rank);
int64_t fail_with(const std::string& what) { throw std::out_of_range(what); }
int64_t fail_oddly() { throw 42; }
int64_t fail_in_torch() { return at::zeros({2}).add(at::zeros({3})).numel(); }
int64_t fail_with_code() { throw Error(Code::kNotFound, "no such row").advice("add it first"); }
int64_t pass_on_failure(int64_t rank) {
  return current_worker().rpc_sync(static_cast<int>(rank), fail_with, "deep down");
}
Future<int64_t> ask_to_fail(int64_t rank) {
  return current_worker().rpc_async(static_cast<int>(rank), fail_with, "later");
}
Future<int64_t> never_delivered() { return Promise<int64_t>().future(); }

// Milliseconds; -1: no deadline.
int64_t remaining() {
  const Deadline deadline = agent::current_call().deadline;
  if (deadline.is_never()) return -1;
  const auto left = deadline.remaining(current_worker().messenger().now());
  return std::chrono::duration_cast<Millis>(left).count();
}
// What a call with this timeout, made after a while, has left where it arrives.
int64_t remaining_beyond(int64_t doze_ms, int64_t timeout_ms) {
  if (doze_ms > 0) doze(doze_ms);
  return current_worker().rpc_sync(0, CallOptions{.timeout = Millis(timeout_ms)}, remaining);
}

int64_t ask_gate(int64_t rank) {
  return current_worker().rpc_sync(static_cast<int>(rank), CallOptions{.timeout = kNoTimeout},
                                   pass_gate_later, 1);
}
int64_t in_flight() { return current_worker().counters().in_flight; }

struct Base {
  virtual ~Base() = default;
  int64_t inherited(int64_t x) { return x + offset; }
  virtual std::string describe() const { return "base"; }
  int64_t offset = 100;
};
struct Derived : Base {
  explicit Derived(int64_t start) : value(start) {}
  int64_t own() const { return value; }
  void set(int64_t x) { value = x; }
  std::string describe() const override { return "derived"; }
  int64_t value;
};
std::shared_ptr<Derived> make_derived(int64_t start) { return std::make_shared<Derived>(start); }

FARSPAN_REGISTER(touch, touches, grad_mode, grad_mode_which_is_left_off, ask, ask_to_fail,
                 fail_with, fail_oddly, fail_in_torch, fail_with_code, pass_on_failure,
                 never_delivered, remaining, remaining_beyond, make_derived, ask_gate, in_flight);
FARSPAN_REGISTER_AS("overloaded.int", static_cast<int64_t (*)(int64_t)>(overloaded));
FARSPAN_REGISTER_AS("overloaded.text",
                    static_cast<std::string (*)(const std::string&)>(overloaded));
FARSPAN_REGISTER_AS("negated.double", negated<double>);
FARSPAN_REGISTER_METHODS(Derived, inherited, own, set, describe);

}  // namespace

TEST_P(RpcSuite, ATargetIsANameARankOrAnInfoTheOwnWorkerToo) {
  start();
  EXPECT_EQ(w0().rpc_sync("w1", whoami), "w1");
  EXPECT_EQ(w0().rpc_sync(std::string("w2"), whoami), "w2");
  EXPECT_EQ(w0().rpc_sync(2, whoami), "w2");
  EXPECT_EQ(w0().rpc_sync(w0().workers()[1], whoami), "w1");
  EXPECT_EQ(w0().rpc_sync("w0", whoami), "w0");
  EXPECT_EQ(w0().rpc_async(0, whoami).wait(), "w0");
  EXPECT_EQ(w0().remote("w0", whoami).to_here(), "w0");
  EXPECT_EQ(w0().remote(2, whoami).to_here(), "w2");
  EXPECT_EQ(w0().remote(w0().info(), whoami).to_here(), "w0");
}

TEST_P(RpcSuite, TheFreeFunctionsAreTheCurrentWorkersOwn) {
  start();
  EXPECT_EQ(current_worker().name(), "w0");
  EXPECT_EQ(rpc_sync("w1", add, 2, 3), 5);
  EXPECT_EQ(rpc_async("w1", CallOptions{.timeout = 5s}, add, 2, 3).wait(), 5);
  EXPECT_EQ(remote("w1", add, 2, 3).to_here(), 5);
}

TEST_P(RpcSuite, AFunctionMayReturnNothing) {
  start();
  const int64_t before = w0().rpc_sync("w1", touches);
  w0().rpc_sync("w1", touch);
  w0().rpc_async("w1", touch).wait();
  EXPECT_EQ(w0().rpc_sync("w1", touches), before + 2);
}

TEST_P(RpcSuite, OverloadsAndTemplatesAreCalledByTheNamesTheyWereGiven) {
  start();
  EXPECT_EQ(w0().rpc_sync("w1", static_cast<int64_t (*)(int64_t)>(overloaded), 1), 2);
  EXPECT_EQ(w0().rpc_sync("w1", static_cast<std::string (*)(const std::string&)>(overloaded), "1"),
            "11");
  EXPECT_EQ(w0().rpc_sync("w1", negated<double>, 2.5), -2.5);
}

TEST_P(RpcSuite, OperatorsAreCalledBySchemaName) {
  start();
  const Tensor x = at::ones({2});
  EXPECT_TRUE(at::equal(rpc_sync<Tensor>("w1", builtin("aten::add.Tensor"), x, x), x * 2));
  EXPECT_EQ(error_of([&] { rpc_sync<Tensor>("w1", builtin("aten::no_such"), x); }).code(),
            Code::kNotRegistered);
}

TEST_P(RpcSuite, MethodsAreCalledWhereTheObjectLivesInheritedOnesToo) {
  start();
  const auto object = w0().remote("w1", make_derived, 5);
  EXPECT_EQ(object.owner().name, "w1");
  EXPECT_EQ(object.rpc_sync(&Derived::own), 5);
  object.rpc_sync(&Derived::set, 7);
  EXPECT_EQ(object.rpc_async(&Derived::own).wait(), 7);
  EXPECT_EQ(object.rpc_sync(&Derived::inherited, 1), 101);
  EXPECT_EQ(object.rpc_sync(&Derived::describe), "derived");
  EXPECT_EQ(object.remote(&Derived::inherited, 2).to_here(), 102);
}

TEST_P(RpcSuite, AnAsynchronousFunctionHoldsNoThreadUntilItsResultIsThere) {
  start({.threads = 2, .max_threads = 4});
  std::vector<Future<int64_t>> waiting;
  for (int64_t i = 0; i < 50; ++i) waiting.push_back(w0().rpc_async("w1", pass_gate_later, i));
  ASSERT_TRUE(eventually([&] { return w0().rpc_sync("w1", waiting_at_gate) == 50; }));
  w0().rpc_sync("w1", open_gate);
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(waiting[static_cast<size_t>(i)].wait(), i);
  EXPECT_EQ(w0().rpc_sync("w1", ask, 0, 4), 5);
}

TEST_P(RpcSuite, AFutureIsWaitedForContinuedAndRecoveredFrom) {
  start();
  const auto sum = w0().rpc_async("w1", add, 1, 1);
  EXPECT_EQ(sum.then([](int64_t x) { return x * 10; }).wait(), 20);
  EXPECT_EQ(sum.wait(), 2);
  const auto failed = w0().rpc_async("w1", fail_with, "no");
  EXPECT_EQ(failed.on_error([](const Error&) { return int64_t{-1}; }).wait(), -1);
  EXPECT_EQ(error_in(failed.then([](int64_t x) { return x; })).message(), "no");

  const auto late = w0().rpc_async("w1", pass_gate_later, 9);
  const Error impatient = error_of([&] { late.wait(20ms); });
  EXPECT_EQ(impatient.code(), Code::kTimeout);
  EXPECT_EQ(impatient.operation(), "Future::wait for rpc_async pass_gate_later");
  EXPECT_EQ(impatient.worker(), "w1");
  const Error of_continuation =
      error_of([&] { late.then([](int64_t x) { return x; }).wait(20ms); });
  EXPECT_EQ(of_continuation.operation(), impatient.operation());
  w0().rpc_sync("w1", open_gate);
  EXPECT_EQ(late.wait(), 9);  // the call itself went on
}

// The thread that waits for what a continuation makes of an answer reads the answer, as one that
// waits for the call itself does.
TEST_P(RpcSuite, WhoWaitsForAContinuationReadsTheAnswer) {
  start();
  const auto here = std::this_thread::get_id();
  bool ran_here = false;
  for (int round = 0; round < (GetParam().real ? 1000 : 10) && !ran_here; ++round) {
    std::atomic<bool> waits{false};  // else it may run at once
    const auto one = w0().rpc_async("w1", doze, 1).then([&] {
      ran_here = waits && std::this_thread::get_id() == here;
      return 1;
    });
    const auto two = one.then([](int value) { return value + 1; });
    waits = true;
    EXPECT_EQ(two.wait(), 2);
  }
  EXPECT_TRUE(ran_here || !GetParam().real);
}

TEST_P(RpcSuite, WhoWaitsForAContinuationIsBackInTime) {
  start();
  const Promise<void> gate;
  const auto late = w0().rpc_async("w1", add, 1, 1).then([gate](int64_t sum) {
    return gate.future().then([sum] { return sum; });
  });
  EXPECT_FALSE(late.wait_for(50ms));
  EXPECT_FALSE(late.wait_for(0ms));
  gate.set_value();
  EXPECT_EQ(late.wait(60s), 2);
  if (!GetParam().real) return;  // whose one thread must not block
  const Promise<void> door;
  const auto blocked =
      w0().rpc_async("w1", pass_gate_later, 1).then([door](int64_t) { door.future().wait(60s); });
  const auto opened =
      w0().rpc_async("w1", open_gate);  // not before: else then() itself would block
  EXPECT_FALSE(blocked.wait_for(50ms));
  door.set_value();
  EXPECT_NO_THROW(blocked.wait(60s));
  opened.wait();
}

TEST_P(RpcSuite, ManyFuturesAreWaitedForTogether) {
  start();
  std::vector<Future<int64_t>> sums;
  for (int64_t i = 0; i < 20; ++i) sums.push_back(w0().rpc_async("w1", add, i, i));
  const auto values = collect_all(sums).wait();
  for (size_t i = 0; i < 20; ++i) EXPECT_EQ(values[i], 2 * static_cast<int64_t>(i));
  const std::vector<Future<int64_t>> race = {w0().rpc_async("w1", pass_gate_later, 1),
                                             w0().rpc_async("w1", add, 2, 2)};
  EXPECT_EQ(collect_any(race).wait(), 1u);
  w0().rpc_sync("w1", open_gate);
  EXPECT_EQ(wait_all(race), (std::vector<int64_t>{1, 4}));
  sums.push_back(w0().rpc_async("w1", fail_with, "one of many"));
  EXPECT_EQ(error_in(collect_all(sums)).message(), "one of many");
}

TEST_P(RpcSuite, NothingOfTheCallersThreadShows) {
  start();
  int again = 0;
  for (int call = 0; call < 50; ++call) {
    const auto [was_enabled, left_off] = w0().rpc_sync("w1", grad_mode_which_is_left_off);
    ASSERT_TRUE(was_enabled) << "call " << call;
    again += left_off;
  }
  EXPECT_GT(again, 0) << "no thread has served two calls";
  const c10::AutoGradMode no_grad(false);
  EXPECT_TRUE(w0().rpc_sync("w1", grad_mode));
  EXPECT_TRUE(w0().rpc_sync("w0", grad_mode));
}

TEST_P(RpcSuite, AnExceptionArrivesWithTypeMessageWorkerAndFunction) {
  start();
  const Error near = error_of([&] { w0().rpc_sync("w1", fail_with, "no such row"); });
  EXPECT_EQ(near.code(), Code::kRemote);
  EXPECT_EQ(near.message(), "no such row");
  EXPECT_EQ(near.remote_type(), "std::out_of_range");
  EXPECT_THAT(near.trail(), HasSubstr("'fail_with' on worker 'w1' (rank 1)"));

  // Expect: each hop on the way is named, the nearest to the fault first.
  const Error far = error_of([&] { w0().rpc_sync("w1", pass_on_failure, 2); });
  EXPECT_EQ(far.message(), "deep down");
  EXPECT_EQ(far.remote_type(), "std::out_of_range");
  EXPECT_THAT(far.trail(), HasSubstr("'fail_with' on worker 'w2' (rank 2)"));
  EXPECT_THAT(far.trail(), HasSubstr("'pass_on_failure' on worker 'w1' (rank 1)"));
  EXPECT_LT(far.trail().find("'w2'"), far.trail().find("'w1'"));

  EXPECT_EQ(error_in(w0().rpc_async("w1", ask_to_fail, 2)).message(), "later");
}

TEST_P(RpcSuite, WhateverIsThrownArrives) {
  start();
  EXPECT_EQ(error_of([&] { w0().rpc_sync("w1", fail_oddly); }).code(), Code::kRemote);
  const Error torch = error_of([&] { w0().rpc_sync("w1", fail_in_torch); });
  EXPECT_EQ(torch.remote_type(), "c10::Error");
  EXPECT_THAT(torch.message(), HasSubstr("size of tensor"));
  EXPECT_THAT(torch.message(), ::testing::Not(HasSubstr("frame #")));  // no stack trace
  const Error own = error_of([&] { w0().rpc_sync("w1", fail_with_code); });
  EXPECT_EQ(own.code(), Code::kNotFound);
  EXPECT_EQ(own.advice(), "add it first");
  EXPECT_EQ(error_of([&] { w0().rpc_sync("w1", never_delivered); }).code(), Code::kCancelled);
  // Expect: the worker is as good as before.
  EXPECT_EQ(w0().rpc_sync("w1", add, 1, 2), 3);
}

TEST_P(RpcSuite, WhatIsNotThereIsNamed) {
  start();
  const Error function = error_of([&] { w0().rpc_sync("w1", not_registered, 1); });
  EXPECT_EQ(function.code(), Code::kNotRegistered);
  EXPECT_THAT(function.what(), HasSubstr("FARSPAN_REGISTER"));
  const Error name = error_of([&] { w0().rpc_sync("nobody", add, 1, 1); });
  EXPECT_EQ(name.code(), Code::kInvalidArgument);
  EXPECT_THAT(name.what(), HasSubstr("'nobody'"));
  EXPECT_THAT(name.what(), HasSubstr("'w1' (rank 1)"));
  EXPECT_EQ(error_of([&] { w0().rpc_sync(7, add, 1, 1); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] { w0().rpc_sync(-1, add, 1, 1); }).code(), Code::kInvalidArgument);
}

TEST_P(RpcSuite, ATimeoutNamesCallWorkerAndTime) {
  start();
  const TimePoint begun = now();
  const Error error =
      error_of([&] { w0().rpc_sync("w1", CallOptions{.timeout = 30ms}, pass_gate_later, 1); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_EQ(error.operation(), "rpc_sync pass_gate_later");
  EXPECT_EQ(error.worker(), "w1");
  EXPECT_THAT(error.advice(), HasSubstr("CallOptions::timeout"));
  EXPECT_GE(now() - begun, 30ms);
  EXPECT_LT(now() - begun, 10s);
  EXPECT_GE(error.elapsed(), 30ms);
}

TEST_P(RpcSuite, ACallThatIsCancelledEndsAtOnceAndItsAnswerIsDropped) {
  start();
  const auto call = w0().rpc_async("w1", CallOptions{kNoTimeout}, pass_gate_later, 9);
  const auto more = call.then([](int64_t x) { return x + 1; });
  const auto instead = call.on_error([](const Error&) { return int64_t{-1}; });
  ASSERT_TRUE(eventually([&] { return w0().rpc_sync("w1", waiting_at_gate) == 1; }));
  EXPECT_TRUE(more.cancel()) << "what it comes of";
  ASSERT_TRUE(call.has_error());
  EXPECT_EQ(call.error().code(), Code::kCancelled);
  EXPECT_EQ(call.error().operation(), "rpc_async pass_gate_later");
  EXPECT_EQ(call.error().worker(), "w1");
  EXPECT_EQ(more.error().code(), Code::kCancelled);
  EXPECT_EQ(instead.value(), -1);
  for (const auto& ended : {call, more, instead}) EXPECT_FALSE(ended.cancel());
  EXPECT_EQ(w0().counters().in_flight, 0);
  w0().rpc_sync("w1", open_gate);
  EXPECT_EQ(w0().rpc_sync("w1", add, 1, 1), 2);
  EXPECT_EQ(call.error().code(), Code::kCancelled);
  const auto answered = w0().rpc_async("w1", add, 1, 1);
  EXPECT_EQ(answered.wait(), 2);
  EXPECT_FALSE(answered.cancel());
}

TEST_P(RpcSuite, WhoWaitsForACallThatIsCancelledIsBackAtOnce) {
  if (!GetParam().real) GTEST_SKIP() << "the World has one thread at a time";
  start();
  for (const Millis timeout : {Millis(kNoTimeout), Millis(60s)}) {
    const auto call = w0().rpc_async("w1", CallOptions{timeout}, pass_gate_later, 9);
    std::thread canceller([&] {
      EXPECT_TRUE(eventually([&] { return w0().rpc_sync("w1", waiting_at_gate) == 1; }));
      std::this_thread::sleep_for(20ms);  // the other one sleeps by now, most likely
      EXPECT_TRUE(call.cancel());
    });
    const TimePoint begun = now();
    EXPECT_EQ(error_in(call).code(), Code::kCancelled);
    EXPECT_LT(now() - begun, 20s);
    canceller.join();
    w0().rpc_sync("w1", open_gate);
    EXPECT_TRUE(eventually([&] { return w0().rpc_sync("w1", waiting_at_gate) == 0; }));
    w0().rpc_sync("w1", close_gate);
  }
}

TEST_P(RpcSuite, ACallToOneselfCanBeCancelled) {
  start();
  close_gate();
  const auto own = w0().rpc_async("w0", CallOptions{kNoTimeout}, pass_gate_later, 9);
  ASSERT_TRUE(eventually([&] { return w0().rpc_sync("w0", waiting_at_gate) == 1; }));
  EXPECT_TRUE(own.cancel());
  ASSERT_TRUE(own.has_error());
  EXPECT_EQ(own.error().code(), Code::kCancelled);
}

TEST_P(RpcSuite, ACallThatAContinuationHasMadeCanBeCancelled) {
  start();
  const auto second =
      w0().rpc_async("w1", add, 1, 1)
          .then([this](int64_t two) { return w0().rpc_async("w1", pass_gate_later, two); })
          .then([](int64_t two) { return two + 1; });
  ASSERT_TRUE(eventually([&] { return w0().rpc_sync("w1", waiting_at_gate) == 1; }));
  EXPECT_TRUE(eventually([&] { return second.cancel(); }));  // when the continuation is over
  ASSERT_TRUE(second.has_error());
  EXPECT_EQ(second.error().code(), Code::kCancelled);
}

// Each may wait for what comes behind it, whoever cancels.
TEST_P(RpcSuite, ContinuationsOfACancelledCallMayWaitForEachOther) {
  if (!GetParam().real) GTEST_SKIP() << "the World delivers one after the other";
  start();
  const auto call = w0().rpc_async("w1", CallOptions{kNoTimeout}, pass_gate_later, 9);
  const Promise<Future<int64_t>> behind;
  const auto first =
      call.then([&](const Future<int64_t>&) { return behind.future().value().wait_for(10s); });
  behind.set_value(call.on_error([](const Error&) { return int64_t{1}; }));
  EXPECT_TRUE(call.cancel());
  EXPECT_TRUE(first.wait());
  w0().rpc_sync("w1", open_gate);
}

TEST_P(RpcSuite, EachCallHasTheDefaultTimeoutOrItsOwnAndZeroIsNone) {
  start({.rpc_timeout = 40s});
  const int64_t usual = w0().rpc_sync("w1", remaining);
  EXPECT_GT(usual, 30'000);
  EXPECT_LE(usual, 40'000);
  const int64_t own = w0().rpc_sync("w1", CallOptions{.timeout = 90s}, remaining);
  EXPECT_GT(own, 80'000);
  EXPECT_LE(own, 90'000);
  EXPECT_EQ(w0().rpc_sync("w1", CallOptions{.timeout = kNoTimeout}, remaining), -1);
}

TEST_P(RpcSuite, TheDefaultTimeoutEndsACall) {
  start({.rpc_timeout = 50ms});
  EXPECT_EQ(error_of([&] { w0().rpc_sync("w1", pass_gate_later, 1); }).code(), Code::kTimeout);
}

TEST_P(RpcSuite, DeadlinesTravelShrinkAndAreInherited) {
  start();
  const auto left = [&](Millis outer, int64_t doze_ms, Millis inner) {
    return w0().rpc_sync("w1", CallOptions{.timeout = outer}, remaining_beyond, doze_ms,
                         inner.count());
  };
  // Expect: the smaller of the two, whichever it is.
  EXPECT_LE(left(10s, 0, 50s), 10'000);
  EXPECT_GT(left(10s, 0, 50s), 5'000);
  EXPECT_LE(left(50s, 0, 10s), 10'000);
  // Expect: a nested call without a timeout has that of the call it serves.
  EXPECT_LE(left(10s, 0, kNoTimeout), 10'000);
  EXPECT_GT(left(10s, 0, kNoTimeout), 5'000);
  // Expect: time that has passed is gone.
  EXPECT_LE(left(10s, 200, 50s), 9'800);
  EXPECT_EQ(left(kNoTimeout, 0, kNoTimeout), -1);
}

TEST_P(RpcSuite, ANestedCallEndsWithTheCallThatItServes) {
  start();
  w0().rpc_sync("w2", close_gate);
  const auto outer = w0().rpc_async("w1", CallOptions{.timeout = 100ms}, ask_gate, 2);
  EXPECT_EQ(error_in(outer).code(), Code::kTimeout);
  // Expect: w1 does not go on waiting for w2, whose gate stays closed.
  EXPECT_TRUE(eventually([&] { return w0().rpc_sync("w1", in_flight) == 0; }));
  w0().rpc_sync("w2", open_gate);
}

TEST_P(RpcSuite, EveryCallThatHasEndedIsTimedHoweverItEnded) {
  start();
  const CallTimes before = w0().call_times();
  const agent::MessengerCounters counted = w0().counters();
  for (int i = 0; i < 4; ++i) w0().rpc_sync("w1", doze, 30);
  error_of([&] { w0().rpc_sync("w1", fail_with, "no"); });
  error_of([&] { w0().rpc_sync("w1", CallOptions{.timeout = 30ms}, pass_gate_later, 1); });
  CallTimes times = w0().call_times();
  for (size_t i = 0; i < before.counts.size(); ++i) times.counts[i] -= before.counts[i];
  EXPECT_EQ(times.count(), 6u);
  EXPECT_EQ(times.count(), w0().counters().calls_sent - counted.calls_sent);
  EXPECT_EQ(w0().counters().calls_failed - counted.calls_failed, 2u);
  // Expect: all but one took 30 ms or more, within the histogram's 4 %.
  EXPECT_GE(times.quantile(2.0 / 6), 28ms);
}

TEST_P(RpcSuite, AGracefulShutdownWaitsForWhatIsUnderWay) {
  start();
  const auto slow = w0().rpc_async("w1", doze, 100);
  const auto asked = w0().rpc_async("w1", ask, 0, 4);
  cluster().shutdown();
  spoil();
  EXPECT_NO_THROW(slow.wait(5s));
  EXPECT_EQ(asked.wait(5s), 5);
  const Error after = error_of([&] { w0().rpc_sync("w1", whoami); });
  EXPECT_EQ(after.code(), Code::kShutdown);
}

// Each continuation waits for the next call; all calls end with the worker.
TEST_P(RpcSuite, ALocalShutdownTellsEveryCallWhateverTheirContinuationsWaitFor) {
  if (!GetParam().real) GTEST_SKIP() << "the World delivers one after the other";
  constexpr int kCalls = 50;
  start();
  std::vector<Future<int64_t>> calls;
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(w0().rpc_async("w1", pass_gate_later, i));
  }
  std::vector<Future<bool>> in_time;
  for (int i = 0; i < kCalls; ++i) {
    in_time.push_back(calls[static_cast<size_t>(i)].then(
        [next = calls[static_cast<size_t>(std::min(i + 1, kCalls - 1))]](const Future<int64_t>&) {
          return next.wait_for(20s);
        }));
  }
  ASSERT_TRUE(eventually([&] { return w0().rpc_sync("w1", waiting_at_gate) == kCalls; }));
  cluster().leave();
  spoil();
  for (const auto& one : in_time) {
    ASSERT_TRUE(one.wait_for(20s));
    EXPECT_TRUE(one.value());
  }
}

TEST_P(RpcSuite, ALocalShutdownFailsWhatIsUnderWayAtOnce) {
  start();
  const auto slow = w0().rpc_async("w1", pass_gate_later, 1);
  ASSERT_TRUE(eventually([&] { return w0().rpc_sync("w1", waiting_at_gate) == 1; }));
  const TimePoint begun = Clock::now();
  cluster().leave();
  spoil();
  EXPECT_LT(Clock::now() - begun, 10s);
  ASSERT_TRUE(slow.ready());
  EXPECT_EQ(error_in(slow).code(), Code::kShutdown);
  EXPECT_EQ(error_of([&] { w0().rpc_sync("w1", whoami); }).code(), Code::kShutdown);
  EXPECT_EQ(error_of([&] { w0().shutdown(); }).code(), Code::kShutdown);
}

}  // namespace farspan::testing
