#include <farspan/rpc/wire/frame_reader.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::wire {
namespace {

constexpr size_t kSlabBytes = 128 << 10;
constexpr size_t kMostKept = 1 << 20;  // of a slab that had to grow
// Segments up to this size share the frame's own block; larger ones get memory of their own.
constexpr size_t kInlineSegment = 16 << 10;
// Frames up to this size share a block of the next: they come and go in rows, and what somebody
// keeps of one is copied out of it.
constexpr size_t kSmallFrame = 1 << 10;
constexpr size_t kSharedBlock = 4 << 10;
constexpr size_t kBlockAlignment = 16;
// What remains of a segment is read straight into place when it is at least this much.
constexpr size_t kDirectRead = 8 << 10;

Error corrupt(std::string what) {
  return Error(Code::kCorrupt, std::move(what))
      .operation("read a frame")
      .advice("the peer speaks another protocol or version, or the bytes were damaged");
}

void check(const FrameHeader& header, const FrameLimits& limits) {
  if (header.magic != kMagic) throw corrupt("no farspan frame begins here");
  if (header.version != kVersion) {
    throw corrupt("wire version " + std::to_string(header.version) + ", this side speaks " +
                  std::to_string(kVersion));
  }
  if (header.meta_bytes % 8 != 0) throw corrupt("the meta is no multiple of 8 bytes");
  if (header.meta_bytes > limits.max_meta_bytes) {
    throw corrupt("meta of " + std::to_string(header.meta_bytes) + " bytes, the limit is " +
                  std::to_string(limits.max_meta_bytes));
  }
  if (header.segment_count > limits.max_segments) {
    throw corrupt(std::to_string(header.segment_count) + " segments, the limit is " +
                  std::to_string(limits.max_segments));
  }
  if (header.payload_bytes > limits.max_payload_bytes) {
    throw corrupt("payload of " + std::to_string(header.payload_bytes) + " bytes, the limit is " +
                  std::to_string(limits.max_payload_bytes));
  }
}

}  // namespace

struct FrameReader::Table {
  const std::byte* bytes;
  uint32_t count;
  bool offers;

  size_t entry_bytes() const noexcept { return offers ? 16 : 8; }
  size_t size() const noexcept { return entry_bytes() * count; }
  uint64_t number(size_t at) const noexcept {
    uint64_t value;
    std::memcpy(&value, bytes + at, sizeof value);
    return value;
  }
  uint64_t length(uint32_t i) const noexcept { return number(entry_bytes() * i); }
  uint64_t address(uint32_t i) const noexcept { return offers ? number(entry_bytes() * i + 8) : 0; }
};

FrameReader::FrameReader(FrameLimits limits, Allocate allocate)
    : later_limits_(limits), limits_(limits), allocate_(std::move(allocate)), slab_(kSlabBytes) {}

FrameReader::FrameReader(FrameLimits first, FrameLimits limits, Allocate allocate)
    : FrameReader(limits, std::move(allocate)) {
  limits_ = first;
  is_first_of_stranger_ = true;
}

int FrameReader::want(iovec places[2]) noexcept {
  int count = 0;
  if (in_frame_ && begin_ == end_ && next_fill_ < fills_.size()) {
    const Fill& fill = fills_[next_fill_];
    if (fill.to && fill.bytes >= kDirectRead) places[count++] = {fill.to, fill.bytes};
  }
  if (begin_ == end_) begin_ = end_ = 0;
  places[count++] = {slab_.data() + end_, slab_.size() - end_};
  return count;
}

void FrameReader::advance(size_t bytes, std::vector<InFrame>& frames) {
  if (in_frame_ && begin_ == end_ && next_fill_ < fills_.size()) {
    Fill& fill = fills_[next_fill_];
    if (fill.to && fill.bytes >= kDirectRead) {
      const size_t direct = std::min(bytes, fill.bytes);
      fill.to += direct;
      fill.bytes -= direct;
      bytes -= direct;
      if (fill.bytes == 0) ++next_fill_;
    }
  }
  end_ += bytes;
  for (;;) {
    if (!in_frame_ && !parse_head()) break;
    if (!fill_from_slab()) break;
    in_frame_ = false;
    limits_ = later_limits_;
    frames.push_back(std::move(frame_));
    frame_ = InFrame{};
    if (std::exchange(is_first_of_stranger_, false)) break;
  }
  if (begin_ == end_) begin_ = end_ = 0;
  if (end_ == 0 && !in_frame_ && slab_.size() > kMostKept) {  // a rare one was so large
    slab_.resize(kSlabBytes);
    slab_.shrink_to_fit();
  }
}

// Reads header, segment table and meta once they are all in the slab; false: more must come.
bool FrameReader::parse_head() {
  if (slab_left() < sizeof(FrameHeader)) {
    make_room(sizeof(FrameHeader));
    return false;
  }
  std::memcpy(&frame_.header, slab_.data() + begin_, sizeof(FrameHeader));
  const FrameHeader& header = frame_.header;
  check(header, limits_);
  const bool offers = header.flags & kOffered;
  Table table{nullptr, header.segment_count, offers};
  const bool hands_over = offers && (header.flags & kHandsOver);
  const size_t handed_over_bytes = hands_over ? sizeof(HandedOver) * header.segment_count : 0;
  const size_t offer_bytes = (offers ? sizeof(Offer) : 0) + handed_over_bytes;
  const bool lends = header.flags & kLends;
  const size_t extra_bytes = offer_bytes + (lends ? sizeof frame_.lease : 0);
  const size_t head_bytes = sizeof(FrameHeader) + table.size() + extra_bytes + header.meta_bytes;
  if (slab_left() < head_bytes) {
    make_room(head_bytes);
    return false;
  }
  table.bytes = slab_.data() + begin_ + sizeof(FrameHeader);
  const std::byte* const behind = table.bytes + table.size();
  const size_t inline_bytes = check_segments(table);
  const Buffer block = block_of(header.meta_bytes + inline_bytes);
  if (offers) std::memcpy(&frame_.offer, behind, sizeof(Offer));
  if (offers && frame_.offer.id == 0) throw corrupt("an offer without an id");
  if (hands_over) read_handed_over(table, behind + sizeof(Offer));
  if (lends) std::memcpy(&frame_.lease, behind + offer_bytes, sizeof frame_.lease);
  if (lends && frame_.lease == 0) throw corrupt("a lease without an id");
  if (header.meta_bytes > 0) {
    std::memcpy(block.data(), behind + extra_bytes, header.meta_bytes);
  }
  frame_.meta = block.slice(0, header.meta_bytes);
  const Buffer inline_space = block.slice(header.meta_bytes, inline_bytes);
  plan_segments(table, inline_space);
  begin_ += head_bytes;
  in_frame_ = true;
  return true;
}

void FrameReader::read_handed_over(const Table& table, const std::byte* from) {
  frame_.handed_over.resize(table.count);
  if (table.count > 0)
    std::memcpy(frame_.handed_over.data(), from, sizeof(HandedOver) * table.count);
  for (uint32_t i = 0; i < table.count; ++i) {
    const HandedOver& one = frame_.handed_over[i];
    if (one.block == 0) continue;
    const bool is_inside = one.offset <= one.block_bytes &&
                           table.length(i) <= one.block_bytes - one.offset &&
                           one.descriptor <= std::numeric_limits<int>::max();
    if (table.address(i) == 0 || table.length(i) <= kInlineSegment || !is_inside) {
      throw corrupt("a segment is handed over that is not in its block");
    }
  }
}

// The segments that travel must be exactly the payload; those that are offered are limited alike.
// Returns how much shares the frame's block.
size_t FrameReader::check_segments(const Table& table) const {
  uint64_t left = frame_.header.payload_bytes, offer_left = limits_.max_payload_bytes;
  size_t inline_bytes = 0;
  for (uint32_t i = 0; i < table.count; ++i) {
    const uint64_t length = table.length(i);
    uint64_t& room = table.address(i) != 0 ? offer_left : left;
    if (length > room || padded(length) > room) {
      throw corrupt(table.address(i) != 0 ? "the offered segments exceed the limit"
                                          : "segments exceed the payload");
    }
    room -= padded(length);
    if (length <= kInlineSegment) inline_bytes += padded(length);
  }
  if (left != 0) throw corrupt("the payload exceeds its segments");
  return inline_bytes;
}

Buffer FrameReader::block_of(size_t bytes) {
  if (bytes > kSmallFrame) return Buffer::allocate(bytes);
  const size_t room = (bytes + kBlockAlignment - 1) & ~(kBlockAlignment - 1);
  if (shared_.size() - shared_used_ < room) {
    shared_ = Buffer::allocate(kSharedBlock);
    shared_used_ = 0;
  }
  return shared_.slice(std::exchange(shared_used_, shared_used_ + room), bytes);
}

Buffer FrameReader::room_for(size_t bytes) const {
  Buffer place = place_ ? place_(frame_, bytes) : Buffer();
  return place.size() == bytes ? place : allocate_(bytes);
}

void FrameReader::plan_segments(const Table& table, const Buffer& inline_space) {
  fills_.clear();
  next_fill_ = 0;
  size_t used = 0;
  frame_.segments.reserve(table.count);
  for (uint32_t i = 0; i < table.count; ++i) {
    const uint64_t length = table.length(i);
    if (frame_.is_handed_over(i)) {
      frame_.segments.push_back(Buffer(nullptr, length, nullptr));
    } else if (length <= kInlineSegment) {
      frame_.segments.push_back(inline_space.slice(used, length));
      used += padded(length);
    } else {
      frame_.segments.push_back(room_for(length));
    }
    if (table.offers) frame_.offered.push_back(table.address(i));
    if (table.address(i) != 0) continue;
    if (length > 0) fills_.push_back({frame_.segments.back().data(), length});
    if (padded(length) > length) fills_.push_back({nullptr, padded(length) - length});
  }
}

// Copies what is here into the segments; true when the frame is whole.
bool FrameReader::fill_from_slab() {
  while (next_fill_ < fills_.size()) {
    Fill& fill = fills_[next_fill_];
    const size_t bytes = std::min(fill.bytes, slab_left());
    if (fill.to && bytes > 0) {
      std::memcpy(fill.to, slab_.data() + begin_, bytes);
      fill.to += bytes;
    }
    begin_ += bytes;
    fill.bytes -= bytes;
    if (fill.bytes > 0) return false;
    ++next_fill_;
  }
  return true;
}

// Sees to it that `bytes` from begin_ on fit into the slab.
void FrameReader::make_room(size_t bytes) {
  if (begin_ + bytes <= slab_.size()) return;
  std::memmove(slab_.data(), slab_.data() + begin_, slab_left());
  end_ -= begin_;
  begin_ = 0;
  if (bytes > slab_.size()) slab_.resize(bytes);
}

}  // namespace farspan::wire
