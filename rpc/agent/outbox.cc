#include <farspan/rpc/agent/outbox.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <new>
#include <utility>

namespace farspan::agent {
namespace {

// A frame up to this size is put together in one place and written with one small call.
constexpr size_t kGather = 4096;
constexpr size_t kMaxPieces = 64;  // per write
constexpr std::byte kPadding[8] = {};

void fill_lengths(wire::OutFrame& frame) noexcept {
  frame.header.meta_bytes = static_cast<uint32_t>(wire::padded(frame.meta.size()));
  frame.header.segment_count = static_cast<uint32_t>(frame.segments.size());
  frame.header.payload_bytes = 0;
  for (const Buffer& segment : frame.segments) {
    if (!frame.is_offered(segment)) frame.header.payload_bytes += wire::padded(segment.size());
  }
}

std::byte* put(std::byte* to, const void* bytes, size_t size) noexcept {
  if (size > 0) std::memcpy(to, bytes, size);
  return to + size;
}

std::byte* put_padded(std::byte* to, const void* bytes, size_t size) noexcept {
  to = put(to, bytes, size);
  return put(to, kPadding, wire::padded(size) - size);
}

// Header, segment table and meta, written to `to`.
std::byte* put_head(std::byte* to, const wire::OutFrame& frame) noexcept {
  to = put(to, &frame.header, sizeof frame.header);
  const bool offers = frame.header.flags & wire::kOffered;
  for (const Buffer& segment : frame.segments) {
    const uint64_t length = segment.size();
    to = put(to, &length, sizeof length);
    if (!offers) continue;
    const uint64_t address =
        frame.is_offered(segment) ? reinterpret_cast<uintptr_t>(segment.data()) : 0;
    to = put(to, &address, sizeof address);
  }
  if (offers) to = put(to, &frame.offer, sizeof frame.offer);
  to = put(to, frame.handed_over.data(), sizeof(wire::HandedOver) * frame.handed_over.size());
  if (frame.lease != 0) to = put(to, &frame.lease, sizeof frame.lease);
  return put_padded(to, frame.meta.data(), frame.meta.size());
}

}  // namespace

Outbox::Piece Outbox::piece_of(const wire::OutFrame& frame, Buffer buffer, bool is_first) {
  const wire::FrameHeader& header = frame.header;
  Piece piece;
  piece.buffer = std::move(buffer);
  piece.is_first = is_first;
  if (header.kind >= wire::Kind::kCall && !(header.flags & wire::kReply)) {
    piece.request = header.request_id;
  } else if (header.kind == wire::Kind::kBytes || header.kind == wire::Kind::kPiece) {
    piece.offer = header.request_id;
  }
  return piece;
}

void Outbox::open(transport::Stream& stream, std::vector<Buffer> first) {
  MutexLock lock(mutex_);
  if (!broken_) stream_ = &stream;
  for (auto piece = first.rbegin(); piece != first.rend(); ++piece) {
    left_bytes_.fetch_add(piece->size(), std::memory_order_release);
    left_.push_front({std::move(*piece)});
  }
}

void Outbox::send_last(wire::OutFrame& frame) {
  std::deque<Piece> dropped;  // released outside the lock
  {
    MutexLock lock(mutex_);
    const bool has_begun = !left_.empty() && (!left_.front().is_first || left_.front().done > 0);
    if (has_begun) return;
    dropped.swap(left_);
    left_bytes_.store(0, std::memory_order_release);
  }
  send(frame);
}

void Outbox::stop_writing() {
  MutexLock lock(mutex_);
  stop_writing_locked();
}

void Outbox::stop_writing_locked() {
  broken_.store(true);
  stream_ = nullptr;
}

void Outbox::close() { close_and_take(); }

std::deque<Outbox::Piece> Outbox::close_and_take() {
  std::deque<Piece> taken;  // what close() drops is released outside the lock
  MutexLock lock(mutex_);
  stop_writing_locked();
  closed_ = true;
  taken.swap(left_);
  left_bytes_.store(0, std::memory_order_release);
  return taken;
}

std::vector<Buffer> Outbox::take() {
  std::vector<Buffer> rest;
  for (const Piece& piece : close_and_take()) {
    rest.push_back(piece.buffer.slice(piece.done, piece.buffer.size() - piece.done));
  }
  return rest;
}

std::vector<Outbox::Unsent> Outbox::take_unsent() noexcept {
  std::deque<Piece> taken = close_and_take();
  std::vector<Unsent> unsent;
  bool is_unsent = false;  // the frame that the piece is of
  try {
    for (Piece& piece : taken) {
      if (piece.is_first) {
        is_unsent = piece.request != 0 && piece.done == 0;
        if (is_unsent) unsent.push_back({piece.request, {}});
      }
      if (is_unsent) unsent.back().pieces.push_back(std::move(piece.buffer));
    }
  } catch (const std::bad_alloc&) {
    unsent.clear();
  }
  return unsent;
}

Outbox::State Outbox::send(wire::OutFrame& frame) {
  fill_lengths(frame);
  const uint64_t bytes = frame.wire_bytes();
  return bytes <= kGather ? send_small(frame, bytes) : send_pieces(frame);
}

Outbox::State Outbox::send_small(wire::OutFrame& frame, uint64_t bytes) {
  alignas(8) std::array<std::byte, kGather> gathered;
  std::byte* end = put_head(gathered.data(), frame);
  for (const Buffer& segment : frame.segments) {
    if (!frame.is_offered(segment)) end = put_padded(end, segment.data(), segment.size());
  }
  MutexLock lock(mutex_);
  if (closed_) return State::kClosed;
  int64_t moved = 0;
  if (stream_ && left_.empty()) {
    const iovec piece{gathered.data(), bytes};
    moved = std::max(write_locked(&piece, 1), int64_t{0});
    if (static_cast<uint64_t>(moved) == bytes) return State::kDone;
  }
  keep_locked(piece_of(
      frame, Buffer::borrowed(gathered.data() + moved, bytes - static_cast<uint64_t>(moved)),
      moved == 0));
  return state_locked();
}

Outbox::State Outbox::send_pieces(wire::OutFrame& frame) {
  const Buffer head = Buffer::allocate(frame.head_bytes());
  put_head(head.data(), frame);
  std::vector<Buffer> pieces{head};
  for (const Buffer& segment : frame.segments) {
    if (frame.is_offered(segment)) continue;
    if (!segment.empty()) pieces.push_back(segment);
    const size_t padding = wire::padded(segment.size()) - segment.size();
    if (padding > 0) pieces.push_back(Buffer::borrowed(kPadding, padding));
  }
  MutexLock lock(mutex_);
  if (closed_) return State::kClosed;
  size_t first = 0;
  while (stream_ && left_.empty() && first < pieces.size()) {
    std::array<iovec, kMaxPieces> views;
    const size_t count = std::min(pieces.size() - first, kMaxPieces);
    for (size_t i = 0; i < count; ++i) {
      views[i] = {pieces[first + i].data(), pieces[first + i].size()};
    }
    int64_t moved = write_locked(views.data(), static_cast<int>(count));
    if (moved <= 0) break;
    while (first < pieces.size() && static_cast<uint64_t>(moved) >= pieces[first].size()) {
      moved -= static_cast<int64_t>(pieces[first++].size());
    }
    if (moved > 0) {
      const auto done = static_cast<size_t>(moved);
      pieces[first] = pieces[first].slice(done, pieces[first].size() - done);
    }
  }
  for (bool is_kept = true; first < pieces.size() && is_kept; ++first) {
    const bool is_whole = pieces[first].data() == head.data();
    is_kept = keep_locked(piece_of(frame, std::move(pieces[first]), is_whole));
  }
  return state_locked();
}

Outbox::State Outbox::state_locked() const {
  return broken_ ? State::kBroken : left_.empty() ? State::kDone : State::kLeft;
}

Outbox::State Outbox::flush() {
  if (!has_left()) return State::kDone;
  if (!mutex_.try_lock()) return State::kDone;  // who has it looks after what it leaves
  const State state = flush_locked();
  mutex_.unlock();
  return state;
}

Outbox::State Outbox::flush_locked() {
  if (broken_) return State::kBroken;
  if (!stream_) return State::kLeft;
  while (!left_.empty()) {
    std::array<iovec, kMaxPieces> views;
    const size_t count = std::min(left_.size(), kMaxPieces);
    for (size_t i = 0; i < count; ++i) {
      const Piece& piece = left_[i];
      views[i] = {piece.buffer.data() + piece.done, piece.buffer.size() - piece.done};
    }
    int64_t moved = write_locked(views.data(), static_cast<int>(count));
    if (moved < 0) return State::kBroken;
    if (moved == 0) return State::kLeft;
    left_bytes_.fetch_sub(static_cast<uint64_t>(moved));  // before a look at who waits for room
    while (moved > 0) {
      Piece& piece = left_.front();
      const size_t step = std::min(static_cast<size_t>(moved), piece.buffer.size() - piece.done);
      piece.done += step;
      moved -= static_cast<int64_t>(step);
      if (piece.done == piece.buffer.size()) left_.pop_front();
    }
  }
  return State::kDone;
}

Outbox::GivenUp Outbox::give_up(std::vector<uint64_t> requests) {
  std::sort(requests.begin(), requests.end());
  return give_up_if([&](const Piece& piece) {
    return std::binary_search(requests.begin(), requests.end(), piece.request) ? piece.request : 0;
  });
}

Outbox::GivenUp Outbox::give_up_offer(uint64_t offer) {
  return give_up_if([&](const Piece& piece) { return piece.offer == offer ? offer : 0; });
}

// `id_of_over`: of a piece, the id of what is over; 0: it is not.
template <class IdOfOver>
Outbox::GivenUp Outbox::give_up_if(const IdOfOver& id_of_over) {
  GivenUp given_up;
  std::deque<Piece> kept, released;  // the latter outside the lock
  MutexLock lock(mutex_);
  uint64_t dropping = 0;
  for (Piece& piece : left_) {
    const uint64_t id = id_of_over(piece);
    const bool is_over = id != 0;
    if (is_over && piece.is_first) {
      const bool is_whole = piece.done == 0;
      dropping = is_whole ? id : 0;
      if (is_whole) given_up.dropped.push_back(id);
    }
    if (is_over && id == dropping) {
      left_bytes_.fetch_sub(piece.buffer.size());
      released.push_back(std::move(piece));
      continue;
    }
    if (is_over) {
      try {
        const size_t left = piece.buffer.size() - piece.done;
        Buffer copy = Buffer::copy_of(piece.buffer.span().subspan(piece.done, left));
        released.push_back({std::exchange(piece.buffer, std::move(copy))});
        piece.done = 0;
        piece.is_first = false;
      } catch (const std::bad_alloc&) {
        given_up.broken = true;
        stop_writing_locked();
      }
    }
    kept.push_back(std::move(piece));
  }
  left_.swap(kept);
  return given_up;
}

int64_t Outbox::write_locked(const iovec* pieces, int count) {
  const transport::IoResult result = stream_->write(pieces, count);
  switch (result.status) {
    case transport::IoStatus::kOk:
      sent_bytes_.fetch_add(result.bytes, std::memory_order_relaxed);
      return static_cast<int64_t>(result.bytes);
    case transport::IoStatus::kWouldBlock:
      return 0;
    default:
      stop_writing_locked();
      return -1;
  }
}

bool Outbox::keep_locked(Piece piece) {
  if (broken_ && piece.request == 0) return false;  // nobody asks for it any more
  const size_t size = piece.buffer.size();
  try {
    if (!piece.buffer.owner()) piece.buffer = Buffer::copy_of(piece.buffer.span());
    left_.push_back(std::move(piece));
  } catch (const std::bad_alloc&) {
    stop_writing_locked();
    for (bool is_all = piece.is_first; !is_all && !left_.empty(); left_.pop_back()) {
      is_all = left_.back().is_first;
      left_bytes_.fetch_sub(left_.back().buffer.size());
    }
    return false;
  }
  left_bytes_.fetch_add(size);  // before a look at whether the connection is open
  return true;
}

}  // namespace farspan::agent
