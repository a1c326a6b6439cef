// The rules under test: rpc/device/device_room.h: what workers tell each other of their devices,
// and which maps a start is refused for.
#include <farspan/rpc/device/device_room.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include <farspan/c10d/store/hash_store.h>
#include <farspan/rpc/init/init.h>

#include "support/accelerator.h"
#include "support/errors.h"
#include "support/workers.h"

namespace farspan::testing {
namespace {

using device::cpu;
using device::cuda;
using ::testing::AllOf;
using ::testing::HasSubstr;

DeviceRecord with_devices(int count, DeviceRecord::Maps maps = {}) {
  DeviceRecord record{"simulated", "host", "process", "4711.23", {}, std::move(maps)};
  for (int i = 0; i < count; ++i) record.uuids.push_back("SIM-" + std::to_string(i));
  return record;
}

void expect_read_as_written(const DeviceRecord& written) {
  const DeviceRecord read = DeviceRecord::from_text(written.to_text());
  EXPECT_EQ(read.kind, written.kind);
  EXPECT_EQ(read.host, written.host);
  EXPECT_EQ(read.process, written.process);
  EXPECT_EQ(read.mark, written.mark);
  EXPECT_EQ(read.uuids, written.uuids);
  EXPECT_TRUE(read.maps == written.maps) << read.to_text();
}

TEST(DeviceRecord, IsReadAsItWasWrittenWithItsMaps) {
  expect_read_as_written(with_devices(3, {{"ps", {{cuda(0), cuda(1)}, {cuda(1), cuda(0)}}},
                                          {"trainer:1", {{cuda(2), cpu}, {cpu, cuda(7)}}},
                                          {"w1", {}}}));
  expect_read_as_written(with_devices(1));
  expect_read_as_written({});
}

TEST(DeviceRecord, ThatEndsTooEarlyIsRefused) {
  std::string text = with_devices(2, {{"w1", {{cuda(0), cuda(1)}}}}).to_text();
  DeviceRecord::from_text(text);
  for (size_t end = text.rfind(' '); end != std::string::npos; end = text.rfind(' ')) {
    text.resize(text.find_last_of(' ', end - 1) + 1);
    EXPECT_EQ(code_of([&] { DeviceRecord::from_text(text); }), Code::kCorrupt) << text;
  }
}

TEST(DeviceRecord, ThatNobodyCouldReadIsNotMade) {
  for (const int none : {5000, -2}) {
    const Error error = error_of([&] {
      DeviceRecord::of_this_process({{"w1", {{cuda(none), cuda(0)}}}});
    });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("cuda:" + std::to_string(none) + " to cuda:0"),
                                    HasSubstr("worker 'w1'")));
  }
}

TEST(DeviceRecord, ThatMapsADeviceTwiceIsRefused) {
  std::string text = with_devices(2, {{"w1", {{cuda(0), cuda(1)}, {cuda(1), cuda(0)}}}}).to_text();
  const size_t last = text.rfind("1 0");
  ASSERT_NE(last, std::string::npos) << text;
  text.replace(last, 3, "0 0");
  EXPECT_EQ(code_of([&] { DeviceRecord::from_text(text); }), Code::kCorrupt) << text;
}

// Why w0 cannot have these devices and maps beside a w1 of so many devices.
std::string why_not_installed(const DeviceRecord& w0, int devices_of_w1) {
  Workers workers;
  const Error error = error_of([&] {
    DeviceRoom::install(workers[0], {w0, with_devices(devices_of_w1)});
  });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  return error.what();
}

TEST(DeviceMapsOfAWorker, OfAWorkerThatThereIsNotAreRefused) {
  EXPECT_THAT(why_not_installed(with_devices(2, {{"w7", {{cuda(0), cuda(0)}}}}), 2),
              HasSubstr("no worker called 'w7'"));
}

TEST(DeviceMapsOfAWorker, OfDevicesThatEitherOfBothLacksAreRefused) {
  EXPECT_THAT(why_not_installed(with_devices(3, {{"w1", {{cuda(0), cuda(2)}}}}), 2),
              AllOf(HasSubstr("cuda:2"), HasSubstr("worker 'w1' has 2 devices")));
  EXPECT_THAT(why_not_installed(with_devices(2, {{"w1", {{cuda(2), cuda(0)}}}}), 3),
              AllOf(HasSubstr("cuda:2"), HasSubstr("this worker has 2 devices")));
}

TEST(DeviceMapsOfAWorker, WhereOneOfBothHasNoDevicesAreRefused) {
  EXPECT_THAT(why_not_installed(with_devices(2, {{"w1", {{cuda(0), cpu}}}}), 0),
              AllOf(HasSubstr("worker 'w1'"), HasSubstr("that one has no devices")));
  EXPECT_THAT(why_not_installed(with_devices(0, {{"w1", {{cpu, cuda(0)}}}}), 2),
              AllOf(HasSubstr("worker 'w1'"), HasSubstr("this worker has no devices")));
}

TEST(DeviceMapsOfAWorker, ThatAreTheDefaultNeedNoDevices) {
  Workers workers;
  EXPECT_NO_THROW(
      DeviceRoom::install(workers[0], {with_devices(0, {{"w1", {}}}), with_devices(0)}));
}

// A world of one, whose worker has maps for calls to itself.
class StartWithMaps : public ::testing::Test {
 protected:
  StartWithMaps() { accelerators(); }

  static void start(const std::string& callee, device::DeviceMap map) {
    WorkerOptions options;
    options.rank = 0;
    options.world_size = 1;
    options.store = std::make_shared<dist::HashStore>();
    options.device_maps[callee] = std::move(map);
    init_rpc("w0", options);
    shutdown();
  }
  static std::string refused(const std::string& callee, const device::DeviceMap& map) {
    const Error error = error_of([&] { start(callee, map); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
};

TEST_F(StartWithMaps, IsRefusedByAnErrorThatNamesWhatIsNotThere) {
  EXPECT_THAT(refused("w7", {{cuda(0), cuda(0)}}), HasSubstr("no worker called 'w7'"));
  EXPECT_THAT(refused("no name", {{cuda(0), cuda(0)}}), HasSubstr("'no name' is no name"));
  EXPECT_THAT(refused("w0", {{cuda(0), cuda(3)}}),
              AllOf(HasSubstr("cuda:3"), HasSubstr("worker 'w0' has 3 devices")));
  EXPECT_THAT(refused("w0", {{cuda(0), cuda(5000)}}),
              AllOf(HasSubstr("cuda:5000"), HasSubstr("worker 'w0'")));
}

TEST_F(StartWithMaps, MayBeTriedAgainWithAnotherOne) {
  refused("w0", {{cuda(0), cuda(3)}});
  start("w0", {{cuda(0), cuda(2)}});
}

}  // namespace
}  // namespace farspan::testing
