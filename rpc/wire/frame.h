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
  kReply = 1 << 0,      // answers the request with the same id
  kFailed = 1 << 1,     // with kReply: the meta is an error
  kOneWay = 1 << 2,     // no reply is expected
  kOffered = 1 << 3,    // some segments stay with the sender, to be read out of its memory
  kHandsOver = 1 << 4,  // with kOffered: some of these can be mapped, and are the receiver's then
  kLends = 1 << 5,      // what it refers to stays until the receiver says that it has let go of it
};

// Features of Hello.
inline constexpr uint64_t kReadsOffers = 1 << 0;  // frames with kOffered may be sent to it
inline constexpr uint64_t kMapsBlocks = 1 << 1;   // and frames with kHandsOver
inline constexpr uint64_t kHasLanes = 1 << 2;     // what is offered between hosts comes by lanes

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

// Where the segments of a frame can be read that do not travel with it. It lies behind the segment
// table, whose entries then are of two numbers: the length, and the address in the sender's memory,
// or 0 for a segment that does travel.
struct Offer {
  uint64_t id = 0;  // of the sender's; 0: none
  // Where `mark` is to be read after the segments: it stands there as long as they are what they
  // were.
  uint64_t mark_address = 0;
  uint64_t mark = 0;
};
static_assert(sizeof(Offer) == 24);

// With kHandsOver, behind the offer, one for each segment: the block of the sender's shared memory
// that it lies in, which is the receiver's until it says that it has let go of it.
struct HandedOver {
  uint64_t block = 0;  // its id; 0: this segment is not handed over
  uint64_t block_bytes = 0;
  uint64_t descriptor = 0;  // of the sender's process
  uint64_t offset = 0;      // of the segment in it
};
static_assert(sizeof(HandedOver) == 32);

// What a segment is cut into for lanes; the last piece has the rest.
inline constexpr uint64_t kPieceBytes = 1 << 20;

// The metadata of a kPiece.
struct PieceHeader {
  uint64_t segment = 0;  // its number among those that are offered with it
  uint64_t offset = 0;   // of the piece in it, a multiple of kPieceBytes
};
static_assert(sizeof(PieceHeader) == 16);

constexpr uint64_t padded(uint64_t bytes) noexcept { return (bytes + 7) & ~uint64_t{7}; }

// What a frame refers to beside its bytes. It lives until the receiver has let go of it.
class Lent {
 public:
  virtual ~Lent() = default;
  // The line has ended, and it goes now: nobody knows whether the receiver still uses it.
  virtual void line_ended() noexcept {}
};

// A frame to be sent. Meta and segments without an owner are borrowed until send() returns; those
// with one may be kept until they are written.
struct OutFrame {
  FrameHeader header;  // the lengths are filled in by the sender
  std::span<const std::byte> meta;
  std::vector<Buffer> segments;
  Offer offer;                          // with kOffered
  uint64_t offered_from = UINT64_MAX;   // segments that have an owner and are so large are offered
  std::vector<HandedOver> handed_over;  // with kHandsOver: as many as segments
  std::shared_ptr<Lent> lent;           // kept until the receiver says that it has let go
  uint64_t lease = 0;                   // with kLends: the id of that; of the sender's

  bool is_offered(const Buffer& segment) const noexcept {
    return segment.size() >= offered_from && segment.owner() != nullptr;
  }
  uint64_t head_bytes() const noexcept {
    const bool offers = header.flags & kOffered;
    return sizeof(FrameHeader) +
           (offers ? 16 * segments.size() + sizeof(Offer) : 8 * segments.size()) +
           sizeof(HandedOver) * handed_over.size() + (lease != 0 ? sizeof lease : 0) +
           padded(meta.size());
  }
  // Of what travels, and with what is offered.
  uint64_t wire_bytes() const noexcept {
    uint64_t total = head_bytes();
    for (const Buffer& segment : segments)
      total += is_offered(segment) ? 0 : padded(segment.size());
    return total;
  }
  uint64_t bytes() const noexcept {
    uint64_t total = head_bytes();
    for (const Buffer& segment : segments) total += padded(segment.size());
    return total;
  }
};

// A frame that was received: all its bytes are here but those that are offered, and lengths have
// been checked against limits. There is no memory yet for a segment that is handed over.
struct InFrame {
  FrameHeader header;
  Buffer meta;                   // 8-byte aligned
  std::vector<Buffer> segments;  // large ones from a memory pool, 64-byte aligned
  Offer offer;
  std::vector<uint64_t> offered;        // with kOffered: the address of each segment; 0: it is here
  std::vector<HandedOver> handed_over;  // with kHandsOver: of each segment
  uint64_t lease = 0;                   // with kLends: its id
  std::shared_ptr<void> borrowed;       // the lease: as long as anybody has this, it goes on

  bool is_reply() const noexcept { return header.flags & kReply; }
  bool is_handed_over(size_t segment) const noexcept {
    return !handed_over.empty() && handed_over[segment].block != 0;
  }
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
