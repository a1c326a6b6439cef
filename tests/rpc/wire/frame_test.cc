// The rules under test: rpc/wire/WIRE.md, "The frame".
#include <farspan/rpc/wire/frame.h>

#include <gtest/gtest.h>

#include "rpc/wire/frame_bytes.h"

namespace farspan::testing {
namespace {

using wire::Kind;
using wire::OutFrame;

// clang-format off
const Bytes kCallFrame = bytes({
    'F', 'S', 'P', 'N',                              // magic
    1,                                               // version
    0x10,                                            // kind: call
    0x04, 0x00,                                      // flags: one-way
    0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01,  // request id
    0x10, 0, 0, 0,                                   // meta: 16 bytes
    3, 0, 0, 0,                                      // segments: 3
    0x10, 0, 0, 0, 0, 0, 0, 0,                       // payload: 16 bytes
    0x40, 0x42, 0x0f, 0, 0, 0, 0, 0,                 // remaining: 1,000,000 us
    0x2a, 0, 0, 0, 0, 0, 3, 0,                       // chain
    5, 0, 0, 0, 0, 0, 0, 0,                          // segment 0 has 5 bytes,
    0, 0, 0, 0, 0, 0, 0, 0,                          //         1 none,
    8, 0, 0, 0, 0, 0, 0, 0,                          //         2 has 8
    'm', 'e', 't', 'a', 0, 0, 0, 0, 'd', 'a', 't', 'a', 0, 0, 0, 0,
    1, 2, 3, 4, 5, 0, 0, 0,                          // segment 0 and its padding
    11, 12, 13, 14, 15, 16, 17, 18,                  // segment 2
});
// clang-format on

TEST(Frame, FieldsLieWhereTheNormSays) {
  EXPECT_EQ(offsetof(wire::FrameHeader, magic), 0u);
  EXPECT_EQ(offsetof(wire::FrameHeader, version), 4u);
  EXPECT_EQ(offsetof(wire::FrameHeader, kind), 5u);
  EXPECT_EQ(offsetof(wire::FrameHeader, flags), 6u);
  EXPECT_EQ(offsetof(wire::FrameHeader, request_id), 8u);
  EXPECT_EQ(offsetof(wire::FrameHeader, meta_bytes), 16u);
  EXPECT_EQ(offsetof(wire::FrameHeader, segment_count), 20u);
  EXPECT_EQ(offsetof(wire::FrameHeader, payload_bytes), 24u);
  EXPECT_EQ(offsetof(wire::FrameHeader, remaining_us), 32u);
  EXPECT_EQ(offsetof(wire::FrameHeader, chain), 40u);
  EXPECT_EQ(sizeof(wire::FrameHeader), 48u);
}

TEST(Frame, AGoldenFrameIsRead) {
  Reading reading;
  reading.feed(kCallFrame);
  ASSERT_EQ(reading.frames().size(), 1u);
  const wire::InFrame& frame = reading.frames()[0];
  EXPECT_EQ(frame.header.kind, Kind::kCall);
  EXPECT_EQ(frame.header.flags, wire::kOneWay);
  EXPECT_FALSE(frame.is_reply());
  EXPECT_FALSE(frame.failed());
  EXPECT_EQ(frame.header.request_id, 0x0102030405060708u);
  EXPECT_EQ(frame.header.remaining_us, 1'000'000u);
  EXPECT_EQ(frame.header.chain, 0x0003'0000'0000'002au);
  EXPECT_TRUE(same(frame.meta.span(), std::span(kCallFrame).subspan(72, 16)));
  ASSERT_EQ(frame.segments.size(), 3u);
  EXPECT_TRUE(same(frame.segments[0].span(), bytes({1, 2, 3, 4, 5})));
  EXPECT_TRUE(frame.segments[1].empty());
  EXPECT_TRUE(same(frame.segments[2].span(), bytes({11, 12, 13, 14, 15, 16, 17, 18})));
  EXPECT_TRUE(reading.reader().idle());
}

TEST(Frame, TheTestsOwnWriterAgreesWithTheGoldenFrame) {
  RawFrame frame;
  frame.flags = 4;
  frame.request_id = 0x0102030405060708;
  frame.remaining_us = 1'000'000;
  frame.chain = 0x0003'0000'0000'002a;
  frame.meta = Bytes(kCallFrame.begin() + 72, kCallFrame.begin() + 88);
  frame.segments = {bytes({1, 2, 3, 4, 5}), {}, bytes({11, 12, 13, 14, 15, 16, 17, 18})};
  EXPECT_EQ(to_bytes(frame), kCallFrame);
}

TEST(Frame, TheNumbersOfFlagsAndKindsAreFixed) {
  EXPECT_EQ(wire::kReply, 1);
  EXPECT_EQ(wire::kFailed, 2);
  EXPECT_EQ(wire::kOneWay, 4);
  const std::pair<Kind, int> kinds[] = {{Kind::kHello, 0x01},
                                        {Kind::kWelcome, 0x02},
                                        {Kind::kRefuse, 0x03},
                                        {Kind::kPing, 0x04},
                                        {Kind::kPong, 0x05},
                                        {Kind::kGoodbye, 0x06},
                                        {Kind::kCall, 0x10},
                                        {Kind::kBuiltinCall, 0x11},
                                        {Kind::kShutdown, 0x12},
                                        {Kind::kRemoteCall, 0x20},
                                        {Kind::kRRefCall, 0x21},
                                        {Kind::kRRefFetch, 0x22},
                                        {Kind::kRRefControl, 0x23},
                                        {Kind::kRRefBackward, 0x24},
                                        {Kind::kAutogradControl, 0x40},
                                        {Kind::kAutogradGradient, 0x41},
                                        {Kind::kOptimizer, 0x50}};
  for (const auto& [kind, number] : kinds) {
    EXPECT_EQ(static_cast<int>(kind), number);
    EXPECT_NE(name_of(kind), "unknown") << number;
  }
  EXPECT_EQ(name_of(static_cast<Kind>(0xff)), "unknown");
}

TEST(Frame, CountsItsOwnBytes) {
  OutFrame frame;
  EXPECT_EQ(frame.bytes(), 48u);
  const Bytes meta(12);  // sent as 16
  frame.meta = meta;
  frame.segments = {Buffer::allocate(5), Buffer(), Buffer::allocate(8)};
  EXPECT_EQ(frame.bytes(), 48u + 3 * 8 + 16 + 8 + 8);
}

// A frame of exactly the limits, and one for each limit that is just above it.
class Excess : public ::testing::Test {
 protected:
  static constexpr wire::FrameLimits kLimits{
      .max_meta_bytes = 32, .max_segments = 2, .max_payload_bytes = 64};
  OutFrame full() {
    OutFrame frame;
    frame.meta = std::span(meta_).first(32);
    frame.segments = {Buffer::allocate(33), Buffer::allocate(24)};  // 40 and 24 with the padding
    return frame;
  }
  const Bytes meta_ = Bytes(33);
};

TEST_F(Excess, AFrameOfExactlyTheLimitsMayBeSent) {
  EXPECT_EQ(excess(full(), kLimits), std::nullopt);
  EXPECT_EQ(excess(OutFrame{}, kLimits), std::nullopt);
}

TEST_F(Excess, OneByteMoreOfMetaMayNot) {
  OutFrame frame = full();
  frame.meta = meta_;
  const auto error = excess(frame, kLimits);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), Code::kInvalidArgument);
  EXPECT_EQ(error->message(), "the message has 33 bytes beside its tensors, the limit is 32");
}

TEST_F(Excess, OneSegmentMoreMayNot) {
  OutFrame frame = full();
  frame.segments.push_back(Buffer());
  const auto error = excess(frame, kLimits);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->message(), "the message has 3 tensors or parts of them, the limit is 2");
}

TEST_F(Excess, OneByteMoreOfPayloadMayNotThoughItBePadding) {
  OutFrame frame = full();
  frame.segments[1] = Buffer::allocate(25);
  const auto error = excess(frame, kLimits);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->message(), "the message has 72 bytes of tensors, the limit is 64");
  EXPECT_FALSE(error->advice().empty());
}

}  // namespace
}  // namespace farspan::testing
