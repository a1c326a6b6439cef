// The rules under test: rpc/wire/WIRE.md, "Lanes": what a reader makes of pieces, whoever sends
// them, in whatever order.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include <farspan/rpc/agent/asked.h>

#include "rpc/wire/frame_bytes.h"

namespace farspan::testing {
namespace {

using agent::Asked;
using wire::kPieceBytes;
using wire::PieceHeader;

constexpr uint64_t kOffer = 7;
constexpr size_t kLarge = 2 * kPieceBytes + 5;  // three pieces

// Of which the first travels, and two are offered.
wire::InFrame offered_frame(uint64_t offer = kOffer) {
  wire::InFrame frame;
  frame.header.request_id = 3;
  frame.offer.id = offer;
  frame.segments = {Buffer::allocate(10), Buffer::allocate(kLarge), Buffer::allocate(kPieceBytes)};
  frame.offered = {0, 1, 1};
  return frame;
}
Buffer filled(size_t bytes, int value) {
  Buffer buffer = Buffer::allocate(bytes);
  std::fill_n(buffer.data(), bytes, static_cast<std::byte>(value));
  return buffer;
}
bool is_filled(const Buffer& buffer, int value) {
  return std::all_of(buffer.data(), buffer.data() + buffer.size(),
                     [&](std::byte byte) { return byte == static_cast<std::byte>(value); });
}

TEST(Asked, IsWholeWithItsLastPieceWhateverTheOrder) {
  Asked asked;
  wire::InFrame frame = offered_frame();
  const Buffer large = frame.segments[1];
  asked.keep(std::move(frame));
  // Expect: to where it belongs, or to anywhere.
  const Buffer middle = asked.place(kOffer, {0, kPieceBytes}, kPieceBytes);
  EXPECT_EQ(middle.data(), large.data() + kPieceBytes);
  std::fill_n(middle.data(), middle.size(), std::byte{2});
  EXPECT_FALSE(asked.came(kOffer, {1, 0}, filled(kPieceBytes, 4)));
  EXPECT_FALSE(asked.came(kOffer, {0, 2 * kPieceBytes}, filled(5, 3)));
  EXPECT_FALSE(asked.came(kOffer, {0, kPieceBytes}, middle));
  const auto whole = asked.came(kOffer, {0, 0}, filled(kPieceBytes, 1));
  ASSERT_TRUE(whole);
  EXPECT_EQ(whole->header.request_id, 3u);
  EXPECT_TRUE(is_filled(whole->segments[1].slice(0, kPieceBytes), 1));
  EXPECT_TRUE(is_filled(whole->segments[1].slice(kPieceBytes, kPieceBytes), 2));
  EXPECT_TRUE(is_filled(whole->segments[1].slice(2 * kPieceBytes, 5), 3));
  EXPECT_TRUE(is_filled(whole->segments[2], 4));
  EXPECT_FALSE(asked.take(kOffer));
}

TEST(Asked, WhatComesAtOnceGoesToItsPlaceUnlessAPieceMay) {
  Asked asked;
  wire::InFrame frame = offered_frame();
  const Buffer large = frame.segments[1];
  asked.keep(std::move(frame));
  EXPECT_EQ(asked.place_of_whole(kOffer + 1, 0, kLarge).size(), 0u);
  EXPECT_EQ(asked.place_of_whole(kOffer, 0, kLarge - 1).size(), 0u);
  EXPECT_EQ(asked.place_of_whole(kOffer, 2, kLarge).size(), 0u);
  EXPECT_EQ(asked.place_of_whole(kOffer, 0, kLarge).data(), large.data());
  EXPECT_EQ(asked.place(kOffer, {0, 0}, kPieceBytes).size(), 0u) << "no piece is heeded any more";
  asked.keep(offered_frame());
  asked.place(kOffer, {0, 0}, kPieceBytes);
  EXPECT_EQ(asked.place_of_whole(kOffer, 0, kLarge).size(), 0u);
}

TEST(Asked, PiecesThatCannotBeAreRefused) {
  const std::vector<std::pair<PieceHeader, size_t>> wrong = {
      {{2, 0}, kPieceBytes},                  // no such segment
      {{0, 3 * kPieceBytes}, 5},              // behind its end
      {{0, 1}, kPieceBytes},                  // between two
      {{0, 0}, kPieceBytes - 1},              // too short
      {{0, 2 * kPieceBytes}, kPieceBytes},    // too long
      {{UINT64_MAX, UINT64_MAX}, UINT64_MAX}  // beyond everything
  };
  Asked asked;
  asked.keep(offered_frame());
  for (const auto& [piece, bytes] : wrong) {
    EXPECT_THROW(asked.place(kOffer, piece, bytes), Error);
    if (bytes > kPieceBytes) continue;
    EXPECT_THROW(asked.came(kOffer, piece, filled(bytes, 1)), Error);
  }
}

// Or one that never came would be taken for one that has.
TEST(Asked, APieceThatComesTwiceIsRefused) {
  Asked asked;
  asked.keep(offered_frame());
  asked.came(kOffer, {0, 0}, filled(kPieceBytes, 1));
  EXPECT_THROW(asked.came(kOffer, {0, 0}, filled(kPieceBytes, 1)), Error);
  EXPECT_THROW(asked.place(kOffer, {0, 0}, kPieceBytes), Error);
  asked.place(kOffer, {1, 0}, kPieceBytes);  // and is being read
  EXPECT_THROW(asked.place(kOffer, {1, 0}, kPieceBytes), Error);
}

TEST(Asked, WhatNobodyWaitsForGoesNowhere) {
  Asked asked;
  EXPECT_TRUE(asked.place(kOffer, {0, 0}, kPieceBytes).empty());
  EXPECT_FALSE(asked.came(kOffer, {0, 0}, filled(kPieceBytes, 1)));
  asked.keep(offered_frame());
  EXPECT_TRUE(asked.take(kOffer));
  EXPECT_TRUE(asked.place(kOffer, {0, 0}, kPieceBytes).empty());
  asked.close();
  asked.keep(offered_frame());
  EXPECT_FALSE(asked.take(kOffer));
}

TEST(Asked, WhatIsReadAtOnceHeedsNoPieces) {
  Asked asked;
  asked.keep(offered_frame());
  const Buffer begun = asked.place(kOffer, {1, 0}, kPieceBytes);
  EXPECT_FALSE(asked.place_of_whole(kOffer, 0, kLarge).empty());
  EXPECT_FALSE(asked.came(kOffer, {1, 0}, begun));
  EXPECT_TRUE(asked.place(kOffer, {0, 0}, kPieceBytes).empty());
  EXPECT_TRUE(asked.take(kOffer));
}

}  // namespace
}  // namespace farspan::testing
