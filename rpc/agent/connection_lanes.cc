// Large segments between hosts: they are offered as within a host, and come in pieces, by
// connections beside the line, where there are some.
#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <span>
#include <utility>

#include <farspan/c10d/base/log.h>
#include <farspan/rpc/agent/connection.h>

namespace farspan::agent {
namespace {

// However many the peer dials.
constexpr size_t kMostLanes = 32;
constexpr std::chrono::seconds kLongestLanesPause{60};

}  // namespace

bool Connection::takes_lanes() const {
  MutexLock lock(mutex_);
  return carries_locked() && has_lanes_ && lanes_.size() < kMostLanes;
}

void Connection::add_lane(Greeting::Outcome greeted) {
  auto lane = std::make_shared<Lane>(
      reactor_, std::shared_ptr<LaneOwner>(self(), static_cast<LaneOwner*>(this)),
      std::move(greeted));
  {
    MutexLock lock(mutex_);
    if (closing_ || lanes_.size() >= kMostLanes) return;
    lanes_.push_back(lane);
  }
  lane->open();
}

std::vector<std::shared_ptr<Lane>> Connection::lanes() const {
  MutexLock lock(mutex_);
  return lanes_;
}

BytesMoved Connection::moved() const {
  BytesMoved moved{sent_bytes(), received_bytes(), read_bytes_.load(), mapped_bytes_.load()};
  MutexLock lock(mutex_);
  moved += by_lanes_locked();
  return moved;
}

void Connection::lanes_were_dialled() {
  TimePoint again;
  {
    MutexLock lock(mutex_);
    if (closing_ || !lanes_.empty()) return;
    again = Clock::now() + lanes_pause_;
    lanes_pause_ = std::min(2 * lanes_pause_, kLongestLanesPause);
  }
  reactor_.timers().add(again, [weak = weak_from_this()] {
    if (const auto line = weak.lock()) static_cast<Connection&>(*line).lanes_wanted_ = false;
  });
}

BytesMoved Connection::by_lanes_locked() const {
  BytesMoved moved = by_ended_lanes_;
  for (const auto& lane : lanes_) moved += lane->moved();
  return moved;
}

// In turn, so that each lane has as much as the others. False: there is none yet, and these do not
// wait for one.
bool Connection::send_in_pieces(uint64_t offer, const std::vector<Buffer>& segments) {
  const std::vector<std::shared_ptr<Lane>> lanes = this->lanes();
  if (lanes.empty()) return false;
  {
    MutexLock lock(mutex_);
    in_pieces_.insert(offer);
  }
  size_t next = 0;
  for (size_t i = 0; i < segments.size(); ++i) {
    for (size_t offset = 0; offset < segments[i].size(); offset += wire::kPieceBytes) {
      const wire::PieceHeader header{i, offset};
      wire::OutFrame piece;
      piece.header.kind = wire::Kind::kPiece;
      piece.header.flags = wire::kOneWay;
      piece.header.request_id = offer;
      piece.meta = std::as_bytes(std::span(&header, 1));
      const size_t bytes = std::min<size_t>(wire::kPieceBytes, segments[i].size() - offset);
      piece.segments = {segments[i].slice(offset, bytes)};
      lanes[next++ % lanes.size()]->send(piece);
    }
  }
  return true;
}

Buffer Connection::place_of(uint64_t offer, const wire::PieceHeader& piece, size_t bytes) {
  return asked_.place(offer, piece, bytes);
}

// What is whole is delivered, whatever is wrong with the pieces behind.
void Connection::on_pieces(std::vector<wire::InFrame> pieces) {
  std::vector<wire::InFrame> whole;
  whole.reserve(pieces.size());
  std::exception_ptr wrong;
  try {
    for (const wire::InFrame& piece : pieces) {
      const wire::PieceHeader header = piece_header(piece);
      const uint64_t offer = piece.header.request_id;
      auto frame = asked_.came(offer, header, piece.segments.front());
      if (!frame) continue;
      be_whole(*frame);
      whole.push_back(std::move(*frame));
      send_about_offer(wire::Kind::kTaken, offer, 0);
    }
  } catch (...) {
    wrong = std::current_exception();
  }
  if (!whole.empty()) deliver_all(std::move(whole));
  if (wrong) std::rethrow_exception(wrong);
}

void Connection::forget_pieces(uint64_t offer) {
  if (!has_lanes_) return;
  MutexLock lock(mutex_);
  in_pieces_.erase(offer);
}

// Which of its pieces have come only the peer knows: what is not taken goes again, by the line.
void Connection::on_lane_end(Lane& lane, const Error& why) {
  {
    MutexLock lock(mutex_);
    const auto ended = std::find_if(lanes_.begin(), lanes_.end(),
                                    [&](const auto& one) { return one.get() == &lane; });
    if (ended == lanes_.end()) return;
    by_ended_lanes_ += lane.moved();
    lanes_.erase(ended);
    if (lanes_.empty()) lanes_wanted_ = false;  // others may be dialled
  }
  log(LogLevel::kInfo, "agent", "a lane to worker '" + peer_.name + "' has ended: " + why.what());
  try {
    MutexLock answering(answering_);  // who gave it pieces has noted them; others do not know it
    std::unordered_set<uint64_t> again;
    {
      MutexLock lock(mutex_);
      again.swap(in_pieces_);
    }
    for (const uint64_t offer : again) send_whole(offer);
  } catch (const std::bad_alloc&) {
    return close(Error(Code::kOverloaded, "no memory to send again what a lane had to bring"));
  }
  make_room();
}

}  // namespace farspan::agent
