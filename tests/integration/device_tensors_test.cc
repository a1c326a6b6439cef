// The rules under test: rpc/device/README.md.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <farspan/rpc/rpc.h>

#include "integration/device_workers.h"
#include "support/errors.h"
#include "support/sanitizers.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using at::Tensor;
using device::cpu;
using device::cuda;
using ::testing::AllOf;
using ::testing::HasSubstr;

Tensor same(const Tensor& x) { return x; }
[[noreturn]] void refuse(const Tensor&) { throw std::runtime_error("no"); }
Tensor keep(const Tensor& x) {
  keep_here(x);
  return x;
}
void overwrite_kept(const Tensor& by) {
  for (Tensor& one : kept_here()) one.copy_(by);
}
// Of a call of w1's own, to w0.
int64_t device_at_w0(int64_t device) { return rpc_sync(0, device_of, on_device(device, 3)); }
FARSPAN_REGISTER_AS("device.device_at_w0", device_at_w0);
FARSPAN_REGISTER_AS("device.same", same);
FARSPAN_REGISTER_AS("device.refuse", refuse);
FARSPAN_REGISTER_AS("device.keep", keep);
FARSPAN_REGISTER_AS("device.overwrite_kept", overwrite_kept);

using DeviceTensors = DeviceWorkers;
class DeviceMaps : public DeviceTensors {
  void SetUp() override {
    if (accelerators() < 2) GTEST_SKIP() << kNeedsTwo;
  }
};
class DeviceTensorsByHost : public DeviceTensors {};
// Where they stay with the caller until they have been copied.
class LentDeviceTensors : public DeviceTensors {};

TEST_P(DeviceTensors, ArriveOnTheDeviceOfTheSameNumberAndSoDoAnswers) {
  for (int round = 0; round < repetitions(50); ++round) {
    for (const int device : some_devices()) {
      const Tensor x = numbers(round).to(accelerator(device));
      EXPECT_EQ(w0().rpc_sync(1, device_of, x), device);
      EXPECT_TRUE(w0().rpc_sync(1, is_numbers, x, round));
      for (const auto fn : {same, copied}) {
        const Tensor back = w0().rpc_sync(1, fn, x);
        EXPECT_EQ(back.device(), accelerator(device));
        EXPECT_TRUE(is(back, numbers(round)));
      }
    }
  }
}

TEST_P(DeviceTensors, OfEachShapeArriveAsTheyAre) {
  const Tensor base = at::arange(120, at::kFloat).reshape({2, 3, 4, 5});
  for (const Tensor& x : {base, base.permute({0, 2, 3, 1}), at::empty({0, 7}), at::scalar_tensor(3),
                          at::arange(300'000, at::kDouble)}) {
    const Tensor there =
        at::empty_strided(x.sizes(), x.strides(), x.options().device(accelerator_of(1)));
    there.copy_(x);
    const Tensor back = w0().rpc_sync(1, copied, there);
    EXPECT_EQ(back.device(), accelerator_of(1));
    if (x.numel() > 0) {
      EXPECT_EQ(back.strides(), x.strides());
    }
    EXPECT_TRUE(at::equal(back.cpu(), x));
  }
}

TEST_P(DeviceTensors, MayBeOverwrittenOrReleasedAsSoonAsTheCallIsOver) {
  for (int round = 0; round < repetitions(100); ++round) {
    Tensor x = numbers(round).to(accelerator(0));
    auto first = w0().rpc_async(1, copied, x);
    const Tensor back = first.wait();
    x.copy_(numbers(-round));
    auto second = w0().rpc_async(1, is_numbers, x, -round);
    x = Tensor();  // the call has it still
    EXPECT_TRUE(is(back, numbers(round)));
    EXPECT_TRUE(second.wait());
  }
}

TEST_P(DeviceTensors, AreSentAsTheCurrentStreamHasWrittenThem) {
  for (int round = 0; round < repetitions(50); ++round) {
    const OnAnotherStream stream(accelerator(0));
    const Tensor x = numbers(round).to(accelerator(0));
    const Tensor twice = x.clone();  // not done when it is sent
    const Tensor back = w0().rpc_sync(1, copied, twice).clone();
    EXPECT_TRUE(is(back, numbers(round)));
  }
}

TEST_P(DeviceTensors, ThatAFunctionKeepsMayChangeAfterItsAnswer) {
  const Tensor back = w0().rpc_sync(1, keep, numbers(1).to(accelerator(0)));
  w0().rpc_sync(1, overwrite_kept, numbers(100).to(accelerator(0)));
  EXPECT_TRUE(is(back, numbers(1)));
}

TEST_P(DeviceMaps, AreFollowedAndTheirInverses) {
  use({{"w1", {{cuda(0), cuda(1)}, {cuda(1), cuda(0)}}}}, {});
  const Tensor x = numbers(3).to(accelerator(0));
  EXPECT_EQ(w0().rpc_sync(1, device_of, x), 1);
  const Tensor back = w0().rpc_sync(1, copied, x);
  EXPECT_EQ(back.device(), accelerator(0));
  EXPECT_TRUE(is(back, numbers(3)));
  EXPECT_EQ(w0().rpc_sync(1, on_device, 0, 5).device(), accelerator(1));
  EXPECT_EQ(w0().rpc_sync(1, device_at_w0, 0), 0) << "a map of the other's own";
}

TEST_P(DeviceMaps, MayNameTheCpu) {
  use({{"w1", {{cuda(0), cpu}, {cpu, cuda(1)}}}}, {});
  EXPECT_EQ(w0().rpc_sync(1, device_of, numbers(3).to(accelerator(0))), -1);
  EXPECT_TRUE(w0().rpc_sync(1, is_numbers, numbers(3).to(accelerator(0)), 3));
  EXPECT_EQ(w0().rpc_sync(1, device_of, numbers(4)), 1);
  const Tensor back = w0().rpc_sync(1, copied, numbers(4));
  EXPECT_TRUE(back.is_cpu());
  EXPECT_TRUE(is(back, numbers(4)));
}

TEST_P(DeviceMaps, RefuseADeviceWithoutAnEntryWithTheLineToAdd) {
  use({{"w1", {{cuda(0), cuda(1)}}}}, {});
  const Tensor x = numbers(3).to(accelerator(1));
  EXPECT_THAT(error_of([&] { w0().rpc_sync(1, take, x); }).what(),
              AllOf(HasSubstr("cuda:1"), HasSubstr("device_maps[\"w1\"].set(cuda(1), ")));
  EXPECT_THAT(error_of([&] { w0().rpc_sync(1, on_device, 0, 5); }).what(),
              HasSubstr("device_maps[\"w1\"].set(cuda(..), cuda(0))"));
}

TEST_P(DeviceTensors, AreTheCallersAgainAfterACallThatFails) {
  for (int round = 0; round < repetitions(20); ++round) {
    Tensor x = numbers(round).to(accelerator(0));
    EXPECT_THROW(w0().rpc_sync(1, refuse, x), Error);
    x.copy_(numbers(7));
  }
}

TEST_P(LentDeviceTensors, ACallIsOverOnlyWhenItsArgumentsAreTheCallersAgain) {
  const Tensor x = numbers(1).to(accelerator(0));
  std::optional<StalledStream> stalled(std::in_place);
  const auto answer = w0().rpc_async(1, take, x);
  EXPECT_FALSE(answer.wait_for(50ms)) << "x has not been read yet";
  stalled.reset();
  answer.wait();
}

TEST_P(LentDeviceTensors, ACallThatIsCancelledIsOverWhetherItsAnswerHasComeOrNot) {
  const Tensor x = numbers(1).to(accelerator(0));
  std::optional<StalledStream> stalled(std::in_place);
  const auto answer = w0().rpc_async(1, CallOptions{kNoTimeout}, take, x);
  EXPECT_FALSE(answer.wait_for(50ms));
  EXPECT_TRUE(answer.cancel());
  ASSERT_TRUE(answer.has_error());
  EXPECT_EQ(answer.error().code(), Code::kCancelled);
  EXPECT_FALSE(answer.cancel());
  stalled.reset();
}

TEST_P(DeviceTensors, ACallWhoseArgumentsAreNotReadyEndsAtItsDeadline) {
  const Tensor x = numbers(1).to(accelerator(0));
  const StalledStream stalled;
  const TimePoint begun = Clock::now();
  const auto call = [&] { w0().rpc_sync(1, CallOptions{.timeout = Millis(100)}, take, x); };
  EXPECT_EQ(code_of(call), Code::kTimeout);
  EXPECT_LT(Clock::now() - begun, 10s);
}

TEST_P(LentDeviceTensors, ACallFailsWhenItsLineEndsBeforeItsArgumentsWereRead) {
  const Tensor x = numbers(1).to(accelerator(0));
  std::optional<StalledStream> stalled(std::in_place);
  const auto answer = w0().rpc_async(1, take, x);
  EXPECT_FALSE(answer.wait_for(50ms));
  lose_w1();
  EXPECT_TRUE(answer.wait_for(10s));
  EXPECT_TRUE(answer.has_error()) << "nobody knows what has become of it";
  stalled.reset();
}

TEST_P(DeviceTensors, AreNotSentWhileAGraphIsCapturedOfTheirStream) {
  const OnAnotherStream stream(accelerator(0));
  const Tensor x = numbers(1).to(accelerator(0));
  EXPECT_TRUE(is(w0().rpc_sync(1, copied, x), numbers(1)));
  {
    const CapturedStream captured(accelerator(0));
    const Error error = error_of([&] { w0().rpc_sync(1, copied, x); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rpc_sync device.copied on worker 'w1'"),
                                    HasSubstr("a graph is being captured")));
  }
  EXPECT_TRUE(is(w0().rpc_sync(1, copied, x), numbers(1)));
}

TEST_P(DeviceTensors, ManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const OnAnotherStream stream(accelerator_of(thread % 2));
      for (int round = 0; round < repetitions(50); ++round) {
        const int64_t seed = thread * 1000 + round;
        const Tensor x = numbers(seed).to(accelerator_of(thread % 2));
        EXPECT_TRUE(is(w0().rpc_sync(1, copied, x), numbers(seed)));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

// Of this process, for a block.
class WithoutPinnedMemory {
 public:
  WithoutPinnedMemory() { let_pinned_memory_be_had(false); }
  ~WithoutPinnedMemory() { let_pinned_memory_be_had(true); }
  WithoutPinnedMemory(const WithoutPinnedMemory&) = delete;
  WithoutPinnedMemory& operator=(const WithoutPinnedMemory&) = delete;
};

TEST_P(DeviceTensorsByHost, ArriveThoughThereIsNoPinnedMemory) {
  const WithoutPinnedMemory none;
  for (const int64_t count : {1, 1000, 1'000'000}) {
    const Tensor x = numbers(7, count).to(accelerator(0));
    EXPECT_TRUE(is(w0().rpc_sync(1, copied, x + x), numbers(7, count) * 2));
  }
}

TEST_P(DeviceTensorsByHost, WithoutPinnedMemoryWaitForTheirStreamUntilTheDeadline) {
  const WithoutPinnedMemory none;
  const Tensor x = numbers(7).to(accelerator(0));
  const StalledStream stalled;
  const Error error = error_of([&] { w0().rpc_sync(1, CallOptions{.timeout = 200ms}, take, x); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_THAT(error.what(), HasSubstr("what cuda:0 is at was not done in time"));
}

INSTANTIATE_TEST_SUITE_P(EachWay, DeviceTensors, ::testing::Values(kSameProcess, kByName, kByHost),
                         name_of_way);
INSTANTIATE_TEST_SUITE_P(EachWay, LentDeviceTensors, ::testing::Values(kSameProcess, kByName),
                         name_of_way);
INSTANTIATE_TEST_SUITE_P(EachWay, DeviceTensorsByHost, ::testing::Values(kByHost), name_of_way);
INSTANTIATE_TEST_SUITE_P(EachWay, DeviceMaps, ::testing::Values(kSameProcess, kByName, kByHost),
                         name_of_way);

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) { return farspan::testing::run_device_tests(argc, argv); }
