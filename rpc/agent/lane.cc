#include <farspan/rpc/agent/lane.h>

#include <cstring>
#include <new>
#include <optional>
#include <utility>

namespace farspan::agent {
namespace {

constexpr int kReadsPerTurn = 16;

}  // namespace

wire::PieceHeader piece_header(const wire::InFrame& frame) {
  wire::PieceHeader header;
  if (frame.header.kind != wire::Kind::kPiece || frame.header.segment_count != 1 ||
      frame.meta.size() != sizeof header || frame.offer.id != 0) {
    throw Error(Code::kCorrupt, "something else than a piece came on a lane");
  }
  std::memcpy(&header, frame.meta.data(), sizeof header);
  return header;
}

Lane::Lane(net::Reactor& reactor, std::weak_ptr<LaneOwner> line, Greeting::Outcome greeted)
    : reactor_(reactor),
      line_(std::move(line)),
      stream_(std::move(greeted.stream)),
      reader_(std::move(greeted.reader)),
      first_(std::move(greeted.frames)) {
  reader_->set_place([line = line_](const wire::InFrame& frame, size_t bytes) {
    const wire::PieceHeader piece = piece_header(frame);
    const auto owner = line.lock();
    return owner ? owner->place_of(frame.header.request_id, piece, bytes) : Buffer();
  });
  outbox_.open(*stream_, std::move(greeted.unsent));
}

void Lane::open() {
  reactor_.add(shared_from_this());
  if (flush()) reactor_.flush_when_writable(*this);
  if (const auto why = bring(std::exchange(first_, {}))) end(*why);
}

void Lane::send(wire::OutFrame& piece) {
  const Outbox::State state = outbox_.send(piece);
  if (state == Outbox::State::kLeft) reactor_.flush_when_writable(*this);
  if (state == Outbox::State::kBroken) stream_->shut();  // who reads ends it
}

bool Lane::give_up(uint64_t offer) {
  const Outbox::GivenUp given_up = outbox_.give_up_offer(offer);
  if (given_up.broken) stream_->shut();
  if (flush()) reactor_.flush_when_writable(*this);
  return given_up.broken || !given_up.dropped.empty();
}

void Lane::close() noexcept {
  if (ended_.exchange(true)) return;
  reactor_.remove(*this);
  outbox_.close();
  stream_->shut();
}

bool Lane::flush() noexcept {
  if (!outbox_.has_left() || ended_) return false;
  const Outbox::State state = outbox_.flush();
  if (state == Outbox::State::kBroken) stream_->shut();
  return state == Outbox::State::kLeft;
}

//   throws  Error: the lane has ended
void Lane::read_some(std::vector<wire::InFrame>& pieces) {
  for (int turn = 0; turn < kReadsPerTurn; ++turn) {
    iovec places[2];
    const int count = reader_->want(places);
    const transport::IoResult result = stream_->read(places, count);
    if (result.status == transport::IoStatus::kWouldBlock) return;
    if (result.status == transport::IoStatus::kClosed) {
      throw Error(Code::kDisconnected, "closed by the other side");
    }
    if (result.status == transport::IoStatus::kFailed) {
      throw Error(Code::kDisconnected, std::strerror(result.error));
    }
    received_.fetch_add(result.bytes, std::memory_order_relaxed);
    reader_->advance(result.bytes, pieces);
  }
}

// What was wrong with them, if anything.
std::optional<Error> Lane::bring(std::vector<wire::InFrame> pieces) noexcept {
  const auto line = line_.lock();
  if (!line || pieces.empty()) return std::nullopt;
  try {
    line->on_pieces(std::move(pieces));
  } catch (const Error& why) {
    return why;
  } catch (const std::bad_alloc&) {
    return Error(Code::kOverloaded, "no memory for a piece");
  }
  return std::nullopt;
}

void Lane::end(const Error& why) {
  if (ended_.exchange(true)) return;
  reactor_.remove(*this);
  outbox_.close();
  stream_->shut();
  if (const auto line = line_.lock()) line->on_lane_end(*this, why);
}

bool Lane::pump(net::Role& role) noexcept {
  std::vector<wire::InFrame> pieces;
  std::optional<Error> failure;
  if (ended_) return false;
  try {
    read_some(pieces);
  } catch (const Error& why) {
    failure = why;
  } catch (const std::bad_alloc&) {
    failure = Error(Code::kOverloaded, "no memory for a piece");
  }
  if (pieces.empty() && !failure) return false;
  const auto self = shared_from_this();
  if (failure) reactor_.remove(*this);
  role.release();
  if (const auto why = bring(std::move(pieces))) failure = why;
  if (failure) end(*failure);
  return true;
}

}  // namespace farspan::agent
