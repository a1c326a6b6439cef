// The rules under test: rpc/device/README.md.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <farspan/c10d/base/log.h>
#include <farspan/rpc/rpc.h>

#include "integration/device_workers.h"
#include "support/errors.h"
#include "support/eventually.h"
#include "support/sanitizers.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using at::Tensor;
using device::cpu;
using device::cuda;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Not;

Tensor same(const Tensor& x) { return x; }
Tensor copied(const Tensor& x) { return x.clone(); }
int64_t device_of(const Tensor& x) { return x.is_cpu() ? -1 : x.get_device(); }
bool is_numbers(const Tensor& x, int64_t seed) { return is(x, numbers(seed, x.numel())); }
Tensor on_device(int64_t device, int64_t seed) {
  return numbers(seed).to(accelerator(static_cast<int>(device)));
}
void take(const Tensor&) {}
[[noreturn]] void refuse(const Tensor&) { throw std::runtime_error("no"); }
Tensor keep(const Tensor& x) {
  keep_here(x);
  return x;
}
void overwrite_kept(const Tensor& by) {
  for (Tensor& one : kept_here()) one.copy_(by);
}
// Of calls of w1's own, to w0.
int64_t device_at_w0(int64_t device) { return rpc_sync(0, device_of, on_device(device, 3)); }
std::string why_not_from_w0(int64_t device) {
  return error_of([&] { rpc_sync(0, on_device, device, 3); }).what();
}
FARSPAN_REGISTER_AS("device.device_at_w0", device_at_w0);
FARSPAN_REGISTER_AS("device.why_not_from_w0", why_not_from_w0);
FARSPAN_REGISTER_AS("device.same", same);
FARSPAN_REGISTER_AS("device.copied", copied);
FARSPAN_REGISTER_AS("device.device_of", device_of);
FARSPAN_REGISTER_AS("device.is_numbers", is_numbers);
FARSPAN_REGISTER_AS("device.on_device", on_device);
FARSPAN_REGISTER_AS("device.take", take);
FARSPAN_REGISTER_AS("device.refuse", refuse);
FARSPAN_REGISTER_AS("device.keep", keep);
FARSPAN_REGISTER_AS("device.overwrite_kept", overwrite_kept);

using DeviceTensors = DeviceWorkers;
class DeviceMaps : public DeviceTensors {
  void SetUp() override {
    if (accelerators() < 2) GTEST_SKIP() << kNeedsTwo;
  }
};
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

// Holds up the calling thread's current stream of device 0.
class StalledStream {
 public:
  StalledStream() { hold_up_current_stream(accelerator(0), go_.future()); }
  ~StalledStream() { go_.set_value(); }
  StalledStream(const StalledStream&) = delete;
  StalledStream& operator=(const StalledStream&) = delete;

 private:
  const Promise<void> go_;
};

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

DeviceRoute way_of(const Worker& worker, int here) {
  for (const Route& route : worker.routes()) {
    for (const DeviceRoute& way : route.devices) {
      if (way.here == here) return way;
    }
  }
  return {-1, -1, false, "not known"};
}
uint64_t bytes_of_devices() { return current_worker().counters().bytes_of_devices; }
std::string way_back() { return way_of(current_worker(), 0).why_not_direct; }
FARSPAN_REGISTER_AS("device.bytes_of_devices", bytes_of_devices);
FARSPAN_REGISTER_AS("device.way_back", way_back);

// What this process logs of devices, for a block.
class LoggedWays {
 public:
  LoggedWays() {
    set_log_level(LogLevel::kInfo);
    set_log_sink([log = log_](LogLevel, std::string_view room, std::string_view text) {
      if (room != "device") return;
      const std::lock_guard lock(log->mutex);
      log->lines.emplace_back(text);
    });
  }
  ~LoggedWays() {
    set_log_sink(nullptr);
    set_log_level(LogLevel::kWarning);
  }
  LoggedWays(const LoggedWays&) = delete;
  LoggedWays& operator=(const LoggedWays&) = delete;

  std::vector<std::string> to_w1() const {
    std::vector<std::string> some;
    const std::lock_guard lock(log_->mutex);
    for (const std::string& line : log_->lines) {
      if (line.find("worker 'w1'") != std::string::npos) some.push_back(line);
    }
    return some;
  }

 private:
  struct Log {  // the sink may outlive this, in a thread that has yet to end
    std::mutex mutex;
    std::vector<std::string> lines;
  };
  const std::shared_ptr<Log> log_ = std::make_shared<Log>();
};

// The line of tensors that arrive on the device of the same number.
std::string line_of(int device, const std::string& way) {
  const std::string place = "cuda:" + std::to_string(device);
  return "tensors go from " + place + " to " + place + " of worker 'w1'" + way;
}

TEST_P(DeviceTensors, SayInTheLogOnceHowTheyGo) {
  const LoggedWays log;
  for (int round = 0; round < 3; ++round) {
    for (const int device : some_devices())
      w0().rpc_sync(1, take, numbers(1).to(accelerator(device)));
  }
  const std::string way = GetParam().reach == DeviceRoom::Reach::kByHost
                              ? " through the processor's memory: another host"
                              : ", from device to device";
  std::vector<std::string> lines;
  for (const int device : some_devices()) lines.push_back(line_of(device, way));
  EXPECT_THAT(log.to_w1(), ElementsAreArray(lines));
}

TEST_P(DeviceTensors, SayHowTheyGo) {
  if (accelerators() < 2) GTEST_SKIP() << kNeedsTwo;
  EXPECT_EQ(way_of(w0(), 0).why_not_direct, "not known");
  const Tensor x = numbers(1).to(accelerator(0)), y = numbers(1).to(accelerator(1));
  for (int round = 0; round < 3; ++round) {
    w0().rpc_sync(1, same, x);
    w0().rpc_sync(1, take, y);
  }
  const bool is_direct = GetParam().reach != DeviceRoom::Reach::kByHost;
  for (const int device : {0, 1}) {
    const DeviceRoute way = way_of(w0(), device);
    EXPECT_EQ(way.there, device);
    EXPECT_EQ(way.is_direct, is_direct);
    EXPECT_EQ(way.why_not_direct, is_direct ? "" : "another host");
  }
  EXPECT_EQ(w0().rpc_sync(1, way_back), is_direct ? "" : "another host");
  const uint64_t come = is_direct ? 3 * x.nbytes() : 0;
  EXPECT_EQ(w0().counters().bytes_of_devices, come);
  EXPECT_EQ(w0().routes().at(0).bytes_of_devices, come);
  EXPECT_EQ(w0().rpc_sync(1, bytes_of_devices), come + (is_direct ? 3 * y.nbytes() : 0));
}

class DevicesByName : public DeviceTensors {};

// As where containers keep processes apart.
TEST_P(DevicesByName, GoThroughTheProcessorWhereMemoryCannotBeOpened) {
  const Unopened arguments(w0(), 1);
  for (int round = 0; round < 10; ++round) {
    const Tensor x = numbers(round).to(accelerator(0));
    EXPECT_EQ(w0().rpc_sync(1, device_of, x), 0);
    EXPECT_TRUE(is(w0().rpc_sync(1, copied, x), numbers(round)));
  }
  EXPECT_FALSE(way_of(w0(), 0).is_direct);
  EXPECT_THAT(way_of(w0(), 0).why_not_direct,
              AllOf(HasSubstr("cannot be opened"), Not(HasSubstr("does not see"))));
  EXPECT_EQ(w0().rpc_sync(1, way_back), "") << "here it can be";
  EXPECT_EQ(w0().rpc_sync(1, bytes_of_devices), 0u);
  EXPECT_GT(w0().counters().bytes_of_devices, 0u);
}

TEST_P(DevicesByName, GoAnotherWayOnceMemoryCannotBeOpenedAnyMoreAndNoneIsLost) {
  if (!has_a_region_for_each_tensor()) GTEST_SKIP() << kSharesRegions;
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
TEST_P(DevicesByName, ThatCannotBeOpenedArriveFromManyCallsAtOnce) {
  if (!has_a_region_for_each_tensor()) GTEST_SKIP() << kSharesRegions;
  w0().rpc_sync(1, copied, numbers(1).to(accelerator(0)));
  const Unopened arguments(w0(), 1), results(w0(), 0);
  std::vector<std::pair<Future<Tensor>, int64_t>> answers;
  for (int64_t seed = 0; seed < 20; ++seed) {
    answers.emplace_back(w0().rpc_async(1, copied, numbers(seed).to(accelerator(0))), seed);
  }
  for (const auto& [answer, seed] : answers) EXPECT_TRUE(is(answer.wait(), numbers(seed)));
}

// The answer is read by whoever reads, who must not wait for another one.
TEST_P(DevicesByName, ThatCannotBeOpenedComeToContinuations) {
  if (!has_a_region_for_each_tensor()) GTEST_SKIP() << kSharesRegions;
  w0().rpc_sync(1, on_device, 0, 1);
  const Unopened results(w0(), 0);
  const auto twice = w0().rpc_async(1, on_device, 0, 5).then([](const Tensor& x) { return x + x; });
  EXPECT_TRUE(is(twice.wait(), numbers(5) * 2));
}

TEST_P(DevicesByName, ThatCannotBeOpenedAreWaitedForNoLongerThanTheirCall) {
  if (!has_a_region_for_each_tensor()) GTEST_SKIP() << kSharesRegions;
  w0().rpc_sync(1, take, numbers(1).to(accelerator(0)));
  const Tensor x = numbers(1).to(accelerator(0));
  const Unopened arguments(w0(), 1);
  std::optional<StalledStream> stalled(std::in_place);
  const Error error = error_of([&] { w0().rpc_sync(1, CallOptions{.timeout = 200ms}, take, x); });
  EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
  stalled.reset();
  EXPECT_TRUE(w0().rpc_sync(1, is_numbers, x, 1));
}

TEST_P(DevicesByName, AreErrorsOnceMemoryCannotBeOpenedWhereTheyMustGoStraight) {
  if (!has_a_region_for_each_tensor()) GTEST_SKIP() << kSharesRegions;
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

TEST_P(DevicesByName, AreErrorsOnceMemoryCannotBeOpenedByWhoRequiresThatTheyComeStraight) {
  if (!has_a_region_for_each_tensor()) GTEST_SKIP() << kSharesRegions;
  start_processes({.workers = 2, .device_to_device = DeviceToDevice::kRequired});
  w0().rpc_sync(1, on_device, 0, 1);
  const Unopened results(w0(), 0);
  const Error error = error_of([&] { w0().rpc_sync(1, on_device, 0, 1); });
  EXPECT_EQ(error.code(), Code::kUnavailable) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("cannot be opened"));
}

TEST_P(DevicesByName, AreTriedBeforeTheFirstTensorWhereMapsNameThem) {
  start_processes({.workers = 2, .device_maps = {{"w1", {{cuda(0), cuda(0)}}}}});
  w0().rpc_sync(1, bytes_of_devices);
  EXPECT_TRUE(eventually([&] { return way_of(w0(), 0).is_direct; }));
  EXPECT_TRUE(eventually([&] { return w0().rpc_sync(1, way_back).empty(); })) << "and back";
  EXPECT_EQ(w0().routes().at(0).devices.size(), 1u);
}

// More than there is room for, of copies of what others cannot open.
Tensor too_many_bytes() { return at::zeros({(64 << 20) + 1}, at::kByte).to(accelerator(0)); }

TEST_P(DevicesByName, ThatOthersCannotOpenAreCopiedFirstOrGoThroughTheProcessorAndCounted) {
  const InUnnamedMemory unnamed;
  const LoggedWays log;
  const Tensor few = numbers(1).to(accelerator(0)), many = too_many_bytes();
  EXPECT_TRUE(is(w0().rpc_sync(1, copied, few), numbers(1)));
  for (int round = 0; round < 2; ++round) w0().rpc_sync(1, take, many);
  const DeviceRoute way = way_of(w0(), 0);
  EXPECT_TRUE(way.is_direct);
  EXPECT_EQ(way.bytes_staged, few.nbytes());
  EXPECT_EQ(way.bytes_not_staged, 2 * many.nbytes());
  EXPECT_THAT(log.to_w1(),
              ElementsAre(line_of(0, ", from device to device"), HasSubstr("expandable_segments")));
}

TEST_P(DevicesByName, ThatOthersCannotOpenAreErrorsWhereTheyMustGoStraight) {
  start_processes({.workers = 2, .device_to_device = DeviceToDevice::kRequired});
  const InUnnamedMemory unnamed;
  w0().rpc_sync(1, take, numbers(1).to(accelerator(0)));
  const Tensor many = too_many_bytes();
  const Error error = error_of([&] { w0().rpc_sync(1, take, many); });
  EXPECT_EQ(error.code(), Code::kUnavailable) << error.what();
  EXPECT_THAT(error.what(), AllOf(HasSubstr(std::to_string(many.nbytes()) + " bytes"),
                                  HasSubstr("expandable_segments")));
}

TEST_P(DevicesByName, AreTriedWithoutTheStreamsOfOthers) {
  const Tensor x = numbers(1).to(accelerator(0));
  std::optional<StalledStream> stalled(std::in_place);
  const auto answer = w0().rpc_async(1, take, x);
  EXPECT_TRUE(way_of(w0(), 0).is_direct);
  stalled.reset();
  answer.wait();
}

TEST_P(DevicesByName, AreTriedOnceByManyThreads) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      EXPECT_TRUE(w0().rpc_sync(1, is_numbers, numbers(thread).to(accelerator(0)), thread));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(w0().routes().at(0).devices.size(), 1u);
}

// It lacks the last one of w0's.
ClusterOptions where_w1_has_fewer(DeviceRecord::Maps maps) {
  return {.workers = 2,
          .device_maps = std::move(maps),
          .environment = {with_accelerators(accelerators() - 1)}};
}

TEST_P(DevicesByName, ThatTheOtherWorkerLacksNeedAnEntryWhichTheErrorNames) {
  if (accelerators() < 2) GTEST_SKIP() << kNeedsTwo;
  start_processes(where_w1_has_fewer({}));
  const int last = accelerators() - 1;
  EXPECT_EQ(w0().rpc_sync(1, device_of, numbers(3).to(accelerator(0))), 0);
  const auto names_w1 = AllOf(HasSubstr("worker 'w1'"), HasSubstr("set("));
  const Tensor x = numbers(3).to(accelerator(last));
  const Error error = error_of([&] { w0().rpc_sync(1, take, x); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.what(), names_w1);
  EXPECT_THAT(w0().rpc_sync(1, why_not_from_w0, last), names_w1) << "of what it asks w0 for";
}

TEST_P(DevicesByName, ThatTheOtherWorkerLacksArriveWhereTheMapSays) {
  if (accelerators() < 2) GTEST_SKIP() << kNeedsTwo;
  const int last = accelerators() - 1;
  start_processes(where_w1_has_fewer({{"w1", {{cuda(last), cuda(0)}}}}));
  const Tensor x = numbers(3).to(accelerator(last));
  EXPECT_EQ(w0().rpc_sync(1, device_of, x), 0);
  const Tensor back = w0().rpc_sync(1, copied, x);
  EXPECT_EQ(back.device(), accelerator(last));
  EXPECT_TRUE(is(back, numbers(3)));
}

TEST_P(DevicesByName, SayWhereTheOtherProcessDoesNotSeeTheDevice) {
  if (accelerators() < 2) GTEST_SKIP() << kNeedsTwo;
  const int last = accelerators() - 1;
  start_processes(where_w1_has_fewer({{"w1", {{cuda(last), cuda(0)}}}}));
  const Unopened arguments(w0(), 1);
  w0().rpc_sync(1, take, numbers(1).to(accelerator(last)));
  EXPECT_THAT(way_of(w0(), last).why_not_direct,
              AllOf(HasSubstr("cannot be opened"), HasSubstr("does not see device ")));
}

// What a worker says of itself decides, and so does what it asks for.
class DeviceWays : public DeviceTensors {};

TEST_P(DeviceWays, MayBeForbiddenByEither) {
  const bool is_near = GetParam().reach == DeviceRoom::Reach::kSameProcess;
  for (const bool by_w0 : {true, false}) {
    const auto forbidden = DeviceToDevice::kForbidden, allowed = DeviceToDevice::kAllowed;
    use({}, {}, by_w0 ? forbidden : allowed, by_w0 ? allowed : forbidden);
    const Tensor x = numbers(7).to(accelerator(0));
    EXPECT_EQ(w0().rpc_sync(1, device_of, x), 0);
    EXPECT_TRUE(is(w0().rpc_sync(1, copied, x), numbers(7)));
    EXPECT_EQ(way_of(w0(), 0).why_not_direct, by_w0     ? "this worker does not allow it"
                                              : is_near ? "it does not allow it"
                                                        : "another host");
    EXPECT_FALSE(way_of(w1(), 0).is_direct) << "back";
    EXPECT_EQ(w0().counters().bytes_of_devices + w1().counters().bytes_of_devices, 0u);
  }
}

TEST_P(DeviceWays, ThatAreRequiredAndCannotBeHadAreErrors) {
  use({}, {}, DeviceToDevice::kRequired, DeviceToDevice::kForbidden);
  const Tensor x = numbers(7).to(accelerator(0));
  for (int round = 0; round < 2; ++round) {
    const Error error = error_of([&] { w0().rpc_sync(1, take, x); });
    EXPECT_EQ(error.code(), Code::kUnavailable);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("a tensor on cuda:0 cannot go straight to cuda:0 of "
                                              "worker 'w1': "),
                                    HasSubstr("DeviceToDevice::kAllowed")));
  }
  EXPECT_TRUE(is(w0().rpc_sync(1, on_device, 0, 5), numbers(5))) << "of what w0 sends";
  EXPECT_EQ(w0().rpc_sync(1, device_of, x.cpu()), -1);
}

TEST_P(DeviceWays, ThatAreMappedToTheProcessorAreNoErrors) {
  use({{"w1", {{cuda(0), cpu}}}}, {}, DeviceToDevice::kRequired);
  EXPECT_EQ(w0().rpc_sync(1, device_of, numbers(7).to(accelerator(0))), -1);
}

INSTANTIATE_TEST_SUITE_P(EachWay, DevicesByName, ::testing::Values(kByName), name_of_way);
INSTANTIATE_TEST_SUITE_P(EachWay, DeviceWays, ::testing::Values(kSameProcess, kByHost),
                         name_of_way);
INSTANTIATE_TEST_SUITE_P(EachWay, DeviceTensors, ::testing::Values(kSameProcess, kByName, kByHost),
                         name_of_way);
INSTANTIATE_TEST_SUITE_P(EachWay, LentDeviceTensors, ::testing::Values(kSameProcess, kByName),
                         name_of_way);
INSTANTIATE_TEST_SUITE_P(EachWay, DeviceMaps, ::testing::Values(kSameProcess, kByName, kByHost),
                         name_of_way);

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) { return farspan::testing::run_device_tests(argc, argv); }
