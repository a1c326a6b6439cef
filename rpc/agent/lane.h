// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Lane: a connection beside a line between hosts. It carries pieces of large segments, in both
// directions, and nothing else.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <farspan/c10d/net/reactor.h>
#include <farspan/rpc/agent/greeting.h>
#include <farspan/rpc/agent/outbox.h>

namespace farspan::agent {

class Lane;

// What a lane tells its line. Threading: from any thread, never under a lock.
class LaneOwner {
 public:
  // Where a piece goes that is about to be read; as Asked::place().
  virtual Buffer place_of(uint64_t offer, const wire::PieceHeader& piece, size_t bytes) = 0;
  virtual void on_pieces(std::vector<wire::InFrame> pieces) = 0;
  // Once, unless it was closed from this end.
  virtual void on_lane_end(Lane& lane, const Error& why) = 0;

 protected:
  ~LaneOwner() = default;
};

//   throws  Error kCorrupt: the frame is no piece
wire::PieceHeader piece_header(const wire::InFrame& frame);

// Threading: every method from any thread. Lifetime: shared by its line and the reactor; it does
// nothing when the line is gone.
class Lane final : public net::Source {
 public:
  //   greeted  what the handshake has made; it has not failed
  Lane(net::Reactor& reactor, std::weak_ptr<LaneOwner> line, Greeting::Outcome greeted);

  // From now on pieces flow.
  void open();
  void send(wire::OutFrame& piece);
  // The memory of this offer's pieces may change from now on. True when some of them will never
  // leave.
  bool give_up(uint64_t offer);
  void close() noexcept;

  BytesMoved moved() const noexcept { return {outbox_.sent_bytes(), received_.load(), 0, 0}; }

  // net::Source
  int descriptor() const noexcept override { return stream_->read_descriptor(); }
  int write_descriptor() const noexcept override { return stream_->write_descriptor(); }
  uint64_t passed_bytes() const noexcept override {
    return received_.load(std::memory_order_relaxed) + outbox_.sent_bytes();
  }
  bool expect_input() noexcept override { return stream_->expect_input(); }
  void expect_no_input() noexcept override { stream_->expect_no_input(); }
  bool expect_room() noexcept override { return stream_->expect_room(); }
  bool pump(net::Role& role) noexcept override;
  bool flush() noexcept override;

 private:
  std::optional<Error> bring(std::vector<wire::InFrame> pieces) noexcept;
  void end(const Error& why);
  void read_some(std::vector<wire::InFrame>& pieces);

  net::Reactor& reactor_;
  const std::weak_ptr<LaneOwner> line_;
  const std::unique_ptr<transport::Stream> stream_;
  const std::unique_ptr<wire::FrameReader> reader_;  // of the holder of the role
  std::vector<wire::InFrame> first_;                 // until open()
  std::atomic<uint64_t> received_{0};                // written by the holder of the role
  std::atomic<bool> ended_{false};
  Outbox outbox_;
};

}  // namespace farspan::agent
