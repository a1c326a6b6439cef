// The rules under test: c10d/device/device_map.h.
#include <farspan/c10d/device/device_map.h>

#include <gmock/gmock.h>

#include <functional>
#include <string>

#include <farspan/c10d/base/error.h>

namespace farspan::testing {
namespace {

using device::cpu;
using device::cuda;
using device::DeviceMap;
using ::testing::HasSubstr;

std::string refused(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return error.what();
  }
  return "not refused";
}

TEST(DeviceMap, ByDefaultTheNumberIsTheSame) {
  const DeviceMap map;
  EXPECT_TRUE(map.is_default());
  for (const auto place : {cpu, cuda(0), cuda(7)}) {
    EXPECT_EQ(map.there("ps", place), place);
    EXPECT_EQ(map.here("ps", place), place);
  }
}

TEST(DeviceMap, EntriesHoldBothWays) {
  const DeviceMap map{{cuda(0), cuda(1)}, {cuda(1), cuda(0)}};
  EXPECT_EQ(map.there("ps", cuda(0)), cuda(1));
  EXPECT_EQ(map.here("ps", cuda(1)), cuda(0));
  EXPECT_EQ(map.there("ps", cpu), cpu);
  EXPECT_EQ(map.here("ps", cpu), cpu);
}

TEST(DeviceMap, TheCpuCanBeMappedToADevice) {
  const DeviceMap map{{cpu, cuda(2)}};
  EXPECT_EQ(map.there("ps", cpu), cuda(2));
  EXPECT_EQ(map.here("ps", cuda(2)), cpu);
}

TEST(DeviceMap, AMissingEntryIsSaidWithTheLineToAdd) {
  const DeviceMap map{{cuda(0), cuda(1)}};
  EXPECT_THAT(refused([&] { map.there("ps", cuda(3)); }),
              AllOf(HasSubstr("'ps'"), HasSubstr("a tensor on cuda:3"),
                    HasSubstr(R"(options.device_maps["ps"].set(cuda(3), cuda(..));)")));
  EXPECT_THAT(refused([&] { map.here("ps", cuda(0)); }),
              AllOf(HasSubstr("a tensor from cuda:0 there"),
                    HasSubstr(R"(options.device_maps["ps"].set(cuda(..), cuda(0));)")));
}

TEST(DeviceMap, TwoOfOneAreRefused) {
  EXPECT_THAT(refused([] {
                DeviceMap{{cuda(0), cuda(1)}, {cuda(0), cuda(2)}};
              }),
              HasSubstr("cuda:0 is mapped twice: to cuda:1 and to cuda:2"));
  EXPECT_THAT(refused([] {
                DeviceMap{{cuda(0), cuda(1)}, {cuda(2), cuda(1)}};
              }),
              HasSubstr("cuda:0 and cuda:2 are both mapped to cuda:1"));
}

TEST(DeviceMap, DevicesThatAreNotThereAreNamed) {
  const DeviceMap map{{cuda(1), cuda(4)}};
  map.check("ps", 2, 5);
  EXPECT_THAT(refused([&] { map.check("ps", 1, 5); }),
              HasSubstr("cuda:1 is in the device map, and this worker has 1 device"));
  EXPECT_THAT(refused([&] { map.check("ps", 2, 4); }),
              HasSubstr("cuda:4 is in the device map, and worker 'ps' has 4 devices"));
  EXPECT_THAT(refused([&] { map.check("ps", 2, 0); }), HasSubstr("has no devices"));
  EXPECT_THAT(refused([] {
                DeviceMap{{cuda(-2), cpu}}.check("ps", 1, 1);
              }),
              HasSubstr("cuda:-2 is in the device map"));
  DeviceMap().check("ps", 0, 0);
}

}  // namespace
}  // namespace farspan::testing
