// The rule under test: rpc/agent/unsent_call.h: nothing of a request is lost where it has not left.
#include <farspan/rpc/agent/unsent_call.h>

#include <gtest/gtest.h>

#include <vector>

#include "rpc/agent/scripted_stream.h"
#include "rpc/wire/frame_bytes.h"

namespace farspan::testing {
namespace {

using agent::Outbox;

constexpr size_t kLarge = 70'000;  // is offered

// Segments of all kinds: a small one, an empty one, two large ones, and one of its own padding.
std::vector<Buffer> segments(size_t small) {
  return {Buffer::copy_of(pattern(small)), Buffer(), Buffer::copy_of(pattern(kLarge, 2)),
          Buffer::copy_of(pattern(3, 3)), Buffer::copy_of(pattern(kLarge + 1, 4))};
}

class Unsent : public ::testing::TestWithParam<size_t> {  // the size of its first segment
 protected:
  Unsent() {
    frame_.header.request_id = 9;
    frame_.header.remaining_us = 77;
    frame_.header.chain = 5;
    frame_.meta = meta_;
    frame_.segments = sent_;
  }
  // What becomes of it in an outbox whose stream breaks before any of it has left.
  std::optional<agent::UnsentCall> after_break(std::span<const Buffer> offered) {
    ScriptedStream stream;
    Outbox outbox;
    outbox.open(stream);
    stream.break_it();
    EXPECT_EQ(outbox.send(frame_), Outbox::State::kBroken);
    EXPECT_TRUE(outbox.is_broken());
    const auto unsent = outbox.take_unsent();
    if (unsent.size() != 1) return std::nullopt;
    EXPECT_EQ(unsent[0].id, 9u);
    return as_before(unsent[0], offered);
  }
  void expect_as_before(const std::optional<agent::UnsentCall>& call) const {
    ASSERT_TRUE(call);
    const wire::OutFrame& frame = call->frame;
    EXPECT_EQ(frame.header.kind, wire::Kind::kCall);
    EXPECT_EQ(frame.header.flags, 0);
    EXPECT_EQ(frame.header.chain, 5u);
    EXPECT_EQ(frame.header.remaining_us, 77u);
    EXPECT_TRUE(same(frame.meta, meta_));
    EXPECT_EQ(frame.offered_from, UINT64_MAX);
    EXPECT_TRUE(frame.handed_over.empty());
    ASSERT_EQ(frame.segments.size(), sent_.size());
    for (size_t i = 0; i < sent_.size(); ++i) {
      EXPECT_TRUE(same(frame.segments[i].span(), sent_[i].span())) << i;
    }
  }
  void offer() {
    frame_.header.flags = wire::kOffered;
    frame_.offer = {5, 0x1000, 0x2000};
    frame_.offered_from = kLarge;
  }

  const Bytes meta_ = pattern(24, 7);
  const std::vector<Buffer> sent_ = segments(GetParam());
  const std::vector<Buffer> offered_ = {sent_[2], sent_[4]};
  wire::OutFrame frame_;
};

TEST_P(Unsent, IsWhatItWas) { expect_as_before(after_break({})); }

TEST_P(Unsent, HasWhatItOffered) {
  offer();
  expect_as_before(after_break(offered_));
}

TEST_P(Unsent, HasWhatItHandedOver) {
  offer();
  frame_.header.flags |= wire::kHandsOver;
  frame_.handed_over.resize(sent_.size());
  frame_.handed_over[2] = {1, 2, 3, 4};
  expect_as_before(after_break(offered_));
}

TEST_P(Unsent, IsNothingWithoutWhatWasOffered) {
  offer();
  EXPECT_FALSE(after_break({}));
}

TEST_P(Unsent, IsNothingWhereItLends) {
  frame_.header.flags = wire::kLends;
  frame_.lease = 3;
  EXPECT_FALSE(after_break({}));
}

TEST_P(Unsent, BorrowsNothing) {
  const Bytes borrowed = pattern(GetParam());
  frame_.segments[0] = Buffer::borrowed(borrowed.data(), borrowed.size());
  const auto call = after_break({});
  expect_as_before(call);
  EXPECT_NE(call->frame.segments[0].data(), borrowed.data());
}

// Gathered with the head, and a piece of its own.
INSTANTIATE_TEST_SUITE_P(Frames, Unsent, ::testing::Values(100, 9000));

// Others than requests are not sent again, nor is one that has begun to leave.
TEST(UnsentRequests, AreThoseOfWhichNothingHasLeft) {
  ScriptedStream stream;
  Outbox outbox;
  outbox.open(stream);
  stream.set_room(60);
  const auto send = [&](uint64_t id, size_t bytes, uint16_t flags = 0) {
    wire::OutFrame frame;
    frame.header.request_id = id;
    frame.header.flags = flags;
    frame.segments = {Buffer::copy_of(pattern(bytes))};
    outbox.send(frame);
  };
  send(1, 9000);
  send(2, 9000);
  send(3, 9000, wire::kReply);
  send(4, 10);
  outbox.stop_writing();
  send(5, 10);
  std::vector<uint64_t> ids;
  for (const auto& one : outbox.take_unsent()) ids.push_back(one.id);
  EXPECT_EQ(ids, (std::vector<uint64_t>{2, 4, 5}));
  send(6, 10);
  EXPECT_TRUE(outbox.take_unsent().empty()) << "it was closed";
}

}  // namespace
}  // namespace farspan::testing
