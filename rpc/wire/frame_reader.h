// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// FrameReader: bytes in, frames out. It does no I/O: it says where the next bytes should go, so
// that large segments are read once, straight into their destination.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <farspan/rpc/wire/frame.h>

namespace farspan::wire {

// Threading: one thread at a time (the connection's reader).
class FrameReader {
 public:
  // `allocate` gives the destination of a large segment, 64-byte aligned.
  using Allocate = std::function<Buffer(size_t bytes)>;
  FrameReader(FrameLimits limits, Allocate allocate);
  // With other limits for the first frame, which comes from somebody who is not known yet: what
  // comes behind it is not looked at before advance() is called again.
  FrameReader(FrameLimits first, FrameLimits limits, Allocate allocate);

  // Asked before `allocate`, with the frame as far as it has been read: where this large segment
  // goes. One of another size than `bytes`: it does not matter.
  //   throws  Error kCorrupt: the frame makes no sense
  using Place = std::function<Buffer(const InFrame& frame, size_t bytes)>;
  void set_place(Place place) { place_ = std::move(place); }

  // Where to read to next: at most two places, in order.
  int want(iovec places[2]) noexcept;

  // Tells that `bytes`, or none, were read to where want() said; appends the frames that are whole
  // now.
  //   throws  Error kCorrupt: the frame breaks the protocol or a limit. The reader is of no use
  //           after that; the connection must be closed.
  void advance(size_t bytes, std::vector<InFrame>& frames);

  // True between frames.
  bool idle() const noexcept { return begin_ == end_ && !in_frame_; }

 private:
  bool parse_head();
  // The entries of a segment table.
  struct Table;
  size_t check_segments(const Table& table) const;
  void read_handed_over(const Table& table, const std::byte* from);
  Buffer room_for(size_t bytes) const;
  Buffer block_of(size_t bytes);
  void plan_segments(const Table& table, const Buffer& inline_space);
  bool fill_from_slab();
  size_t slab_left() const noexcept { return end_ - begin_; }
  void make_room(size_t bytes);

  struct Fill {     // bytes still to come, in order
    std::byte* to;  // null: padding, dropped
    size_t bytes;
  };

  const FrameLimits later_limits_;
  FrameLimits limits_;  // of the next frame
  bool is_first_of_stranger_ = false;
  const Allocate allocate_;
  Place place_;
  std::vector<std::byte> slab_;  // [begin_, end_) is read, but not yet parsed
  size_t begin_ = 0, end_ = 0;
  bool in_frame_ = false;
  InFrame frame_;
  Buffer shared_;  // the block of small frames, of which so much is used:
  size_t shared_used_ = 0;
  std::vector<Fill> fills_;
  size_t next_fill_ = 0;
};

}  // namespace farspan::wire
