// The rules under test: rpc/agent/outbox.h; the bytes: rpc/wire/WIRE.md, "The frame".
#include <farspan/rpc/agent/outbox.h>

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include "rpc/agent/scripted_stream.h"
#include "rpc/wire/frame_bytes.h"

namespace farspan::testing {
namespace {

using agent::Outbox;
using State = Outbox::State;

// The same frame for the outbox and, byte by byte, for the test.
struct Twin {
  RawFrame raw;
  Bytes expected() const { return to_bytes(raw); }
  // With segments of their own (`owned`), or borrowed from `raw`.
  wire::OutFrame frame(bool owned = true) const& {
    wire::OutFrame out;
    out.header.kind = static_cast<wire::Kind>(raw.kind);
    out.header.flags = raw.flags;
    out.header.request_id = raw.request_id;
    out.header.remaining_us = raw.remaining_us;
    out.header.chain = raw.chain;
    out.meta = raw.meta;
    for (const Bytes& segment : raw.segments) {
      out.segments.push_back(owned ? Buffer::copy_of(segment)
                                   : Buffer::borrowed(segment.data(), segment.size()));
    }
    return out;
  }
  wire::OutFrame frame(bool owned = true) && = delete;  // the meta stays here
};

Twin small_twin(uint64_t id = 1) {
  return {{.flags = 1,
           .request_id = id,
           .remaining_us = 77,
           .chain = 9,
           .meta = pattern(24, id),
           .segments = {pattern(5), {}, pattern(8)}}};
}
// Too large to be gathered: goes out in pieces.
Twin large_twin(uint64_t id = 1) {
  return {{.kind = 0x41,
           .request_id = id,
           .meta = pattern(16),
           .segments = {pattern(5001, id), {}, pattern(3), pattern(8000)}}};
}

TEST(Outbox, LeavesOfferedSegmentsWhereTheyAre) {
  for (const size_t size : {size_t{100}, size_t{9000}}) {  // gathered, and in pieces
    const Buffer kept = Buffer::copy_of(pattern(5000)), travels = Buffer::copy_of(pattern(size));
    const Bytes borrowed = pattern(6000, 3);
    wire::OutFrame frame;
    frame.header.flags = wire::kOffered;
    frame.header.request_id = 4;
    frame.segments = {travels.slice(0, 90), kept,
                      Buffer::borrowed(borrowed.data(), size == 100 ? 0 : borrowed.size())};
    frame.offer = {5, 0x1000, 0x2000};
    frame.offered_from = 4000;
    ScriptedStream stream;
    Outbox outbox;
    outbox.open(stream);
    EXPECT_EQ(outbox.send(frame), State::kDone);
    const RawFrame expected{
        .flags = 8,
        .request_id = 4,
        .segments = {pattern(90), pattern(5000), size == 100 ? Bytes() : borrowed},
        .addresses = {0, reinterpret_cast<uintptr_t>(kept.data()), 0},
        .offer = {5, 0x1000, 0x2000}};
    EXPECT_EQ(stream.written(), to_bytes(expected));
  }
}

TEST(Outbox, SaysUnderWhichLeaseSomethingIsLent) {
  for (const size_t size : {size_t{100}, size_t{9000}}) {  // gathered, and in pieces
    const Bytes meta = pattern(16), segment = pattern(size);
    wire::OutFrame frame;
    frame.header.flags = wire::kLends;
    frame.header.request_id = 4;
    frame.meta = meta;
    frame.segments = {Buffer::borrowed(segment.data(), size)};
    frame.lease = 12;
    ScriptedStream stream;
    Outbox outbox;
    outbox.open(stream);
    EXPECT_EQ(outbox.send(frame), State::kDone);
    EXPECT_EQ(
        stream.written(),
        to_bytes(
            {.flags = 32, .request_id = 4, .meta = meta, .segments = {segment}, .offer = {12}}));
  }
}

TEST(Outbox, WritesFramesAsTheNormSays) {
  for (const Twin& twin : {small_twin(), large_twin(), Twin{}}) {
    for (const bool owned : {true, false}) {
      ScriptedStream stream;
      Outbox outbox;
      outbox.open(stream);
      wire::OutFrame frame = twin.frame(owned);
      EXPECT_EQ(outbox.send(frame), State::kDone);
      EXPECT_EQ(stream.written(), twin.expected());
      EXPECT_EQ(outbox.sent_bytes(), twin.expected().size());
      EXPECT_FALSE(outbox.has_left());
    }
  }
}

TEST(Outbox, PadsTheMetaWithZeros) {
  ScriptedStream stream;
  Outbox outbox;
  outbox.open(stream);
  const Bytes meta = pattern(13);
  for (const size_t segment : {size_t{0}, size_t{5000}}) {  // gathered, and in pieces
    wire::OutFrame frame;
    frame.meta = meta;
    frame.segments = {Buffer::copy_of(pattern(segment))};
    outbox.send(frame);
  }
  Reading reading;
  reading.feed(stream.written());
  ASSERT_EQ(reading.frames().size(), 2u);
  Bytes padded = meta;
  padded.resize(16);
  for (const auto& frame : reading.frames()) EXPECT_TRUE(same(frame.meta.span(), padded));
}

TEST(Outbox, ASmallFrameIsOneWrite) {
  ScriptedStream stream;
  Outbox outbox;
  outbox.open(stream);
  const Twin twin = small_twin();
  wire::OutFrame frame = twin.frame();
  outbox.send(frame);
  EXPECT_EQ(stream.writes(), 1);
}

// Three calls of which the middle one is over while `room` bytes of all have left.
TEST(Outbox, GivesUpWhatHasNotLeftOfACallAndKeepsTheRestAsItWas) {
  for (const Twin& middle : {small_twin(2), large_twin(2)}) {
    const Bytes before = small_twin(1).expected(), own = middle.expected();
    for (size_t room = 0; room < before.size() + own.size(); room += 1 + room / 97) {
      SCOPED_TRACE(room);
      ScriptedStream stream;
      Outbox outbox;
      outbox.open(stream);
      stream.set_room(room);
      const Twin first = small_twin(1), last = large_twin(3);
      wire::OutFrame frames[] = {first.frame(), middle.frame(), last.frame()};
      for (wire::OutFrame& frame : frames) {
        frame.header.flags &= static_cast<uint16_t>(~wire::kReply);
        outbox.send(frame);
      }
      const Outbox::GivenUp given_up = outbox.give_up({77, 2});
      EXPECT_EQ(given_up.dropped.size(), room <= before.size() ? 1u : 0u);
      EXPECT_FALSE(given_up.broken);
      for (const Buffer& segment : frames[1].segments) {  // as their owner may
        if (!segment.empty()) std::memset(segment.data(), 0xee, segment.size());
      }
      while (outbox.flush() == State::kLeft) stream.add_room(701);
      Reading reading;
      reading.feed(stream.written());
      ASSERT_EQ(reading.frames().size(), given_up.dropped.empty() ? 3u : 2u);
      EXPECT_EQ(reading.frames().back().header.request_id, 3u);
      EXPECT_EQ(outbox.left_bytes(), 0u);
      if (!given_up.dropped.empty()) continue;
      const wire::InFrame& whole = reading.frames()[1];
      for (size_t i = 0; i < middle.raw.segments.size(); ++i) {
        EXPECT_TRUE(same(whole.segments.at(i).span(), middle.raw.segments[i]));
      }
    }
  }
}

TEST(Outbox, GivesUpNoAnswers) {
  ScriptedStream stream;
  Outbox outbox;
  outbox.open(stream);
  stream.set_room(0);
  const Twin answer = large_twin(2);
  wire::OutFrame frame = answer.frame();
  frame.header.flags |= wire::kReply;
  outbox.send(frame);
  EXPECT_TRUE(outbox.give_up({2}).dropped.empty());
  stream.add_room(1 << 20);
  EXPECT_EQ(outbox.flush(), State::kDone);
  EXPECT_GT(stream.written().size(), 5'000u);
}

TEST(Outbox, GoesOnWhereverTheStreamStopped) {
  for (const Twin& twin : {small_twin(), large_twin()}) {
    const Bytes expected = twin.expected();
    for (size_t room = 0; room < expected.size(); room += 1 + room / 97) {
      ScriptedStream stream;
      Outbox outbox;
      outbox.open(stream);
      stream.set_room(room);
      wire::OutFrame frame = twin.frame();
      ASSERT_EQ(outbox.send(frame), State::kLeft) << room;
      EXPECT_TRUE(outbox.has_left());
      EXPECT_EQ(outbox.left_bytes(), expected.size() - room);
      while (outbox.flush() == State::kLeft) stream.add_room(701);
      ASSERT_EQ(stream.written(), expected) << room;
      EXPECT_FALSE(outbox.has_left());
      EXPECT_EQ(outbox.left_bytes(), 0u);
    }
  }
}

TEST(Outbox, WhatIsLeftOfABorrowedSegmentIsCopiedBeforeSendReturns) {
  for (const size_t room : {size_t{0}, size_t{60}, size_t{3000}}) {
    Twin twin = large_twin();
    const Bytes expected = twin.expected();
    ScriptedStream stream;
    Outbox outbox;
    outbox.open(stream);
    stream.set_room(room);
    {
      wire::OutFrame frame = twin.frame(false);
      EXPECT_EQ(outbox.send(frame), State::kLeft);
    }
    for (Bytes& segment : twin.raw.segments) std::fill(segment.begin(), segment.end(), std::byte{});
    std::fill(twin.raw.meta.begin(), twin.raw.meta.end(), std::byte{});
    stream.set_room(SIZE_MAX);
    EXPECT_EQ(outbox.flush(), State::kDone);
    EXPECT_EQ(stream.written(), expected);
  }
}

TEST(Outbox, WhatIsLeftOfAnOwnedSegmentIsKeptUntilItIsWrittenAndNotLonger) {
  ScriptedStream stream;
  Outbox outbox;
  outbox.open(stream);
  stream.set_room(100);
  const Buffer segment = Buffer::copy_of(pattern(10'000));
  const long before = segment.owner().use_count();
  {
    wire::OutFrame frame;
    frame.segments = {segment};
    EXPECT_EQ(outbox.send(frame), State::kLeft);
  }
  EXPECT_EQ(segment.owner().use_count(), before + 1);
  stream.set_room(SIZE_MAX);
  EXPECT_EQ(outbox.flush(), State::kDone);
  EXPECT_EQ(segment.owner().use_count(), before);
}

TEST(Outbox, CountsAsSentWhatTheStreamTook) {
  ScriptedStream stream;
  Outbox outbox;
  const Twin twin = large_twin(), small = small_twin();
  wire::OutFrame frame = twin.frame(), other = small.frame(), late = small.frame();
  outbox.send(frame);
  EXPECT_EQ(outbox.sent_bytes(), 0u);
  stream.set_room(1000);
  outbox.open(stream);
  EXPECT_EQ(outbox.flush(), State::kLeft);
  EXPECT_EQ(outbox.sent_bytes(), 1000u);
  outbox.send(other);
  EXPECT_EQ(outbox.sent_bytes(), 1000u);
  stream.set_room(SIZE_MAX);
  EXPECT_EQ(outbox.flush(), State::kDone);
  const size_t all = stream.written().size();
  EXPECT_EQ(outbox.sent_bytes(), all);
  outbox.close();
  outbox.send(late);
  EXPECT_EQ(outbox.sent_bytes(), all);
}

// As when memory runs out: the rest of a frame is lost, and must not be followed by another one.
TEST(Outbox, AFrameThatCannotBeKeptEndsTheStream) {
  ScriptedStream stream;
  Outbox outbox;
  outbox.open(stream);
  stream.set_room(100);
  const Bytes bytes(1000);
  wire::OutFrame frame;
  frame.segments = {Buffer::borrowed(bytes.data(), SIZE_MAX - 8192)};
  EXPECT_EQ(outbox.send(frame), State::kBroken);
  stream.set_room(SIZE_MAX);
  const Twin twin = small_twin();
  wire::OutFrame next = twin.frame();
  EXPECT_EQ(outbox.send(next), State::kBroken);
  EXPECT_EQ(stream.written().size(), 100u);
}

TEST(Outbox, KeepsFramesUntilItIsOpened) {
  Outbox outbox;
  Bytes expected;
  for (uint64_t id = 1; id <= 4; ++id) {
    const Twin twin = id % 2 ? small_twin(id) : large_twin(id);
    wire::OutFrame frame = twin.frame(false);
    EXPECT_EQ(outbox.send(frame), State::kLeft);
    append(expected, twin.expected());
  }
  EXPECT_EQ(outbox.flush(), State::kLeft);
  ScriptedStream stream;
  outbox.open(stream);
  EXPECT_EQ(outbox.flush(), State::kDone);
  EXPECT_EQ(stream.written(), expected);
}

TEST(Outbox, NoFrameOvertakesOneThatIsLeft) {
  ScriptedStream stream;
  Outbox outbox;
  outbox.open(stream);
  stream.set_room(20);
  const Twin one = small_twin(1), two = small_twin(2);
  wire::OutFrame first = one.frame(), second = two.frame();
  EXPECT_EQ(outbox.send(first), State::kLeft);
  stream.set_room(SIZE_MAX);  // room again, but nobody has flushed yet
  EXPECT_EQ(outbox.send(second), State::kLeft);
  EXPECT_EQ(outbox.flush(), State::kDone);
  Bytes expected = small_twin(1).expected();
  append(expected, small_twin(2).expected());
  EXPECT_EQ(stream.written(), expected);
}

TEST(Outbox, WritesMorePiecesThanOneCallTakes) {
  Twin twin;
  for (size_t i = 0; i < 300; ++i) twin.raw.segments.push_back(pattern(13 + i, i));
  for (const size_t room : {SIZE_MAX, size_t{4000}}) {
    ScriptedStream stream;
    Outbox outbox;
    outbox.open(stream);
    stream.set_room(room);
    wire::OutFrame frame = twin.frame();
    outbox.send(frame);
    stream.set_room(SIZE_MAX);
    EXPECT_EQ(outbox.flush(), State::kDone);
    EXPECT_EQ(stream.written(), twin.expected());
  }
}

TEST(Outbox, ABrokenStreamIsReported) {
  ScriptedStream stream;
  Outbox outbox;
  outbox.open(stream);
  stream.set_room(10);
  const Twin one = small_twin();
  wire::OutFrame first = one.frame();
  EXPECT_EQ(outbox.send(first), State::kLeft);
  stream.break_it();
  EXPECT_EQ(outbox.flush(), State::kBroken);
  Outbox other;
  other.open(stream);
  for (const Twin& twin : {small_twin(), large_twin()}) {
    wire::OutFrame frame = twin.frame();
    EXPECT_EQ(other.send(frame), State::kBroken);
  }
}

TEST(Outbox, CloseDropsWhatIsLeftAndAllThatComesLater) {
  ScriptedStream stream;
  Outbox outbox;
  outbox.open(stream);
  stream.set_room(0);
  const Buffer segment = Buffer::copy_of(pattern(10'000));
  const long before = segment.owner().use_count();
  wire::OutFrame frame;
  frame.segments = {segment};
  EXPECT_EQ(outbox.send(frame), State::kLeft);
  outbox.close();
  frame.segments.clear();
  EXPECT_EQ(segment.owner().use_count(), before);
  EXPECT_FALSE(outbox.has_left());
  EXPECT_EQ(outbox.send(frame), State::kClosed);
  EXPECT_EQ(outbox.flush(), State::kDone);  // nothing is left
  EXPECT_TRUE(stream.written().empty());
}

TEST(Outbox, WhatItHasLeftGoesOnThroughAnother) {
  const Twin twin = large_twin(), small = small_twin();
  for (size_t room = 0; room < twin.expected().size(); room += 997) {
    ScriptedStream stream;
    Outbox outbox, other;
    outbox.open(stream);
    stream.set_room(room);
    wire::OutFrame frame = twin.frame(), later = small.frame();
    EXPECT_EQ(outbox.send(frame), State::kLeft);
    EXPECT_EQ(other.send(later), State::kLeft);  // not open yet
    other.open(stream, outbox.take());
    EXPECT_FALSE(outbox.has_left());
    EXPECT_EQ(other.left_bytes(), twin.expected().size() - room + small_twin().expected().size());
    stream.set_room(SIZE_MAX);
    EXPECT_EQ(other.flush(), State::kDone);
    Bytes expected = twin.expected();
    append(expected, small_twin().expected());
    EXPECT_EQ(stream.written(), expected);
  }
}

TEST(Outbox, FramesOfManyThreadsStayWholeAndInTheirThreadsOrder) {
  constexpr uint64_t kThreads = 4, kFrames = 300;
  ScriptedStream stream;
  stream.set_room(0);
  Outbox outbox;
  outbox.open(stream);
  std::atomic<uint64_t> sending{kThreads};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t i = 1; i <= kFrames; ++i) {
        const uint64_t id = thread << 32 | i;
        const Twin twin = i % 8 ? small_twin(id) : large_twin(id);
        wire::OutFrame frame = twin.frame(i % 3 == 0);
        EXPECT_NE(outbox.send(frame), State::kBroken);
      }
      --sending;
    });
  }
  do {
    stream.add_room(5000);
    outbox.flush();
  } while (sending > 0 || outbox.has_left());
  for (auto& thread : threads) thread.join();

  Reading reading;
  reading.feed(stream.written());
  EXPECT_TRUE(reading.reader().idle());
  EXPECT_EQ(reading.frames().size(), kThreads * kFrames);
  std::vector<uint64_t> last(kThreads, 0);
  for (const auto& frame : reading.frames()) {
    const uint64_t id = frame.header.request_id;
    EXPECT_EQ(id & 0xffffffff, ++last.at(id >> 32));
    expect_equal(frame, ((id & 0xffffffff) % 8 ? small_twin(id) : large_twin(id)).raw);
  }
}

// Nothing of what was kept has begun to leave.
TEST(Outbox, TheLastFrameLeavesInPlaceOfWhatWasKept) {
  for (const bool is_large : {false, true}) {
    ScriptedStream stream;
    stream.set_room(0);
    Outbox outbox;
    outbox.open(stream);
    const Twin kept = is_large ? large_twin(3) : small_twin(3), last = small_twin(4);
    wire::OutFrame frame = kept.frame(), end = last.frame();
    EXPECT_EQ(outbox.send(frame), State::kLeft);
    stream.set_room(SIZE_MAX);
    outbox.send_last(end);
    EXPECT_FALSE(outbox.has_left());
    EXPECT_EQ(stream.written(), last.expected());
  }
}

TEST(Outbox, TheLastFrameDoesNotLeaveWithinAnother) {
  for (const size_t begun : {size_t{1}, size_t{6000}}) {  // bytes of its first piece, or more
    ScriptedStream stream;
    stream.set_room(begun);
    Outbox outbox;
    outbox.open(stream);
    const Twin kept = large_twin(3), last = small_twin(4);
    wire::OutFrame frame = kept.frame(), end = last.frame();
    EXPECT_EQ(outbox.send(frame), State::kLeft);
    stream.set_room(SIZE_MAX);
    outbox.send_last(end);
    EXPECT_EQ(outbox.flush(), State::kDone);
    EXPECT_EQ(stream.written(), kept.expected());
  }
}

}  // namespace
}  // namespace farspan::testing
