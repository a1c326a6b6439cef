// What of the mpi backend needs no MPI: where bytes go, and who can still be waited for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <farspan/c10d/backends/mpi/room.h>

#include "support/errors.h"

namespace farspan::dist::mpi {
namespace {

using farspan::testing::code_of;

std::span<const std::byte> bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(MpiStream, FillsOnePlaceAfterTheOtherHoweverItComes) {
  for (const size_t step : {1, 2, 3, 7}) {
    std::string first(2, '.'), second(5, '.');
    Stream stream;
    stream.expect(std::as_writable_bytes(std::span(first)));
    stream.expect({});
    stream.expect(std::as_writable_bytes(std::span(second)));
    EXPECT_EQ(stream.expected(), 7u);
    const std::string all = "abcdefg";
    for (size_t at = 0; at < all.size(); at += step) stream.pour(bytes(all.substr(at, step)));
    EXPECT_EQ(stream.came(), 7u);
    EXPECT_EQ(first + second, all) << step;
  }
}

TEST(MpiStream, TakesNoMoreThanIsExpected) {
  std::string place(2, '.');
  Stream stream;
  stream.expect(std::as_writable_bytes(std::span(place)));
  EXPECT_EQ(code_of([&] { stream.pour(bytes("abc")); }), Code::kCorrupt);
  EXPECT_EQ(place, "..");
}

TEST(MpiRoom, NamesWhoHasLeftAsInTheDefaultGroup) {
  Room room;
  room.spec.ranks = {4, 2, 7};
  EXPECT_FALSE(room.why_none(1));
  room.left.insert(1);
  EXPECT_EQ(room.why_none(1)->message(), "rank 2 has left the group");
  EXPECT_FALSE(room.why_none(0));
}

TEST(MpiRoom, AnyoneIsWaitedForUntilAllOthersHaveLeft) {
  Room room;
  room.spec.ranks = {0, 1, 2};
  room.left.insert(1);
  EXPECT_FALSE(room.why_none(-1));
  room.left.insert(2);
  EXPECT_EQ(room.why_none(-1)->code(), Code::kDisconnected);
  room.failure = Error(Code::kCancelled, "enough");
  EXPECT_EQ(room.why_none(-1)->code(), Code::kCancelled);
  room.is_left = true;
  EXPECT_EQ(room.why_none(-1)->code(), Code::kShutdown);
}

}  // namespace
}  // namespace farspan::dist::mpi
