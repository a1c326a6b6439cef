// What a worker is given, and refused, that asks for what it cannot open (DEVICE_UNOPENED,
// rpc/device/device_routes.capnp).
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <farspan/c10d/values/message.h>
#include <farspan/rpc/device/device_bytes.h>
#include <farspan/rpc/device/device_room.h>
#include <farspan/rpc/device/device_routes.capnp.h>
#include <farspan/rpc/device/streams.h>

#include "support/accelerator.h"
#include "support/agents.h"
#include "support/errors.h"
#include "support/workers.h"

namespace farspan::testing {
namespace {

using device::Export;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr uint64_t kId = 1;  // of the export; no call has any

// w0 lends a tensor, and w1 asks for it.
class UnopenedBytes : public ::testing::Test {
 protected:
  UnopenedBytes() { install(DeviceToDevice::kAllowed); }
  ~UnopenedBytes() override {
    room().exports().taken(kId);
    tensor_ = at::Tensor();
    settle_accelerator();
  }

  void install(DeviceToDevice of_w0) {
    accelerators();
    std::vector<DeviceRecord> records(2, DeviceRecord::of_this_process({}));
    records[1].process += "another";
    for (int rank = 0; rank < 2; ++rank) {
      DeviceRoom::install(workers_[rank], records, rank == 0 ? of_w0 : DeviceToDevice::kAllowed);
    }
  }
  DeviceRoom& room() { return dynamic_cast<DeviceRoom&>(*workers_[0].device_carrier()); }

  Export lend() {
    tensor_ = at::arange(1000, at::kLong).to(accelerator(0));
    const auto made = room().exports().make(kId, tensor_.const_data_ptr(), tensor_.nbytes(),
                                            current_stream(tensor_.device()), nullptr);
    EXPECT_TRUE(made);
    return made.value_or(Export{});
  }

  Future<wire::InFrame> ask(std::vector<std::byte> meta) {
    wire::OutFrame frame;
    frame.header.kind = wire::Kind::kDeviceUnopened;
    frame.meta = meta;
    const auto answer = std::make_shared<Answer>();
    workers_[1].messenger().call(0, frame, Deadline::after(seconds(20)), answer, false);
    return answer->future();
  }
  Future<wire::InFrame> ask(const Export& lent) {
    MetaBuilder builder;
    write_export(lent, builder.init_root<schema::DeviceUnopened>().initLent());
    const auto meta = builder.finish();
    return ask({meta.begin(), meta.end()});
  }
  Code code_of_asking(const Export& made, const std::function<void(Export&)>& change) {
    Export other = made;
    change(other);
    return code_of([&] { ask(other).wait(); });
  }

  Workers workers_;
  at::Tensor tensor_;
};

TEST_F(UnopenedBytes, AreThoseThatWereLent) {
  const Export lent = lend();
  const wire::InFrame answer = ask(lent).wait();
  ASSERT_EQ(answer.segments.size(), 1u);
  const at::Tensor expected = at::arange(1000, at::kLong);
  ASSERT_EQ(answer.segments[0].size(), expected.nbytes());
  EXPECT_EQ(std::memcmp(answer.segments[0].data(), expected.const_data_ptr(), expected.nbytes()),
            0);
}

TEST_F(UnopenedBytes, ThatWereNotLentAreRefused) {
  const Export lent = lend();
  const Code kNotLent = Code::kDisconnected;  // any more
  EXPECT_EQ(code_of_asking(lent, [](Export& other) { other.bytes = 8; }), kNotLent);
  EXPECT_EQ(code_of_asking(lent, [](Export& other) { other.id = 99; }), kNotLent);
  EXPECT_EQ(code_of_asking(lent, [](Export& other) { other.event = 99; }), kNotLent);
  EXPECT_EQ(code_of_asking(lent, [](Export& other) { other.written = {}; }), kNotLent);
  EXPECT_EQ(code_of_asking(lent, [](Export& other) { other.device = 1; }), kNotLent);
  for (const int device : {-2, -1, 77}) {
    EXPECT_EQ(code_of_asking(lent, [&](Export& other) { other.device = device; }), Code::kCorrupt)
        << device;
  }
  EXPECT_EQ(code_of_asking(lent, [](Export&) {}), Code::kOk);
  room().exports().taken(kId);
  EXPECT_EQ(code_of_asking(lent, [](Export&) {}), kNotLent);
}

TEST_F(UnopenedBytes, OfAMessageThatIsNoneAreRefused) {
  EXPECT_EQ(code_of([&] { ask(std::vector<std::byte>()).wait(); }), Code::kCorrupt);
  EXPECT_EQ(code_of([&] { ask(std::vector<std::byte>(64, std::byte{0xff})).wait(); }),
            Code::kCorrupt);
}

TEST_F(UnopenedBytes, AreRefusedByWhoRequiresThatTheyGoStraight) {
  install(DeviceToDevice::kRequired);
  const Error error = error_of([&] { ask(lend()).wait(); });
  EXPECT_EQ(error.code(), Code::kUnavailable);
  EXPECT_THAT(error.what(), HasSubstr("cannot go straight to"));
}

}  // namespace
}  // namespace farspan::testing
