// The rules under test: c10d/device/devices.h, for each kind of devices.
#include <gmock/gmock.h>
#include <signal.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/device/devices.h>

#include "c10d/device/name_text.h"
#include "conformance/devices_of_test.h"
#include "support/eventually.h"
#include "support/processes.h"

namespace farspan::testing {
namespace {

using device::Devices;
using device::Event;
using device::Reach;
using device::Region;
using device::Stream;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr size_t kOdd = (size_t{3} << 20) + 13;

std::vector<std::byte> pattern(size_t bytes, uint32_t seed) {
  std::vector<std::byte> made(bytes);
  uint32_t state = seed * 2'654'435'761u + 1;
  for (std::byte& byte : made) {
    state = state * 1'664'525u + 1'013'904'223u;
    byte = static_cast<std::byte>(state >> 24);
  }
  return made;
}

// Memory of a device that goes with this.
class Block {
 public:
  Block(Devices& devices, int device, size_t bytes)
      : devices_(devices), data_(devices.allocate(device, bytes)) {}
  ~Block() { devices_.release(data_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  Devices& devices_;
  void* const data_;
};

void put(Devices& devices, Stream stream, void* to, const std::vector<std::byte>& bytes) {
  devices.copy(stream, to, bytes.data(), bytes.size());
  ASSERT_TRUE(devices.synchronize(stream, Deadline::after(seconds(20))));
}
std::vector<std::byte> get(Devices& devices, Stream stream, const void* from, size_t bytes) {
  std::vector<std::byte> got(bytes);
  devices.copy(stream, got.data(), from, bytes);
  EXPECT_TRUE(devices.synchronize(stream, Deadline::after(seconds(20))));
  return got;
}

class Device : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    const std::string why = why_no_devices();
    if (!why.empty()) GTEST_SKIP() << why;
    devices_ = make_devices(static_cast<uint64_t>(GetParam()));
    stream_ = devices_->new_stream(0);
    other_ = devices_->new_stream(0);
  }
  void TearDown() override {
    if (!devices_) return;
    devices_->end_stream(stream_);
    devices_->end_stream(other_);
    check_at_the_end(*devices_);
  }

  std::unique_ptr<Devices> devices_;
  Stream stream_, other_;
};

TEST_P(Device, HasAnIdentityOfItsOwn) {
  EXPECT_GT(devices_->count(), 0);
  EXPECT_FALSE(devices_->uuid(0).empty());
  EXPECT_EQ(devices_->uuid(0), devices_->uuid(0));
  for (int device = 1; device < devices_->count(); ++device) {
    EXPECT_NE(devices_->uuid(device), devices_->uuid(0));
  }
}

TEST_P(Device, BytesComeBackAsTheyWent) {
  for (const size_t bytes : {size_t{1}, size_t{255}, size_t{4096}, kOdd}) {
    const Block block(*devices_, 0, bytes);
    const auto sent = pattern(bytes, 1);
    put(*devices_, stream_, block.data(), sent);
    EXPECT_EQ(get(*devices_, stream_, block.data(), bytes), sent) << bytes;
  }
}

TEST_P(Device, AStreamDoesItsWorkInOrder) {
  const Block first(*devices_, 0, kOdd), second(*devices_, 0, kOdd);
  const auto one = pattern(kOdd, 1), two = pattern(kOdd, 2);
  std::vector<std::byte> got(kOdd);
  devices_->copy(stream_, first.data(), one.data(), kOdd);
  devices_->copy(stream_, second.data(), first.data(), kOdd);
  devices_->copy(stream_, first.data(), two.data(), kOdd);
  devices_->copy(stream_, got.data(), second.data(), kOdd);
  ASSERT_TRUE(devices_->synchronize(stream_, Deadline::after(seconds(20))));
  EXPECT_EQ(got, one);
}

TEST_P(Device, AStreamWaitsForAnEventOfAnotherOne) {
  const Block block(*devices_, 0, kOdd);
  const Event written = devices_->new_event(0, Reach::kThisProcess);
  const Event read = devices_->new_event(0, Reach::kThisProcess);
  std::vector<std::byte> got(kOdd);
  for (uint32_t round = 1; round <= 20; ++round) {
    const auto sent = pattern(kOdd, round);
    devices_->wait(stream_, read);  // never recorded in the first round: not at all
    devices_->copy(stream_, block.data(), sent.data(), kOdd);
    devices_->record(written, stream_);
    devices_->wait(other_, written);
    devices_->copy(other_, got.data(), block.data(), kOdd);
    devices_->record(read, other_);
    ASSERT_TRUE(devices_->synchronize(other_, Deadline::after(seconds(20))));
    ASSERT_EQ(got, sent) << "round " << round;
    EXPECT_TRUE(devices_->has_come(written));
    EXPECT_TRUE(devices_->has_come(read));
  }
  devices_->end_event(written);
  devices_->end_event(read);
}

TEST_P(Device, AnEventComesWhenItsStreamDoes) {
  const Event event = devices_->new_event(0, Reach::kThisProcess);
  EXPECT_TRUE(devices_->has_come(event)) << "never recorded";
  Gate gate(*devices_, stream_);
  devices_->record(event, stream_);
  EXPECT_FALSE(devices_->has_come(event));
  devices_->wait(other_, event);
  EXPECT_FALSE(devices_->synchronize(other_, Deadline::after(milliseconds(50))));
  gate.open();
  EXPECT_TRUE(devices_->synchronize(other_, Deadline::after(seconds(20))));
  EXPECT_TRUE(devices_->has_come(event));
  devices_->end_event(event);
}

TEST_P(Device, WhoWaitsForAnEventDoesNotMindThatItIsRecordedAnewElsewhere) {
  const Event event = devices_->new_event(0, Reach::kThisProcess);
  const Stream free = devices_->new_stream(0);
  Gate gate(*devices_, stream_);
  devices_->record(event, stream_);
  devices_->wait(other_, event);
  devices_->record(event, free);
  EXPECT_TRUE(devices_->synchronize(free, Deadline::after(seconds(20))));
  EXPECT_FALSE(devices_->synchronize(other_, Deadline::after(milliseconds(50))));
  gate.open();
  EXPECT_TRUE(devices_->synchronize(other_, Deadline::after(seconds(20))));
  devices_->end_stream(free);
  devices_->end_event(event);
}

TEST_P(Device, IsToldWhenAStreamHasComeSoFar) {
  const Block block(*devices_, 0, kOdd);
  const auto sent = pattern(kOdd, 3);
  std::vector<std::byte> got(kOdd);
  std::atomic<bool> told{false}, was_whole{false};
  devices_->copy(stream_, block.data(), sent.data(), kOdd);
  devices_->copy(stream_, got.data(), block.data(), kOdd);
  devices_->then(stream_, [&] {
    was_whole = got == sent;
    told = true;
  });
  EXPECT_TRUE(eventually([&] { return told.load(); }));
  EXPECT_TRUE(was_whole);
}

TEST_P(Device, WhatIsQueuedIsDoneAfterTheStreamHasEnded) {
  const Block block(*devices_, 0, kOdd);
  const auto sent = pattern(kOdd, 4);
  const Stream short_lived = devices_->new_stream(0);
  std::atomic<bool> told{false};
  devices_->copy(short_lived, block.data(), sent.data(), kOdd);
  devices_->then(short_lived, [&] { told = true; });
  devices_->end_stream(short_lived);
  EXPECT_TRUE(eventually([&] { return told.load(); }));
  EXPECT_EQ(get(*devices_, stream_, block.data(), kOdd), sent);
}

TEST_P(Device, KnowsTheRegionOfAnAddress) {
  const Block block(*devices_, 0, kOdd);
  const Region region = devices_->region_of(block.data() + kOdd / 2);
  EXPECT_EQ(region.device, 0);
  EXPECT_LE(region.base, block.data());
  EXPECT_GE(region.base + region.bytes, block.data() + kOdd);
  EXPECT_TRUE(region.can_be_named);
  EXPECT_EQ(devices_->region_of(block.data()).id, region.id);
}

TEST_P(Device, AnotherRegionAtTheSamePlaceHasAnotherId) {
  uint64_t before = 0;
  std::byte* place = nullptr;
  for (int i = 0; i < 4; ++i) {
    const Block block(*devices_, 0, kOdd);
    const uint64_t id = devices_->region_of(block.data()).id;
    if (block.data() == place) {
      EXPECT_NE(id, before);
    }
    before = id;
    place = block.data();
  }
}

TEST_P(Device, RefusesWhatIsNotItsOwn) {
  const auto code_of = [](const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& error) {
      return error.code();
    }
    return Code::kOk;
  };
  int on_the_stack = 0;
  EXPECT_EQ(code_of([&] { devices_->region_of(&on_the_stack); }), Code::kInvalidArgument);
  EXPECT_EQ(code_of([&] { devices_->new_stream(devices_->count()); }), Code::kInvalidArgument);
  EXPECT_EQ(code_of([&] { devices_->allocate(-1, 16); }), Code::kInvalidArgument);
  EXPECT_EQ(code_of([&] { devices_->allocate(0, size_t{1} << 50); }), Code::kOverloaded);
  // The failure of one call is not that of the next.
  EXPECT_EQ(code_of([&] { EXPECT_TRUE(devices_->synchronize(stream_, Deadline::never())); }),
            Code::kOk);
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

// Reads the memory of the process that has started it, behind its event.
int import() {
  const auto devices = make_devices(static_cast<uint64_t>(std::stoi(variable("SEED"))));
  const Stream stream = devices->new_stream(0);
  auto* const memory = static_cast<std::byte*>(
      devices->open_memory(0, name_of<device::MemoryName>(variable("MEMORY"))));
  const bool is_same_again =
      devices->open_memory(0, name_of<device::MemoryName>(variable("MEMORY"))) == memory;
  devices->close_memory(memory);
  const Event event = devices->open_event(0, name_of<device::EventName>(variable("EVENT")));
  std::cout << "opened" << std::endl;
  devices->wait(stream, event);
  const size_t offset = std::stoul(variable("OFFSET"));
  std::vector<std::byte> got(kOdd);
  {
    const Block own(*devices, 0, kOdd);
    devices->copy(stream, own.data(), memory + offset, kOdd);
    got = get(*devices, stream, own.data(), kOdd);
  }
  const bool can_be_named = devices->region_of(memory + offset).can_be_named;
  devices->close_memory(memory);
  devices->end_event(event);
  devices->end_stream(stream);
  check_at_the_end(*devices);
  const bool failed = ::testing::Test::HasFailure();
  return got == pattern(kOdd, 5) && is_same_again && !can_be_named && !failed ? 0 : 1;
}

Process::Environment names_of(Devices& devices, int seed, const Block& block, Event event) {
  const Region region = devices.region_of(block.data());
  return {{"SEED", std::to_string(seed)},
          {"MEMORY", text_of(devices.name_memory(region.base))},
          {"EVENT", text_of(devices.name_event(event))},
          {"OFFSET", std::to_string(block.data() - region.base)}};
}

TEST_P(Device, AnotherProcessReadsItsMemoryBehindItsEvent) {
  const Block block(*devices_, 0, kOdd);
  const Event event = devices_->new_event(0, Reach::kThisHost);
  // Other memory of the processor may have the caller wait until it has been read.
  void* const sent = devices_->allocate_host(kOdd);
  std::memcpy(sent, pattern(kOdd, 5).data(), kOdd);
  Gate gate(*devices_, stream_);
  devices_->copy(stream_, block.data(), sent, kOdd);
  devices_->record(event, stream_);
  Process other("import", names_of(*devices_, GetParam(), block, event));
  EXPECT_TRUE(
      eventually([&] { return other.output().find("opened") != std::string::npos; }, seconds(30)));
  EXPECT_TRUE(other.running());  // it waits for the event
  gate.open();
  const Process::End end = other.wait(seconds(30));
  EXPECT_EQ(end.status, 0) << end.output;
  ASSERT_TRUE(devices_->synchronize(stream_, Deadline::after(seconds(20))));
  devices_->release_host(sent);
  devices_->end_event(event);
}

// Records an event that will never come, and is killed.
int export_and_stay() {
  const auto devices = make_devices(1);
  const Stream stream = devices->new_stream(0);
  const Block block(*devices, 0, kOdd);
  const Event event = devices->new_event(0, Reach::kThisHost);
  const Gate gate(*devices, stream);
  devices->record(event, stream);
  std::cout << text_of(devices->name_event(event)) << std::endl;
  std::this_thread::sleep_for(seconds(60));
  return 1;
}

TEST_P(Device, NobodyWaitsForTheEventOfAProcessThatIsDead) {
  Process other("export_and_stay");
  const size_t digits = 2 * sizeof(device::EventName);
  ASSERT_TRUE(eventually([&] { return other.output().size() > digits; }, seconds(30)));
  const Event event =
      devices_->open_event(0, name_of<device::EventName>(other.output().substr(0, digits)));
  EXPECT_FALSE(devices_->has_come(event));
  devices_->wait(stream_, event);
  EXPECT_FALSE(devices_->synchronize(stream_, Deadline::after(milliseconds(100))));
  other.signal(SIGKILL);
  EXPECT_EQ(other.wait(seconds(10)).status, 128 + SIGKILL);
  EXPECT_TRUE(devices_->synchronize(stream_, Deadline::after(seconds(10))));
  devices_->end_event(event);
}

INSTANTIATE_TEST_SUITE_P(Seeds, Device, ::testing::Range(1, 1 + seeds()));

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) {
  return farspan::testing::run_tests(argc, argv,
                                     {{"import", farspan::testing::import},
                                      {"export_and_stay", farspan::testing::export_and_stay}});
}
