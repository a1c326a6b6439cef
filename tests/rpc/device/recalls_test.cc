// Device memory that was lent on a line which has ended: rpc/device/recalls.h, uses.h.
#include <farspan/rpc/device/recalls.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include <farspan/c10d/values/message.h>
#include <farspan/rpc/device/device_room.h>
#include <farspan/rpc/device/device_routes.capnp.h>
#include <farspan/rpc/device/streams.h>

#include "support/accelerator.h"
#include "support/agents.h"
#include "support/errors.h"
#include "support/eventually.h"
#include "support/workers.h"

namespace farspan::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

Future<wire::InFrame> recall(Worker& from, int to, std::vector<std::byte> meta) {
  wire::OutFrame frame;
  frame.header.kind = wire::Kind::kDeviceRecall;
  frame.meta = meta;
  const auto answer = std::make_shared<Answer>();
  from.messenger().call(to, frame, Deadline::after(seconds(20)), answer, false);
  return answer->future();
}

// w0 has lent w1 memory.
class LentMemoryOfDevices : public ::testing::Test {
 protected:
  LentMemoryOfDevices() { install(true); }
  ~LentMemoryOfDevices() override {
    memory_ = at::Tensor();
    for (const int rank : {0, 1}) room(rank).exports().close();
    settle_accelerator();
  }

  void install(bool w1_runs) {
    accelerators();
    std::vector<DeviceRecord> records(2, DeviceRecord::of_this_process({}));
    records[1].process += "another";
    if (!w1_runs) records[1].mark += "1";
    for (const int rank : {0, 1}) DeviceRoom::install(workers_[rank], records);
  }
  DeviceRoom& room(int rank) { return dynamic_cast<DeviceRoom&>(*workers_[rank].device_carrier()); }

  void lend(uint64_t id) {
    memory_ = at::arange(1000, at::kLong).to(accelerator(0));
    const auto owner = std::make_shared<c10::Storage>(memory_.storage());
    ASSERT_TRUE(room(0).exports().make(id, memory_.const_data_ptr(), memory_.nbytes(),
                                       current_stream(memory_.device()), owner));
  }
  // All but so many.
  bool are_taken(size_t left = 0, Clock::duration within = seconds(10)) {
    return eventually([&] { return room(0).exports().kept() == left; }, within);
  }

  Workers workers_;
  at::Tensor memory_;
};

TEST_F(LentMemoryOfDevices, StaysUntilTheOtherWorkerDoesNotUseItAnyMore) {
  lend(1);
  auto use = room(1).uses().begin(0, 1), again = room(1).uses().begin(0, 1);
  room(0).recalls().keep(1, 1);
  EXPECT_TRUE(eventually([&] {
    return code_of([&] { room(1).uses().begin(0, 1); }) == Code::kDisconnected;
  })) << "w1 has been asked for it";
  use.reset();
  EXPECT_FALSE(are_taken(0, milliseconds(200)));
  again.reset();
  EXPECT_TRUE(are_taken());
}

TEST_F(LentMemoryOfDevices, ThatTheOtherWorkerHasNotSeenYetIsNotUsedByItLater) {
  lend(1);
  room(0).recalls().keep(1, 1);
  EXPECT_TRUE(are_taken());
  const Error error = error_of([&] { room(1).uses().begin(0, 1); });
  EXPECT_EQ(error.code(), Code::kDisconnected);
  EXPECT_THAT(error.what(), HasSubstr("the line that it was lent on has ended"));
}

TEST_F(LentMemoryOfDevices, ThatIsInUseDoesNotHoldBackWhatIsNot) {
  auto use = room(1).uses().begin(0, 1);
  for (uint64_t id = 1; id <= 50; ++id) {
    lend(id);
    room(0).recalls().keep(1, id);
  }
  EXPECT_TRUE(are_taken(1));
  lend(51);
  room(0).recalls().keep(1, 51);
  EXPECT_TRUE(are_taken(1));
  use.reset();
  EXPECT_TRUE(are_taken());
}

TEST_F(LentMemoryOfDevices, OfAnotherWorkerIsNotWhatIsAskedFor) {
  lend(1);
  const auto of_another = room(1).uses().begin(1, 1);
  room(0).recalls().keep(1, 1);
  EXPECT_TRUE(are_taken());
  EXPECT_NO_THROW(room(1).uses().begin(1, 1));
}

TEST_F(LentMemoryOfDevices, StaysWhileTheOtherWorkerSaysNothingAndItsProcessRuns) {
  workers_.agent(1).stop();
  lend(1);
  room(0).recalls().keep(1, 1);
  EXPECT_FALSE(are_taken(0, seconds(3)));
  workers_[0].shutdown(false);
  EXPECT_EQ(room(0).exports().kept(), 0u) << "nobody would hear of it any more";
}

TEST_F(LentMemoryOfDevices, OfAWorkerThatHasSaidGoodbyeIsFreeAWhileLater) {
  EXPECT_TRUE(recall(workers_[0], 1, {}).wait_for(seconds(20))) << "there is a line";
  lend(1);
  const auto use = room(1).uses().begin(0, 1);
  workers_[1].shutdown(false);
  const TimePoint left = Clock::now();
  room(0).recalls().keep(1, 1);
  EXPECT_TRUE(are_taken(0, seconds(20)));
  EXPECT_GE(Clock::now() - left, Recalls::kAfterGoodbye - seconds(1));
}

TEST_F(LentMemoryOfDevices, OfAProcessThatHasEndedIsFreeAtOnce) {
  install(false);
  workers_.agent(1).stop();
  lend(1);
  const TimePoint begun = Clock::now();
  room(0).recalls().keep(1, 1);
  EXPECT_TRUE(are_taken());
  EXPECT_LT(Clock::now() - begun, seconds(2));
}

TEST_F(LentMemoryOfDevices, IsNotAskedForByAMessageThatIsNone) {
  const std::vector<std::byte> none, wrong(64, std::byte{0xff});
  for (const auto& meta : {none, wrong}) {
    EXPECT_EQ(code_of([&] { recall(workers_[0], 1, meta).wait(); }), Code::kCorrupt);
  }
}

TEST(Uses, AreRefusedOfWhatWasRecalledLastHoweverMuchThatIs) {
  const auto uses = std::make_shared<Uses>();
  const auto use = uses->begin(0, 7);
  for (uint64_t last = 100'000; last > 0; last -= 1000) {
    std::vector<uint64_t> lendings(1000);
    std::iota(lendings.begin(), lendings.end(), last - 999);
    const std::vector<uint64_t> in_use = uses->recall(0, lendings);
    EXPECT_EQ(in_use.size(), last == 1000 ? 1u : 0u);
  }
  for (const uint64_t one : {1, 7, 1000, 50'000}) {
    EXPECT_EQ(code_of([&] { uses->begin(0, one); }), Code::kDisconnected) << one;
  }
}

}  // namespace
}  // namespace farspan::testing
