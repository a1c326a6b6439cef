// The rings between two processes, here between two threads. The rules: shm/ring.h.
#include <farspan/c10d/transport/shm/ring.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "support/seeded_random.h"

namespace farspan::testing {
namespace {

using transport::RingReader;
using transport::RingState;
using transport::RingWriter;

constexpr size_t kCapacity = 1 << 10;

class RingTest : public ::testing::Test {
 protected:
  size_t write(const std::vector<std::byte>& bytes) {
    const iovec piece{const_cast<std::byte*>(bytes.data()), bytes.size()};
    return writer_.write(&piece, 1);
  }
  std::vector<std::byte> read(size_t most) {
    std::vector<std::byte> bytes(most);
    const iovec place{bytes.data(), bytes.size()};
    bytes.resize(reader_.read(&place, 1));
    return bytes;
  }

  RingState state_{};
  std::vector<std::byte> bytes_ = std::vector<std::byte>(kCapacity);
  RingWriter writer_{state_, bytes_.data(), kCapacity};
  RingReader reader_{state_, bytes_.data(), kCapacity};
};

// The n-th byte of a stream: no two that lie a ring apart are the same, as a rule.
std::byte nth(uint64_t n) { return std::byte(n * 2'654'435'761u >> 7 & 0xff); }

std::vector<std::byte> stretch(uint64_t from, size_t size) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = nth(from + i);
  return bytes;
}

TEST_F(RingTest, TakesWhatItHasRoomForAndGivesItBackInOrder) {
  EXPECT_TRUE(read(10).empty());
  EXPECT_EQ(write(stretch(0, kCapacity + 100)), kCapacity);
  EXPECT_EQ(write(stretch(0, 1)), 0u);
  EXPECT_FALSE(writer_.has_room());
  EXPECT_EQ(read(300), stretch(0, 300));
  EXPECT_EQ(write(stretch(kCapacity, 500)), 300u) << "around the end of the ring";
  EXPECT_EQ(read(2 * kCapacity), stretch(300, kCapacity));
  EXPECT_FALSE(reader_.has_bytes());
}

TEST_F(RingTest, ManyPiecesAndPlaces) {
  auto bytes = stretch(0, 600);
  const iovec pieces[] = {{bytes.data(), 100}, {nullptr, 0}, {bytes.data() + 100, 500}};
  for (int round = 0; round < 10; ++round) {
    ASSERT_EQ(writer_.write(pieces, 3), 600u);
    std::vector<std::byte> got(600);
    const iovec places[] = {{got.data(), 350}, {nullptr, 0}, {got.data() + 350, 250}};
    ASSERT_EQ(reader_.read(places, 3), 600u);
    ASSERT_EQ(got, bytes);
  }
}

TEST_F(RingTest, AReaderThatWaitsIsToBeWokenOnce) {
  EXPECT_TRUE(reader_.wait_for_bytes());
  write(stretch(0, 1));
  EXPECT_TRUE(writer_.is_reader_to_be_woken());
  EXPECT_FALSE(writer_.is_reader_to_be_woken());
  EXPECT_FALSE(reader_.wait_for_bytes()) << "there is a byte";
  reader_.wait_no_more();
  write(stretch(1, 1));
  EXPECT_FALSE(writer_.is_reader_to_be_woken());
}

TEST_F(RingTest, AWriterThatWaitsIsWokenWhenHalfOfItIsFree) {
  ASSERT_EQ(write(stretch(0, kCapacity)), kCapacity);
  EXPECT_TRUE(writer_.wait_for_room());
  read(kCapacity / 2 - 1);
  EXPECT_FALSE(reader_.is_writer_to_be_woken());
  read(1);
  EXPECT_TRUE(reader_.is_writer_to_be_woken());
  EXPECT_FALSE(reader_.is_writer_to_be_woken());
  EXPECT_FALSE(writer_.wait_for_room()) << "there is some";
}

TEST_F(RingTest, PositionsThatCannotBeBreakIt) {
  write(stretch(0, 10));
  state_.read.store(11);
  EXPECT_EQ(write(stretch(0, kCapacity)), 0u);
  EXPECT_TRUE(writer_.is_broken());
  state_.read.store(0);
  EXPECT_EQ(write(stretch(0, 1)), 0u) << "for good";

  state_.written.store(kCapacity + 1);
  EXPECT_TRUE(read(1).empty());
  EXPECT_TRUE(reader_.is_broken());
}

// Two threads that sleep whenever they may, each until the other one has said that it wakes it: a
// wake-up that is lost would be a hang.
TEST_F(RingTest, NoWakeUpIsLost) {
  constexpr uint64_t kBytes = 3'000'000;
  std::atomic<uint32_t> reader_signal{0}, writer_signal{0};
  std::thread writing([&] {
    SeededRandom random(1);
    uint64_t sent = 0;
    while (sent < kBytes) {
      const size_t size = std::min<uint64_t>(kBytes - sent, 1 + random.below(2 * kCapacity));
      const size_t moved = write(stretch(sent, size));
      sent += moved;
      if (moved > 0 && writer_.is_reader_to_be_woken()) {
        reader_signal.fetch_add(1);
        reader_signal.notify_one();
      }
      const uint32_t before = writer_signal.load();
      if (moved == 0 && writer_.wait_for_room()) writer_signal.wait(before);
    }
  });
  SeededRandom random(2);
  uint64_t received = 0, wrong = 0;
  while (received < kBytes) {
    const auto got = read(1 + random.below(2 * kCapacity));
    wrong += got != stretch(received, got.size());
    received += got.size();
    if (!got.empty() && reader_.is_writer_to_be_woken()) {
      writer_signal.fetch_add(1);
      writer_signal.notify_one();
    }
    const uint32_t before = reader_signal.load();
    if (got.empty() && reader_.wait_for_bytes()) reader_signal.wait(before);
  }
  writing.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_EQ(received, kBytes);
}

}  // namespace
}  // namespace farspan::testing
