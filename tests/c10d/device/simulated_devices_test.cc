// The rules under test: c10d/device/simulated/simulated.h: what goes well on real devices by luck
// only fails here. What all devices do is in tests/conformance/device_conformance_test.cc.
#include <farspan/c10d/device/simulated/simulated.h>

#include <gmock/gmock.h>

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/mutex.h>

#include "c10d/device/held_stream.h"

namespace farspan::testing {
namespace {

using device::make_simulated_devices;
using device::Reach;
using device::SimulatedDevices;
using device::Stream;
using std::chrono::seconds;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr size_t kBytes = 1000;

void finish(SimulatedDevices& devices, Stream stream) {
  ASSERT_TRUE(devices.synchronize(stream, Deadline::after(seconds(20))));
}

std::vector<std::byte> read(SimulatedDevices& devices, Stream stream, const void* from) {
  std::vector<std::byte> got(kBytes);
  devices.copy(stream, got.data(), from, got.size());
  finish(devices, stream);
  return got;
}

class SimulatedDevicesTest : public ::testing::Test {
 protected:
  std::unique_ptr<SimulatedDevices> devices_ = make_simulated_devices({.memory = 1 << 20});
  const Stream stream_ = devices_->new_stream(0);
};

TEST_F(SimulatedDevicesTest, ReleasedMemoryIsNotCopied) {
  void* const memory = devices_->allocate(0, kBytes);
  devices_->release(memory);
  const auto got = read(*devices_, stream_, memory);
  EXPECT_THAT(got, Each(std::byte{0}));
  devices_->copy(stream_, memory, got.data(), got.size());
  finish(*devices_, stream_);
  EXPECT_THAT(devices_->faults(), ElementsAre(HasSubstr("copy from memory that was released"),
                                              HasSubstr("copy to memory that was released")));
}

// By whoever allocates next: a real allocator gives it out as it was.
TEST_F(SimulatedDevicesTest, ACopyThatComesTooLateFindsWhatCameAfter) {
  auto* const before = static_cast<std::byte*>(devices_->allocate(0, kBytes));
  const std::vector<std::byte> sent(kBytes, std::byte{1});
  devices_->copy(stream_, before, sent.data(), kBytes);
  finish(*devices_, stream_);
  devices_->release(before);
  void* const after = devices_->allocate(0, kBytes);
  EXPECT_EQ(after, before);
  EXPECT_NE(read(*devices_, stream_, before), sent);
  EXPECT_THAT(devices_->faults(), IsEmpty());
  devices_->release(after);
}

TEST_F(SimulatedDevicesTest, ACopyBeyondTheEndIsAFault) {
  auto* const memory = static_cast<std::byte*>(devices_->allocate(0, kBytes));
  const size_t whole = devices_->region_of(memory).bytes;
  read(*devices_, stream_, memory + whole - kBytes);
  EXPECT_THAT(devices_->faults(), IsEmpty());
  read(*devices_, stream_, memory + whole - kBytes + 1);
  EXPECT_THAT(devices_->faults(), ElementsAre(HasSubstr("beyond the end")));
  devices_->release(memory);
}

TEST_F(SimulatedDevicesTest, WhatIsEndedTwiceIsAFault) {
  void* const memory = devices_->allocate(0, kBytes);
  const Stream stream = devices_->new_stream(1);
  const device::Event event = devices_->new_event(0, Reach::kThisProcess);
  for (int i = 0; i < 2; ++i) {
    devices_->release(memory);
    devices_->end_stream(stream);
    devices_->end_event(event);
  }
  devices_->close_memory(memory);
  EXPECT_THAT(devices_->faults(),
              ElementsAre("release of what is no allocation", "end of what is no stream",
                          "end of what is no event", "close of what was not opened"));
}

TEST_F(SimulatedDevicesTest, CountsWhatIsInUse) {
  EXPECT_EQ(devices_->streams(), 1u);
  void* const memory = devices_->allocate(1, kBytes);
  EXPECT_EQ(devices_->allocated(0), 0u);
  EXPECT_GE(devices_->allocated(1), kBytes);
  const device::Event event = devices_->new_event(0, Reach::kThisHost);
  EXPECT_EQ(devices_->events(), 1u);
  devices_->release(memory);
  devices_->end_event(event);
  devices_->end_stream(stream_);
  EXPECT_EQ(devices_->allocated(1), 0u);
  EXPECT_EQ(devices_->events(), 0u);
  EXPECT_EQ(devices_->streams(), 0u);
}

TEST_F(SimulatedDevicesTest, ADeviceHasSoMuchMemoryOnly) {
  void* const most = devices_->allocate(0, (1 << 20) - 512);
  EXPECT_THROW(devices_->allocate(0, 1024), Error);
  devices_->release(devices_->allocate(1, 1024));
  devices_->release(most);
  devices_->release(devices_->allocate(0, 1024));
}

TEST_F(SimulatedDevicesTest, AProcessCannotOpenWhatIsItsOwn) {
  void* const memory = devices_->allocate(0, kBytes);
  const device::Event event = devices_->new_event(0, Reach::kThisHost);
  EXPECT_THROW(devices_->open_memory(0, devices_->name_memory(memory)), Error);
  EXPECT_THROW(devices_->open_event(0, devices_->name_event(event)), Error);
  devices_->end_event(event);
  devices_->release(memory);
}

TEST_F(SimulatedDevicesTest, AnEventOfOneProcessHasNoName) {
  const device::Event event = devices_->new_event(0, Reach::kThisProcess);
  EXPECT_THROW(devices_->name_event(event), Error);
  devices_->end_event(event);
}

// So that code which touches device memory by itself fails without a GPU, too.
TEST(SimulatedDevicesDeathTest, DeviceMemoryIsNotTheProcessors) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        const auto devices = make_simulated_devices();
        auto* const memory = static_cast<volatile char*>(devices->allocate(0, kBytes));
        memory[0] = 1;
      },
      "");
}

// Two streams that nothing orders; the seed decides which one is last.
std::string order_of(uint64_t seed) {
  const auto devices = make_simulated_devices({.seed = seed});
  const Stream one = devices->new_stream(0), two = devices->new_stream(0);
  Mutex mutex;
  std::string order;
  // So that both have all their work before they begin: else the pace at which it is given, on a
  // busy machine, is the order.
  std::optional<HeldStream> held_one(std::in_place, *devices, one);
  std::optional<HeldStream> held_two(std::in_place, *devices, two);
  for (int i = 0; i < 8; ++i) {
    for (const auto& [stream, letter] : {std::pair{one, 'a'}, std::pair{two, 'b'}}) {
      devices->then(stream, [&mutex, &order, letter = letter] {
        MutexLock lock(mutex);
        order += letter;
      });
    }
  }
  held_one.reset();
  held_two.reset();
  finish(*devices, one);
  finish(*devices, two);
  return order;
}

TEST(SimulatedDevices, WhatNothingOrdersComesInManyOrders) {
  std::set<std::string> orders;
  for (uint64_t seed = 1; seed <= 1000 && orders.size() < 2; ++seed) orders.insert(order_of(seed));
  EXPECT_GT(orders.size(), 1u);
}

}  // namespace
}  // namespace farspan::testing
