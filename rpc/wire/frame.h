// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Frame: what travels on a connection. WIRE.md is the norm; this is its C++ form.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include <farspan/c10d/base/buffer.h>
#include <farspan/c10d/base/error.h>
#include <farspan/rpc/wire/kinds.h>

namespace farspan::wire {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian");

inline constexpr uint32_t kMagic = 0x4e505346;  // "FSPN"
inline constexpr uint8_t kVersion = 1;

enum Flag : uint16_t {
  kReply = 1 << 0,   // answers the request with the same id
  kFailed = 1 << 1,  // with kReply: the meta is an error
  kOneWay = 1 << 2,  // no reply is expected
};

// Bytes [0, 48) of a frame.
struct FrameHeader {
  uint32_t magic = kMagic;
  uint8_t version = kVersion;
  Kind kind = Kind::kCall;
  uint16_t flags = 0;
  uint64_t request_id = 0;     // of the sender of the request; 0 when one-way
  uint32_t meta_bytes = 0;     // a multiple of 8
  uint32_t segment_count = 0;  // the segment table holds as many uint64 lengths
  uint64_t payload_bytes = 0;  // all segments, each padded to 8 bytes
  uint64_t remaining_us = 0;   // of the request's deadline; 0: none
  uint64_t chain = 0;          // of nested calls; 0: none
};
static_assert(sizeof(FrameHeader) == 48 && std::is_trivially_copyable_v<FrameHeader>);

constexpr uint64_t padded(uint64_t bytes) noexcept { return (bytes + 7) & ~uint64_t{7}; }

// A frame to be sent. Meta and segments without an owner are borrowed until send() returns; those
// with one may be kept until they are written.
struct OutFrame {
  FrameHeader header;  // the lengths are filled in by the sender
  std::span<const std::byte> meta;
  std::vector<Buffer> segments;

  uint64_t bytes() const noexcept {
    uint64_t total = sizeof(FrameHeader) + 8 * segments.size() + padded(meta.size());
    for (const Buffer& segment : segments) total += padded(segment.size());
    return total;
  }
};

// A frame that was received: all its bytes are here, and lengths have been checked against limits.
struct InFrame {
  FrameHeader header;
  Buffer meta;                   // 8-byte aligned
  std::vector<Buffer> segments;  // large ones from the receive pool, 64-byte aligned

  bool is_reply() const noexcept { return header.flags & kReply; }
  bool failed() const noexcept { return header.flags & kFailed; }
};

// Checked before anything is allocated. The defaults are the protocol's: every peer takes that
// much.
struct FrameLimits {
  uint32_t max_meta_bytes = 16u << 20;
  uint32_t max_segments = 1u << 16;
  uint64_t max_payload_bytes = uint64_t{64} << 30;
};

// Why a frame is not to be sent: kInvalidArgument, it exceeds the limits.
std::optional<Error> excess(const OutFrame& frame, const FrameLimits& limits);

}  // namespace farspan::wire
