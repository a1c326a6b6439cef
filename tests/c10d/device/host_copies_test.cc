// The rules under test: c10d/device/host_copies.h.
#include <farspan/c10d/device/host_copies.h>

#include <gmock/gmock.h>

#include <memory>
#include <random>
#include <thread>
#include <vector>

#include <farspan/c10d/device/simulated/simulated.h>

#include "c10d/device/held_stream.h"
#include "support/eventually.h"

namespace farspan::testing {
namespace {

using device::HostCopies;
using device::Stream;
using End = HostCopies::End;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::IsEmpty;
using Bytes = std::vector<std::byte>;

constexpr size_t kBlock = 1000;

Bytes filled(size_t bytes, uint64_t seed) {
  Bytes made(bytes);
  std::mt19937_64 random(seed);
  for (std::byte& byte : made) byte = static_cast<std::byte>(random());
  return made;
}

// The parameter is the seed of how late each piece of work comes.
class HostCopiesTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  HostCopiesTest() : devices_(device::make_simulated_devices({.seed = GetParam()})) {}
  ~HostCopiesTest() override { EXPECT_THAT(devices_->faults(), IsEmpty()); }

  // A stream, and memory of the device.
  struct Place {
    Place(device::Devices& of, size_t bytes)
        : devices(of), stream(of.new_stream(0)), memory(of.allocate(0, bytes)) {}
    ~Place() {
      devices.synchronize(stream, Deadline::never());
      devices.end_stream(stream);
      devices.release(memory);
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    device::Devices& devices;
    const Stream stream;
    void* const memory;
  };
  static Deadline soon() { return Deadline::after(seconds(20)); }

  const std::unique_ptr<device::SimulatedDevices> devices_;
};
INSTANTIATE_TEST_SUITE_P(Seeds, HostCopiesTest, ::testing::Range(uint64_t{1}, uint64_t{6}));

TEST_P(HostCopiesTest, BringAllBytesThereAndBack) {
  HostCopies copies(*devices_, {.block = kBlock, .blocks = 4});
  for (const size_t bytes : {size_t{0}, size_t{1}, kBlock - 1, kBlock, kBlock + 1, 2 * kBlock,
                             7 * kBlock + 3, 10 * kBlock}) {
    const Place place(*devices_, std::max<size_t>(bytes, 1));
    Bytes sent = filled(bytes, bytes), back(bytes);
    EXPECT_EQ(copies.to_device(place.stream, place.memory, sent.data(), bytes, soon()), End::kDone);
    const Bytes expected = std::exchange(sent, Bytes(bytes));  // it is the caller's again
    EXPECT_EQ(copies.from_device(place.stream, back.data(), place.memory, bytes, soon()),
              End::kDone);
    EXPECT_EQ(back, expected) << bytes << " bytes";
  }
  EXPECT_LE(copies.blocks(), 4u);
}

TEST_P(HostCopiesTest, GoOnWithOneBlockWhereThereIsNoOther) {
  HostCopies copies(*devices_, {.block = kBlock, .blocks = 1});
  const Place place(*devices_, 5 * kBlock);
  const Bytes sent = filled(5 * kBlock, 1);
  Bytes back(5 * kBlock);
  EXPECT_EQ(copies.to_device(place.stream, place.memory, sent.data(), sent.size(), soon()),
            End::kDone);
  devices_->synchronize(place.stream, soon());
  EXPECT_TRUE(eventually([&] {
    return copies.from_device(place.stream, back.data(), place.memory, back.size(), soon()) ==
           End::kDone;
  }));
  EXPECT_EQ(back, sent);
}

TEST_P(HostCopiesTest, EndAtTheirDeadlineAndLeaveTheMemoryAlone) {
  HostCopies copies(*devices_, {.block = kBlock, .blocks = 4});
  const Place place(*devices_, 5 * kBlock);
  Bytes back(5 * kBlock), sent = filled(5 * kBlock, 2);
  {
    const HeldStream held(*devices_, place.stream);
    const Deadline deadline = Deadline::after(milliseconds(30));
    EXPECT_EQ(copies.from_device(place.stream, back.data(), place.memory, back.size(), deadline),
              End::kLate);
    EXPECT_EQ(copies.to_device(place.stream, place.memory, sent.data(), sent.size(), deadline),
              End::kLate);
    // Expect: those are in use until the stream has passed them.
    EXPECT_EQ(copies.from_device(place.stream, back.data(), place.memory, 1, soon()), End::kNoRoom);
  }
  devices_->synchronize(place.stream, soon());
  EXPECT_EQ(back, Bytes(5 * kBlock)) << "it was the caller's again";
  EXPECT_TRUE(eventually([&] {
    return copies.to_device(place.stream, place.memory, sent.data(), sent.size(), soon()) ==
           End::kDone;
  }));
  EXPECT_LE(copies.blocks(), 4u);
}

TEST_P(HostCopiesTest, WhatFitsIntoTwoBlocksWaitsForNoStream) {
  HostCopies copies(*devices_, {.block = kBlock, .blocks = 4});
  const Place place(*devices_, 2 * kBlock);
  Bytes sent = filled(2 * kBlock, 3), back(2 * kBlock);
  const Bytes expected = sent;
  {
    const HeldStream held(*devices_, place.stream);
    EXPECT_EQ(copies.to_device(place.stream, place.memory, sent.data(), sent.size(),
                               Deadline::after(seconds(0))),
              End::kDone);
    sent.assign(sent.size(), std::byte{1});
  }
  EXPECT_EQ(copies.from_device(place.stream, back.data(), place.memory, back.size(), soon()),
            End::kDone);
  EXPECT_EQ(back, expected);
}

TEST_P(HostCopiesTest, KeepNoBlocksThatAreIdle) {
  HostCopies copies(*devices_, {.block = kBlock, .blocks = 4});
  EXPECT_EQ(copies.release_idle(Clock::now()), TimePoint::max());
  const Place place(*devices_, 2 * kBlock);
  Bytes back(2 * kBlock);
  {
    const HeldStream held(*devices_, place.stream);
    EXPECT_EQ(copies.to_device(place.stream, place.memory, back.data(), 1, soon()), End::kDone);
    EXPECT_NE(copies.release_idle(Clock::now() + HostCopies::kIdle), TimePoint::max());
    EXPECT_EQ(copies.blocks(), 1u) << "a device reads it";
  }
  EXPECT_EQ(copies.from_device(place.stream, back.data(), place.memory, back.size(), soon()),
            End::kDone);
  EXPECT_NE(copies.release_idle(Clock::now()), TimePoint::max());
  EXPECT_GE(copies.blocks(), 2u);
  EXPECT_TRUE(eventually(
      [&] { return copies.release_idle(Clock::now() + HostCopies::kIdle) == TimePoint::max(); }));
  EXPECT_EQ(copies.blocks(), 0u);
}

TEST_P(HostCopiesTest, OfManyThreadsAtOnceShareTheBlocks) {
  HostCopies copies(*devices_, {.block = kBlock, .blocks = 5});
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const Place place(*devices_, 4 * kBlock);
      for (uint64_t round = 0; round < 20; ++round) {
        const Bytes sent = filled(4 * kBlock, thread * 100 + round);
        Bytes back(sent.size());
        const auto to = [&] {
          return copies.to_device(place.stream, place.memory, sent.data(), sent.size(), soon());
        };
        const auto from = [&] {
          return copies.from_device(place.stream, back.data(), place.memory, back.size(), soon());
        };
        EXPECT_TRUE(eventually([&] { return to() == End::kDone; }));
        EXPECT_TRUE(eventually([&] { return from() == End::kDone; }));
        EXPECT_EQ(back, sent);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_LE(copies.blocks(), 5u);
}

}  // namespace
}  // namespace farspan::testing
