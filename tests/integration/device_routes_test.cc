// How tensors of devices get to another worker: rpc/device/README.md, "A tensor's way".
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <farspan/rpc/device/accelerator.h>
#include <farspan/rpc/rpc.h>

#include "integration/device_workers.h"
#include "support/errors.h"
#include "support/eventually.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using device::cpu;
using device::cuda;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using DeviceRoutes = DeviceWorkers;
class DevicesByName : public DeviceWorkers {};
// What a worker says of itself decides, and so does what it asks for.
class DeviceWays : public DeviceWorkers {};

// Of a call of w1's own, to w0.
std::string why_not_from_w0(int64_t device) {
  return error_of([&] { rpc_sync(0, on_device, device, 3); }).what();
}
FARSPAN_REGISTER_AS("routes.why_not_from_w0", why_not_from_w0);

std::string uuid_of(const Tensor& x) {
  return registered_accelerator()->devices->uuid(x.get_device());
}
FARSPAN_REGISTER_AS("routes.uuid_of", uuid_of);

void use_a_device() { numbers(1).to(accelerator(0)); }
FARSPAN_REGISTER_AS("routes.use_a_device", use_a_device);

void call_from_there(int64_t rank) { rpc_sync(static_cast<int>(rank), bytes_of_devices); }
FARSPAN_REGISTER_AS("routes.call_from_there", call_from_there);

bool uses_a_device() {
  return at::globalContext()
      .getAcceleratorHooksInterface(accelerator(0).type())
      .hasPrimaryContext(0);
}
FARSPAN_REGISTER_AS("routes.uses_a_device", uses_a_device);

// The first of this process's.
std::vector<int> numbers_of_accelerators(int count) {
  std::vector<int> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

TEST_P(DeviceRoutes, SayInTheLogOnceHowTheyGo) {
  const LoggedWays log;
  for (int round = 0; round < 3; ++round) {
    for (const int device : some_devices())
      w0().rpc_sync(1, take, numbers(1).to(accelerator(device)));
  }
  const std::string way = GetParam().reach == DeviceRoom::Reach::kByHost
                              ? " through the processor's memory: another host"
                              : ", from device to device";
  for (const int device : some_devices()) {
    EXPECT_THAT(log.to_w1(), Contains(line_of(device, way)).Times(1));
  }
}

TEST_P(DeviceRoutes, SayHowTheyGo) {
  if (accelerators() < 2) GTEST_SKIP() << kNeedsTwo;
  EXPECT_EQ(way_of(w0(), 0).why_not_direct, "not known");
  const Tensor x = numbers(1).to(accelerator(0)), y = numbers(1).to(accelerator(1));
  for (int round = 0; round < 3; ++round) {
    w0().rpc_sync(1, copied, x);
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

TEST_P(DevicesByName, AreTriedBeforeTheFirstTensorWhereMapsNameThem) {
  start_processes({.workers = 2, .device_maps = {{"w1", {{cuda(0), cuda(0)}}}}});
  w0().rpc_sync(1, bytes_of_devices);
  EXPECT_TRUE(eventually([&] { return way_of(w0(), 0).is_direct; }));
  EXPECT_TRUE(eventually([&] { return w0().rpc_sync(1, way_back).empty(); })) << "and back";
  EXPECT_EQ(w0().routes().at(0).devices.size(), 1u);
}

TEST_P(DevicesByName, AreTriedBeforeTheFirstTensorWhereBothUseThem) {
  start_processes({.workers = 3});
  for (const int rank : {1, 2}) w0().rpc_sync(rank, use_a_device);
  w0().rpc_sync(1, call_from_there, 2);
  for (const int rank : {1, 2}) {
    EXPECT_TRUE(eventually([&] { return w0().rpc_sync(rank, way_back).empty(); })) << rank;
  }
}

// What is tried is used, which takes memory of the device.
TEST_P(DevicesByName, AreNotTriedBeforeTheFirstTensorWhereOneDoesNotUseThem) {
  start_processes({.workers = 3});
  w0().rpc_sync(2, use_a_device);
  for (int call = 0; call < 20; ++call) w0().rpc_sync(1, call_from_there, 2);
  EXPECT_EQ(w0().rpc_sync(1, way_back), "not known") << "of all";
  EXPECT_FALSE(w0().rpc_sync(1, uses_a_device));
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
          .environment = {with_accelerators(numbers_of_accelerators(accelerators() - 1))}};
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

// Each worker counts the devices that its process sees.
TEST_P(DevicesByName, AreThoseThatEachProcessSeesInItsOwnOrder) {
  if (accelerators() < 2) GTEST_SKIP() << kNeedsTwo;
  std::vector<int> turned = numbers_of_accelerators(accelerators());
  std::ranges::reverse(turned);
  const int last = accelerators() - 1;
  start_processes({.workers = 2,
                   .device_maps = {{"w1", {{cuda(0), cuda(last)}, {cuda(last), cuda(0)}}}},
                   .environment = {with_accelerators(turned)}});
  for (const int here : {0, last}) {
    const Tensor x = numbers(3).to(accelerator(here));
    EXPECT_EQ(w0().rpc_sync(1, uuid_of, x), uuid_of(x)) << "the same one, by another number";
    const Tensor back = w0().rpc_sync(1, copied, x);
    EXPECT_EQ(back.device(), accelerator(here));
    EXPECT_TRUE(is(back, numbers(3)));
    EXPECT_TRUE(way_of(w0(), here).is_direct) << way_of(w0(), here).why_not_direct;
  }
}

TEST_P(DevicesByName, OfWhichTheOtherProcessSeesNoneGoThroughTheProcessor) {
  if (accelerators() < 2) GTEST_SKIP() << kNeedsTwo;
  const int last = accelerators() - 1;
  start_processes({.workers = 2, .environment = {with_accelerators({last})}});
  const Tensor x = numbers(3).to(accelerator(0));
  const std::string there = w0().rpc_sync(1, uuid_of, x);
  EXPECT_EQ(there, uuid_of(numbers(0).to(accelerator(last))));
  EXPECT_TRUE(is(w0().rpc_sync(1, copied, x), numbers(3)));
  // A real one may open it all the same.
  const DeviceRoute way = way_of(w0(), 0);
  if (!way.is_direct) {
    EXPECT_THAT(way.why_not_direct, HasSubstr("its process does not see device " + uuid_of(x)));
  }
  EXPECT_FALSE(way.is_direct && accelerator(0).is_privateuseone());
}

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

INSTANTIATE_TEST_SUITE_P(EachWay, DeviceRoutes, ::testing::Values(kSameProcess, kByName, kByHost),
                         name_of_way);
INSTANTIATE_TEST_SUITE_P(EachWay, DevicesByName, ::testing::Values(kByName), name_of_way);
INSTANTIATE_TEST_SUITE_P(EachWay, DeviceWays, ::testing::Values(kSameProcess, kByHost),
                         name_of_way);

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) { return farspan::testing::run_device_tests(argc, argv); }
