// The rules under test: rpc/wire/WIRE.md, "What a receiver checks", and rpc/wire/frame_reader.h.
#include <farspan/rpc/wire/frame_reader.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "rpc/wire/frame_bytes.h"
#include "support/seeded_random.h"

namespace farspan::testing {
namespace {

using ::testing::HasSubstr;
using wire::FrameLimits;

// Small frames of every shape, one behind the other.
std::vector<RawFrame> small_frames() {
  std::vector<RawFrame> frames;
  frames.push_back({});  // nothing but a header
  frames.push_back({.kind = 0x20, .flags = 1, .request_id = ~0ull, .meta = pattern(8)});
  frames.push_back({.kind = 0x41, .segments = {pattern(1)}});
  frames.push_back(
      {.remaining_us = ~0ull, .chain = 7, .meta = pattern(24), .segments = {{}, pattern(9), {}}});
  frames.push_back({.flags = 3, .segments = {{}, {}}});
  frames.push_back({.meta = pattern(40), .segments = {pattern(16), pattern(15, 3)}});
  return frames;
}

// Segments around the sizes at which the reader changes its ways: into the frame's own block up to
// 16 KiB, above that into memory of their own, straight into it when much is still to come.
std::vector<RawFrame> large_frames() {
  std::vector<RawFrame> frames;
  frames.push_back({.meta = pattern(16), .segments = {pattern(16 << 10), pattern((16 << 10) + 1)}});
  frames.push_back({.segments = {pattern(5), pattern(200'000, 1), pattern(3), pattern(40'001, 2)}});
  frames.push_back({.meta = pattern(150'000)});  // more than the reader's slab holds at first
  frames.push_back({.meta = pattern(8), .segments = {pattern((128 << 10) + 8), {}}});
  frames.push_back({});
  return frames;
}

Bytes stream_of(const std::vector<RawFrame>& frames) {
  Bytes stream;
  for (const RawFrame& frame : frames) append(stream, to_bytes(frame));
  return stream;
}

void expect_all(Reading& reading, const std::vector<RawFrame>& sent) {
  ASSERT_EQ(reading.frames().size(), sent.size());
  for (size_t i = 0; i < sent.size(); ++i) expect_equal(reading.frames()[i], sent[i]);
  EXPECT_TRUE(reading.reader().idle());
}

TEST(FrameReader, ReadsFramesThatComeAtOnce) {
  for (const auto& frames : {small_frames(), large_frames()}) {
    Reading reading;
    reading.feed(stream_of(frames));
    expect_all(reading, frames);
  }
}

TEST(FrameReader, ReadsThemByteByByte) {
  for (const auto& frames : {small_frames(), large_frames()}) {
    Reading reading;
    reading.feed(stream_of(frames), 1);
    expect_all(reading, frames);
  }
}

TEST(FrameReader, ReadsThemHoweverTheStreamIsCutInTwoPlaces) {
  const auto frames = small_frames();
  const Bytes stream = stream_of(frames);
  const std::span<const std::byte> all(stream);
  for (size_t first = 0; first <= all.size(); ++first) {
    for (size_t second = first; second <= all.size(); second += 1 + second % 3) {
      Reading reading;
      reading.feed(all.first(first));
      reading.feed(all.subspan(first, second - first));
      reading.feed(all.subspan(second));
      expect_all(reading, frames);
      if (::testing::Test::HasFailure()) FAIL() << "cut at " << first << " and " << second;
    }
  }
}

TEST(FrameReader, ReadsLargeOnesHoweverTheStreamIsCut) {
  const auto frames = large_frames();
  const Bytes stream = stream_of(frames);
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SeededRandom random(seed);
    Reading reading;
    for (std::span<const std::byte> left(stream); !left.empty();) {
      const size_t most = size_t{1} << (1 + random.below(19));
      const size_t size = std::min(left.size(), 1 + random.below(most));
      reading.feed(left.first(size));
      left = left.subspan(size);
    }
    expect_all(reading, frames);
    if (::testing::Test::HasFailure()) FAIL() << "seed " << seed;
  }
}

// A frame whose second and last segments stay with the sender.
RawFrame offering_frame() {
  return {.flags = 8,
          .meta = pattern(16),
          .segments = {pattern(20), pattern(90'000), pattern(50'000), pattern(10)},
          .addresses = {0, 0x7000, 0, 0x9000},
          .offer = {77, 0x1230, 0xabcd}};
}

TEST(FrameReader, SaysWhereOfferedSegmentsLieAndReadsTheOthers) {
  const RawFrame frame = offering_frame();
  for (const size_t most : {size_t{1}, size_t{1000}, SIZE_MAX}) {
    Reading reading;
    reading.feed(stream_of({frame, {.meta = pattern(8)}}), most);
    ASSERT_EQ(reading.frames().size(), 2u);
    const wire::InFrame& got = reading.frames()[0];
    EXPECT_EQ(got.offer.id, 77u);
    EXPECT_EQ(got.offer.mark_address, 0x1230u);
    EXPECT_EQ(got.offer.mark, 0xabcdu);
    EXPECT_EQ(got.offered, frame.addresses);
    EXPECT_TRUE(same(got.meta.span(), frame.meta));
    ASSERT_EQ(got.segments.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(got.segments[i].size(), frame.segments[i].size()) << "memory for it";
      EXPECT_TRUE(!frame.travels(i) || same(got.segments[i].span(), frame.segments[i])) << i;
    }
    EXPECT_EQ(reading.frames()[1].offer.id, 0u);
    EXPECT_TRUE(reading.frames()[1].offered.empty());
  }
}

TEST(FrameReader, SaysUnderWhichLeaseSomethingIsLent) {
  RawFrame alone{.flags = 32, .meta = pattern(24), .segments = {pattern(5)}, .offer = {91}};
  RawFrame offered = offering_frame();
  offered.flags |= 32;
  offered.offer.push_back(92);
  for (const size_t most : {size_t{1}, size_t{1000}}) {
    Reading reading;
    reading.feed(stream_of({alone, offered, {.meta = pattern(8)}}), most);
    ASSERT_EQ(reading.frames().size(), 3u);
    EXPECT_EQ(reading.frames()[0].lease, 91u);
    EXPECT_TRUE(same(reading.frames()[0].meta.span(), alone.meta));
    EXPECT_TRUE(same(reading.frames()[0].segments[0].span(), alone.segments[0]));
    EXPECT_EQ(reading.frames()[1].lease, 92u);
    EXPECT_EQ(reading.frames()[1].offer.id, 77u);
    EXPECT_TRUE(same(reading.frames()[1].meta.span(), offered.meta));
    EXPECT_EQ(reading.frames()[2].lease, 0u);
  }
  alone.offer = {0};
  EXPECT_TRUE(Reading().error_of(to_bytes(alone))) << "a lease has an id";
}

constexpr size_t kHandedOver = 1;

// The second segment changes hands; `place`: block, size, descriptor, offset.
RawFrame handing_over(std::array<uint64_t, 4> place) {
  RawFrame frame = offering_frame();
  frame.flags |= 16;
  for (size_t i = 0; i < frame.segments.size(); ++i) {
    for (const uint64_t number : place) frame.offer.push_back(i == kHandedOver ? number : 0);
  }
  return frame;
}

TEST(FrameReader, SaysWhichBlocksChangeHands) {
  const RawFrame frame = handing_over({55, 1 << 20, 9, 4096});
  const Bytes stream = to_bytes(frame);
  for (const size_t most : {size_t{1}, size_t{1000}, stream.size()}) {
    Reading reading;
    reading.feed(stream, most);
    ASSERT_EQ(reading.frames().size(), 1u);
    const wire::InFrame& got = reading.frames()[0];
    EXPECT_EQ(got.offer.mark, 0xabcdu);
    EXPECT_TRUE(same(got.meta.span(), frame.meta));
    for (size_t i = 0; i < frame.segments.size(); ++i) {
      EXPECT_EQ(got.is_handed_over(i), i == kHandedOver);
    }
    EXPECT_EQ(got.handed_over[kHandedOver].block, 55u);
    EXPECT_EQ(got.handed_over[kHandedOver].block_bytes, 1u << 20);
    EXPECT_EQ(got.handed_over[kHandedOver].descriptor, 9u);
    EXPECT_EQ(got.handed_over[kHandedOver].offset, 4096u);
    EXPECT_EQ(got.segments[kHandedOver].size(), frame.segments[kHandedOver].size());
    EXPECT_EQ(got.segments[kHandedOver].data(), nullptr) << "it needs no memory of this process";
  }
}

TEST(FrameReader, ABlockMustHoldItsSegment) {
  const uint64_t size = offering_frame().segments[kHandedOver].size();
  const auto outcome = [](RawFrame frame) { return Reading().error_of(to_bytes(frame)); };
  EXPECT_FALSE(outcome(handing_over({55, size, 9, 0})));
  for (const std::array<uint64_t, 4>& place : {std::array<uint64_t, 4>{55, size - 1, 9, 0},
                                               {55, size, 9, 1},
                                               {55, size, 9, UINT64_MAX},
                                               {55, UINT64_MAX, 9, UINT64_MAX},
                                               {55, size, uint64_t{1} << 31, 0}}) {
    const auto error = outcome(handing_over(place));
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), Code::kCorrupt);
  }
  RawFrame frame = handing_over({55, size, 9, 0});
  frame.addresses[kHandedOver] = 0;
  EXPECT_EQ(outcome(frame)->code(), Code::kCorrupt) << "it is not offered";
}

TEST(FrameReader, LimitsWhatIsOffered) {
  RawFrame frame = offering_frame();
  EXPECT_FALSE(Reading({.max_payload_bytes = 90'016}).error_of(to_bytes(frame)));
  const auto too_much = Reading({.max_payload_bytes = 90'008}).error_of(to_bytes(frame));
  ASSERT_TRUE(too_much);
  EXPECT_EQ(too_much->code(), Code::kCorrupt);
  frame.lengths = {20, ~uint64_t{0} - 6, 50'000, 10};
  EXPECT_TRUE(Reading().error_of(to_bytes(frame))) << "its padded length is 0";
  frame = offering_frame();
  frame.offer[0] = 0;
  EXPECT_TRUE(Reading().error_of(to_bytes(frame))) << "without an id";
}

TEST(FrameReader, KeepsNoRoomForARareLargeFrame) {
  Reading reading;
  const auto room = [&] {
    iovec places[2];
    EXPECT_EQ(reading.reader().want(places), 1);
    return places[0].iov_len;
  };
  const size_t before = room();
  reading.feed(to_bytes({.meta = pattern(5 << 20)}));
  ASSERT_EQ(reading.frames().size(), 1u);
  EXPECT_TRUE(same(reading.frames()[0].meta.span(), pattern(5 << 20)));
  EXPECT_EQ(room(), before);
  reading.feed(to_bytes({.meta = pattern(104)}));
  EXPECT_EQ(reading.frames().size(), 2u);
}

TEST(FrameReader, IsIdleOnlyBetweenFrames) {
  const Bytes stream = to_bytes({.meta = pattern(16), .segments = {pattern(20)}});
  Reading reading;
  EXPECT_TRUE(reading.reader().idle());
  for (size_t i = 0; i + 1 < stream.size(); ++i) {
    reading.feed(std::span(stream).subspan(i, 1));
    EXPECT_FALSE(reading.reader().idle()) << "after byte " << i;
    EXPECT_TRUE(reading.frames().empty());
  }
  reading.feed(std::span(stream).last(1));
  EXPECT_TRUE(reading.reader().idle());
  EXPECT_EQ(reading.frames().size(), 1u);
}

TEST(FrameReader, GivesAlignedMemory) {
  Reading reading;
  reading.feed(to_bytes({.meta = pattern(8), .segments = {pattern(3), pattern(7), pattern(50)}}));
  ASSERT_EQ(reading.frames().size(), 1u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(reading.frames()[0].meta.data()) % 8, 0u);
  for (const Buffer& segment : reading.frames()[0].segments) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(segment.data()) % 8, 0u);
  }
}

TEST(FrameReader, OnlyLargeSegmentsGetMemoryOfTheirOwn) {
  Reading reading;
  reading.feed(
      to_bytes({.segments = {pattern(16 << 10), pattern((16 << 10) + 1), pattern(90'000)}}));
  EXPECT_EQ(reading.allocated(), (16u << 10) + 1 + 90'000);
  EXPECT_EQ(reading.frames().size(), 1u);
}

TEST(FrameReader, WhatIsLeftOfALargeSegmentIsReadStraightIntoItsPlace) {
  const RawFrame frame{.segments = {pattern(1 << 20)}};
  const Bytes stream = to_bytes(frame);
  Reading reading;
  reading.feed(std::span(stream).first(56 + 1000));
  iovec places[2];
  ASSERT_EQ(reading.reader().want(places), 2);
  // Expect: exactly the rest of the segment first, then room for what follows it.
  EXPECT_EQ(places[0].iov_len, (1u << 20) - 1000);
  EXPECT_GT(places[1].iov_len, 0u);
  reading.feed(std::span(stream).subspan(56 + 1000));
  ASSERT_EQ(reading.frames().size(), 1u);
  expect_equal(reading.frames()[0], frame);
}

TEST(FrameReader, PaddingMayHoldAnything) {
  RawFrame frame{.segments = {pattern(5)}};
  Bytes stream = to_bytes(frame);
  for (size_t i = stream.size() - 3; i < stream.size(); ++i) stream[i] = std::byte{0xff};
  append(stream, to_bytes(frame));
  Reading reading;
  reading.feed(stream);
  expect_all(reading, {frame, frame});
}

TEST(FrameReader, KindsAndFlagsItDoesNotKnowAreLeftToTheReceiver) {
  const RawFrame frame{.kind = 0xff, .flags = 0xffd0, .request_id = 0};
  Reading reading;
  reading.feed(to_bytes(frame));
  expect_all(reading, {frame});
}

// One line for each way in which a frame can break the protocol.
struct Broken {
  const char* name;
  RawFrame frame;
  const char* message;  // part of what the error says
};

constexpr FrameLimits kLimits{.max_meta_bytes = 64, .max_segments = 4, .max_payload_bytes = 4096};

std::vector<Broken> broken_frames() {
  constexpr uint64_t kHuge = ~uint64_t{0};
  std::vector<Broken> all;
  const auto add = [&](const char* name, const char* message) -> RawFrame& {
    all.push_back({name, {}, message});
    return all.back().frame;
  };
  add("Magic", "no farspan frame begins here").magic = 0x4e505347;
  add("OtherByteOrder", "no farspan frame begins here").magic = 0x4653504e;
  add("OlderVersion", "wire version 0, this side speaks 1").version = 0;
  add("NewerVersion", "wire version 2, this side speaks 1").version = 2;
  add("MetaNotWords", "no multiple of 8").meta_bytes = 9;
  add("MetaAboveLimit", "meta of 72 bytes, the limit is 64").meta_bytes = 72;
  add("MetaHuge", "the limit is 64").meta_bytes = 0xfffffff8;
  add("SegmentsAboveLimit", "5 segments, the limit is 4").segment_count = 5;
  add("SegmentsHuge", "the limit is 4").segment_count = 0xffffffff;
  add("PayloadAboveLimit", "payload of 4104 bytes, the limit is 4096").payload_bytes = 4104;
  add("PayloadHuge", "the limit is 4096").payload_bytes = kHuge;
  add("PayloadWithoutSegments", "the payload exceeds its segments").payload_bytes = 8;
  // The lengths in the segment table, and the payload that the header claims.
  const auto add_table = [&](const char* name, std::vector<uint64_t> lengths, uint64_t payload,
                             const char* message) {
    RawFrame& frame = add(name, message);
    frame.segment_count = static_cast<uint32_t>(lengths.size());
    frame.payload_bytes = payload;
    frame.lengths = std::move(lengths);
  };
  const char* const kExceeds = "segments exceed the payload";
  add_table("SegmentLongerThanPayload", {9}, 8, kExceeds);
  add_table("SegmentLongerThanPayloadByItsPadding", {12}, 12, kExceeds);
  add_table("SegmentLengthThatOverflowsItsPadding", {kHuge}, 8, kExceeds);
  add_table("SegmentLengthsThatOverflowTheirSum", {16, kHuge - 7}, 16, kExceeds);
  add_table("PayloadLongerThanSegments", {8}, 24, "the payload exceeds its segments");
  add_table("PayloadNotWords", {16}, 17, "the payload exceeds its segments");
  return all;
}

class BrokenFrame : public ::testing::TestWithParam<Broken> {};

TEST_P(BrokenFrame, IsCorruptAndNothingIsAllocatedForIt) {
  const Bytes stream = to_bytes(GetParam().frame);
  for (const size_t most : {SIZE_MAX, size_t{1}}) {
    Reading reading(kLimits);
    // A good frame before it arrives all the same.
    reading.feed(to_bytes({.meta = pattern(64), .segments = {pattern(4096)}}));
    const auto error = reading.error_of(stream, most);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), Code::kCorrupt);
    EXPECT_EQ(error->operation(), "read a frame");
    EXPECT_THAT(error->message(), HasSubstr(GetParam().message));
    EXPECT_FALSE(error->advice().empty());
    EXPECT_EQ(reading.frames().size(), 1u);
    EXPECT_EQ(reading.allocated(), 0u);
  }
}

std::string name_of(const ::testing::TestParamInfo<Broken>& info) { return info.param.name; }
void PrintTo(const Broken& broken, std::ostream* out) { *out << broken.name; }

INSTANTIATE_TEST_SUITE_P(Frames, BrokenFrame, ::testing::ValuesIn(broken_frames()), name_of);

TEST(FrameLimits, AFrameOfExactlyTheLimitsIsRead) {
  const RawFrame frame{.meta = pattern(64),
                       .segments = {pattern(1024), pattern(1024), pattern(1024), pattern(1017)}};
  Reading reading(kLimits);
  reading.feed(to_bytes(frame));
  expect_all(reading, {frame});
}

TEST(FrameLimits, TheFirstFrameMayHaveItsOwn) {
  constexpr FrameLimits kFirst{.max_meta_bytes = 16, .max_segments = 0, .max_payload_bytes = 0};
  const RawFrame small{.meta = pattern(16)}, large{.meta = pattern(64), .segments = {pattern(9)}};
  {
    Reading reading(kFirst, kLimits);
    Bytes stream = to_bytes(small);
    append(stream, to_bytes(large));
    reading.feed(stream);
    EXPECT_EQ(reading.frames().size(), 1u);
    EXPECT_EQ(reading.allocated(), 0u) << "whoever sends it is not known yet";
    reading.read_on();
    expect_all(reading, {small, large});
  }
  Reading reading(kFirst, kLimits);
  EXPECT_TRUE(reading.error_of(to_bytes(large)));
  EXPECT_TRUE(reading.frames().empty());
}

TEST(FrameLimits, TheProtocolsOwnAreThoseOfTheNorm) {
  const FrameLimits limits;
  EXPECT_EQ(limits.max_meta_bytes, 16u << 20);
  EXPECT_EQ(limits.max_segments, 65'536u);
  EXPECT_EQ(limits.max_payload_bytes, uint64_t{64} << 30);
}

}  // namespace
}  // namespace farspan::testing
