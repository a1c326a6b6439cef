// Memory of devices that could be opened when that was tried, and cannot be any more: what it holds
// comes another way (rpc/device/README.md), and what becomes of calls meanwhile.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <farspan/rpc/rpc.h>
#include <farspan/rref/rref.h>
#include <farspan/rref/table.h>

#include "integration/device_workers.h"
#include "support/errors.h"
#include "support/eventually.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using at::Tensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class UnopenedTensors : public DeviceWorkers {
  void SetUp() override {
    if (!has_a_region_for_each_tensor()) GTEST_SKIP() << kSharesRegions;
  }
};

// Of calls whose answers wait for a device of w1, and are asked for through the processor.
class UnopenedAnswers : public UnopenedTensors {
 protected:
  template <class Fn>
  auto call(Fn fn, Millis timeout = kNoTimeout) {
    w0().rpc_sync(1, on_device, 0, 1);
    unopened_.emplace(w0(), 0);
    const uint64_t sent = w0().counters().calls_sent;
    const auto answer = w0().rpc_async(1, CallOptions{.timeout = timeout}, fn);
    EXPECT_TRUE(eventually([&] { return w0().counters().calls_sent == sent + 2; }));
    return answer;
  }
  void let_go();
  void TearDown() override {
    if (!is_lost_) let_go();
    unopened_.reset();
    UnopenedTensors::TearDown();
  }
  void lose_w1() {
    is_lost_ = true;
    UnopenedTensors::lose_w1();
  }

 private:
  std::optional<Unopened> unopened_;
  bool is_lost_ = false;
};

// Of w1.
Tensor held_up() {
  const Tensor x = on_device(0, 5);
  stall_there();
  return x + x;
}
std::pair<Tensor, RRef<int64_t>> held_up_with_reference() { return {held_up(), RRef<int64_t>(7)}; }
int64_t owned() { return static_cast<int64_t>(RRefTable::of(current_worker()).counters().owned); }
int64_t in_flight() { return current_worker().counters().in_flight; }
// Of w0, and of w1, which asks it for that.
bool arrives_at_w1(int64_t seed) { return rpc_sync(1, is_numbers, on_device(0, seed), seed); }
bool arrives_from_w0(int64_t seed) { return rpc_sync(0, arrives_at_w1, seed); }
FARSPAN_REGISTER_AS("unopened.held_up", held_up);
FARSPAN_REGISTER_AS("unopened.held_up_with_reference", held_up_with_reference);
FARSPAN_REGISTER_AS("unopened.owned", owned);
FARSPAN_REGISTER_AS("unopened.in_flight", in_flight);
FARSPAN_REGISTER_AS("unopened.arrives_at_w1", arrives_at_w1);
FARSPAN_REGISTER_AS("unopened.arrives_from_w0", arrives_from_w0);

void UnopenedAnswers::let_go() { w0().rpc_sync(1, go_on_there); }

TEST_P(UnopenedTensors, ComeThroughTheProcessorAndThoseAfterThemGoThatWay) {
  if (accelerators() < 2) GTEST_SKIP() << kNeedsTwo;
  const auto exchange = [&](int device, int64_t seed, int64_t count = 1000) {
    const Tensor x = numbers(seed, count).to(accelerator(device));
    return is(w0().rpc_sync(1, copied, x), numbers(seed, count));
  };
  const auto come = [&] {
    return w0().counters().bytes_of_devices + w0().rpc_sync(1, bytes_of_devices);
  };
  const auto said = HasSubstr("what had gone well does not any more: memory of other processes");
  const LoggedWays log;
  for (const int device : {0, 1}) EXPECT_TRUE(exchange(device, device));
  EXPECT_EQ(w0().rpc_sync(1, way_back), "");
  const uint64_t before = come();
  {
    const Unopened results(w0(), 0);
    for (int round = 0; round < 10; ++round) EXPECT_TRUE(exchange(0, round, 300'000));
  }
  EXPECT_EQ(come(), before + uint64_t{10} * 300'000 * 8) << "the arguments, straight";
  EXPECT_THAT(w0().rpc_sync(1, way_back), said);
  EXPECT_TRUE(way_of(w0(), 0).is_direct) << "that way it can be";
  {
    const Unopened arguments(w0(), 1);
    for (int round = 0; round < 10; ++round) EXPECT_TRUE(exchange(1, round, 300'000));
  }
  EXPECT_TRUE(way_of(w0(), 0).is_direct);
  EXPECT_THAT(way_of(w0(), 1).why_not_direct, said);
  const std::string direct = ", from device to device";
  EXPECT_THAT(log.to_w1(), ElementsAre(line_of(0, direct), line_of(1, direct), said)) << "once";
}

// They were sent before their sender could know.
TEST_P(UnopenedTensors, OfManyCallsAtOnce) {
  w0().rpc_sync(1, copied, numbers(1).to(accelerator(0)));
  const Unopened arguments(w0(), 1), results(w0(), 0);
  std::vector<std::pair<Future<Tensor>, int64_t>> answers;
  for (int64_t seed = 0; seed < 20; ++seed) {
    answers.emplace_back(w0().rpc_async(1, copied, numbers(seed).to(accelerator(0))), seed);
  }
  for (const auto& [answer, seed] : answers) EXPECT_TRUE(is(answer.wait(), numbers(seed)));
  EXPECT_FALSE(way_of(w0(), 0).is_direct);
  EXPECT_NE(w0().rpc_sync(1, way_back), "");
}

// The answer is read by whoever reads, who must not wait for another one.
TEST_P(UnopenedTensors, ComeToContinuations) {
  w0().rpc_sync(1, on_device, 0, 1);
  const Unopened results(w0(), 0);
  const auto twice = w0().rpc_async(1, on_device, 0, 5).then([](const Tensor& x) { return x + x; });
  EXPECT_TRUE(is(twice.wait(), numbers(5) * 2));
  EXPECT_NE(w0().rpc_sync(1, way_back), "");
}

TEST_P(UnopenedTensors, AreWaitedForNoLongerThanTheirCall) {
  w0().rpc_sync(1, take, numbers(1).to(accelerator(0)));
  const Tensor x = numbers(1).to(accelerator(0));
  const Unopened arguments(w0(), 1);
  std::optional<StalledStream> stalled(std::in_place);
  const Error error = error_of([&] { w0().rpc_sync(1, CallOptions{.timeout = 200ms}, take, x); });
  EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
  EXPECT_TRUE(eventually([&] { return w0().rpc_sync(1, in_flight) == 0; }))
      << "of what w1 asks for";
  stalled.reset();
  EXPECT_TRUE(w0().rpc_sync(1, is_numbers, x, 1));
}

TEST_P(UnopenedTensors, AreErrorsWhereTheyMustGoStraight) {
  start_processes({.workers = 2, .device_to_device = DeviceToDevice::kRequired});
  const Tensor x = numbers(1).to(accelerator(0)), y = numbers(2).to(accelerator(0));
  w0().rpc_sync(1, take, x);
  const Unopened arguments(w0(), 1);
  for (const char* const why : {"cannot be opened", "cannot go straight to"}) {
    const Error error = error_of([&] { w0().rpc_sync(1, take, y); });
    EXPECT_EQ(error.code(), Code::kUnavailable) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(why));
  }
}

TEST_P(UnopenedTensors, AreErrorsWhereTheyMustComeStraight) {
  start_processes({.workers = 2, .device_to_device = DeviceToDevice::kRequired});
  w0().rpc_sync(1, on_device, 0, 1);
  const Unopened results(w0(), 0);
  const Error error = error_of([&] { w0().rpc_sync(1, on_device, 0, 1); });
  EXPECT_EQ(error.code(), Code::kUnavailable) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("cannot be opened"));
}

// The only thread of w0 that serves calls waits for the one whose arguments it is asked for.
TEST_P(UnopenedTensors, AreGivenByTheThreadThatWaitsForTheirCall) {
  start_processes({.workers = 2, .threads = 1, .max_threads = 1});
  EXPECT_TRUE(w0().rpc_sync(1, arrives_from_w0, 1));
  const Unopened arguments(w0(), 1);
  EXPECT_TRUE(w0().rpc_sync(1, arrives_from_w0, 2));
  EXPECT_FALSE(way_of(w0(), 0).is_direct);
}

TEST_P(UnopenedAnswers, AreTakenWhenTheirDevicesAreThere) {
  const auto answer = call(held_up);
  EXPECT_FALSE(answer.wait_for(20ms));
  let_go();
  EXPECT_TRUE(is(answer.wait(), numbers(5) * 2));
}

TEST_P(UnopenedAnswers, AreWaitedForUntilTheDeadlineOfTheirCall) {
  const auto answer = call(held_up, Millis(3000));
  EXPECT_EQ(code_of([&] { answer.wait(); }), Code::kTimeout);
}

TEST_P(UnopenedAnswers, MayBeGivenUp) {
  const auto answer = call(held_up);
  EXPECT_TRUE(answer.cancel());
  EXPECT_EQ(code_of([&] { answer.wait(); }), Code::kCancelled);
  EXPECT_FALSE(answer.cancel());
  EXPECT_TRUE(eventually([&] { return w0().counters().in_flight == 0; })) << "what asks for it";
}

TEST_P(UnopenedAnswers, ThatAreGivenUpHaveContinuationsWhichMayWaitForEachOther) {
  const auto answer = call(held_up);
  const Promise<Future<bool>> behind;
  const auto first =
      answer.then([&](const Future<Tensor>&) { return behind.future().value().wait_for(10s); });
  behind.set_value(answer.then([](const Future<Tensor>&) { return true; }));
  EXPECT_TRUE(answer.cancel());
  EXPECT_TRUE(first.wait());
}

TEST_P(UnopenedAnswers, ThatAreGivenUpLetGoOfTheirReferences) {
  const auto answer = call(held_up_with_reference);
  EXPECT_EQ(w0().rpc_sync(1, owned), 1);
  EXPECT_TRUE(answer.cancel());
  let_go();
  EXPECT_TRUE(eventually([&] { return w0().rpc_sync(1, owned) == 0; }));
}

TEST_P(UnopenedAnswers, EndWithTheirWorker) {
  const auto answer = call(held_up);
  lose_w1();
  const Error error = error_of([&] { answer.wait(); });
  EXPECT_EQ(error.code(), Code::kDisconnected) << error.what();
  EXPECT_EQ(error.worker(), "w1");
}

INSTANTIATE_TEST_SUITE_P(EachWay, UnopenedTensors, ::testing::Values(kByName), name_of_way);
INSTANTIATE_TEST_SUITE_P(EachWay, UnopenedAnswers, ::testing::Values(kByName), name_of_way);

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) { return farspan::testing::run_device_tests(argc, argv); }
