#include <farspan/rpc/wire/frame_reader.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::wire {
namespace {

constexpr size_t kSlabBytes = 128 << 10;
// Segments up to this size share the frame's own block; larger ones get memory of their own.
constexpr size_t kInlineSegment = 16 << 10;
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

FrameReader::FrameReader(FrameLimits limits, Allocate allocate)
    : FrameReader(limits, limits, std::move(allocate)) {}

FrameReader::FrameReader(FrameLimits first, FrameLimits limits, Allocate allocate)
    : later_limits_(limits), limits_(first), allocate_(std::move(allocate)), slab_(kSlabBytes) {}

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
  }
  if (begin_ == end_) begin_ = end_ = 0;
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
  const size_t table_bytes = 8 * size_t{header.segment_count};
  const size_t head_bytes = sizeof(FrameHeader) + table_bytes + header.meta_bytes;
  if (slab_left() < head_bytes) {
    make_room(head_bytes);
    return false;
  }
  const std::byte* table = slab_.data() + begin_ + sizeof(FrameHeader);
  const size_t inline_bytes = check_segments({table, table_bytes});
  const Buffer block = Buffer::allocate(header.meta_bytes + inline_bytes);
  if (header.meta_bytes > 0) {
    std::memcpy(block.data(), table + table_bytes, header.meta_bytes);
  }
  frame_.meta = block.slice(0, header.meta_bytes);
  const Buffer inline_space = block.slice(header.meta_bytes, inline_bytes);
  plan_segments({table, table_bytes}, inline_space);
  begin_ += head_bytes;
  in_frame_ = true;
  return true;
}

// The segments must be exactly the payload. Returns how much of it shares the frame's block.
size_t FrameReader::check_segments(std::span<const std::byte> table) const {
  uint64_t left = frame_.header.payload_bytes;
  size_t inline_bytes = 0;
  for (size_t at = 0; at < table.size(); at += 8) {
    uint64_t length;
    std::memcpy(&length, table.data() + at, 8);
    if (length > left || padded(length) > left) throw corrupt("segments exceed the payload");
    left -= padded(length);
    if (length <= kInlineSegment) inline_bytes += padded(length);
  }
  if (left != 0) throw corrupt("the payload exceeds its segments");
  return inline_bytes;
}

void FrameReader::plan_segments(std::span<const std::byte> table, const Buffer& inline_space) {
  fills_.clear();
  next_fill_ = 0;
  const uint32_t count = frame_.header.segment_count;
  size_t used = 0;
  frame_.segments.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t length;
    std::memcpy(&length, table.data() + 8 * i, 8);
    if (length <= kInlineSegment) {
      frame_.segments.push_back(inline_space.slice(used, length));
      used += padded(length);
    } else {
      frame_.segments.push_back(allocate_(length));
    }
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
