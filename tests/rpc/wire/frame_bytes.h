// Frames as bytes: written field by field from WIRE.md, not by the code under test; and a stream
// that is read in pieces.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <farspan/rpc/wire/frame_reader.h>

namespace farspan::testing {

using Bytes = std::vector<std::byte>;

inline Bytes bytes(std::initializer_list<int> values) {
  Bytes out;
  for (const int value : values) out.push_back(static_cast<std::byte>(value));
  return out;
}

// Different at each place, and from one seed to the next.
inline Bytes pattern(size_t size, size_t seed = 0) {
  Bytes out(size);
  for (size_t i = 0; i < size; ++i) out[i] = static_cast<std::byte>(i * 7 + i / 251 + seed);
  return out;
}

template <class Number>
void put(Bytes& out, Number number) {
  for (size_t i = 0; i < sizeof number; ++i) {
    out.push_back(static_cast<std::byte>(static_cast<uint64_t>(number) >> (8 * i)));
  }
}

inline void append(Bytes& out, std::span<const std::byte> more) {
  out.insert(out.end(), more.begin(), more.end());
}

inline bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

// The fields of a header as a peer may send them, right or wrong.
struct RawFrame {
  uint32_t magic = 0x4e505346;
  uint8_t version = 1;
  uint8_t kind = 0x10;
  uint16_t flags = 0;
  uint64_t request_id = 1;
  std::optional<uint32_t> meta_bytes = {};  // absent: what is true
  std::optional<uint32_t> segment_count = {};
  std::optional<uint64_t> payload_bytes = {};
  uint64_t remaining_us = 0;
  uint64_t chain = 0;
  Bytes meta = {};                     // a multiple of 8 bytes
  std::vector<Bytes> segments = {};    // not padded
  std::vector<uint64_t> lengths = {};  // when they are not the segments' own
  // With flag 8: the addresses of the segments, 0 for those that travel; id, mark's address, mark;
  // with flag 16 also block, size, descriptor and offset of each. Last, with flag 32: the lease.
  std::vector<uint64_t> addresses = {};
  std::vector<uint64_t> offer = {};

  bool travels(size_t segment) const {
    return segment >= addresses.size() || addresses[segment] == 0;
  }
};

inline uint64_t padded_to_8(uint64_t size) { return (size + 7) / 8 * 8; }

inline Bytes to_bytes(const RawFrame& frame) {
  uint64_t payload = 0;
  for (size_t i = 0; i < frame.segments.size(); ++i) {
    if (frame.travels(i)) payload += padded_to_8(frame.segments[i].size());
  }
  Bytes out;
  put(out, frame.magic);
  put(out, frame.version);
  put(out, frame.kind);
  put(out, frame.flags);
  put(out, frame.request_id);
  put(out, frame.meta_bytes.value_or(static_cast<uint32_t>(frame.meta.size())));
  put(out, frame.segment_count.value_or(static_cast<uint32_t>(frame.segments.size())));
  put(out, frame.payload_bytes.value_or(payload));
  put(out, frame.remaining_us);
  put(out, frame.chain);
  std::vector<uint64_t> lengths = frame.lengths;
  for (size_t i = lengths.size(); i < frame.segments.size(); ++i) {
    lengths.push_back(frame.segments[i].size());
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    put(out, lengths[i]);
    if (frame.flags & 8) put(out, i < frame.addresses.size() ? frame.addresses[i] : uint64_t{0});
  }
  for (const uint64_t number : frame.offer) put(out, number);
  append(out, frame.meta);
  for (size_t i = 0; i < frame.segments.size(); ++i) {
    if (!frame.travels(i)) continue;
    append(out, frame.segments[i]);
    out.resize(padded_to_8(out.size()));
  }
  return out;
}

// A reader, and what it asked for and gave.
class Reading {
 public:
  explicit Reading(wire::FrameLimits limits = {}) : reader_(limits, counted()) {}
  Reading(wire::FrameLimits first, wire::FrameLimits limits) : reader_(first, limits, counted()) {}

  // What a stream does that has these bytes to give: fills the wanted places in order, but moves no
  // more than `most` bytes at a time.
  void feed(std::span<const std::byte> stream, size_t most = SIZE_MAX) {
    while (!stream.empty()) {
      iovec places[2];
      const int count = reader_.want(places);
      size_t left = std::min(most, stream.size()), moved = 0;
      for (int i = 0; i < count; ++i) {
        const size_t step = std::min(left, places[i].iov_len);
        if (step > 0) std::memcpy(places[i].iov_base, stream.data() + moved, step);
        moved += step;
        left -= step;
      }
      if (moved == 0) {
        ADD_FAILURE() << "the reader has no room for the next byte";
        return;
      }
      stream = stream.subspan(moved);
      reader_.advance(moved, frames_);
    }
  }

  // What feed() threw, if it did.
  std::optional<Error> error_of(std::span<const std::byte> stream, size_t most = SIZE_MAX) {
    try {
      feed(stream, most);
      return std::nullopt;
    } catch (const Error& error) {
      return error;
    }
  }

  wire::FrameReader& reader() { return reader_; }
  void read_on() { reader_.advance(0, frames_); }
  const std::vector<wire::InFrame>& frames() const { return frames_; }
  size_t allocated() const { return allocated_; }  // bytes asked for outside of the frames' blocks
  size_t largest() const { return largest_; }

 private:
  wire::FrameReader::Allocate counted() {
    return [this](size_t size) {
      allocated_ += size;
      largest_ = std::max(largest_, size);
      return Buffer::allocate(size);
    };
  }
  size_t allocated_ = 0, largest_ = 0;
  wire::FrameReader reader_;
  std::vector<wire::InFrame> frames_;
};

inline void expect_equal(const wire::InFrame& got, const RawFrame& sent) {
  EXPECT_EQ(static_cast<uint8_t>(got.header.kind), sent.kind);
  EXPECT_EQ(got.header.flags, sent.flags);
  EXPECT_EQ(got.header.request_id, sent.request_id);
  EXPECT_EQ(got.header.remaining_us, sent.remaining_us);
  EXPECT_EQ(got.header.chain, sent.chain);
  EXPECT_TRUE(same(got.meta.span(), sent.meta));
  ASSERT_EQ(got.segments.size(), sent.segments.size());
  for (size_t i = 0; i < sent.segments.size(); ++i) {
    EXPECT_TRUE(same(got.segments[i].span(), sent.segments[i])) << "segment " << i;
  }
}

}  // namespace farspan::testing
