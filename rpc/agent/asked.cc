#include <farspan/rpc/agent/asked.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include <farspan/c10d/base/error.h>

namespace farspan::agent {
namespace {

bool lies_in(const Buffer& bytes, const Buffer& segment) noexcept {
  return !std::less<>()(bytes.data(), segment.data()) &&
         std::less<>()(bytes.data(), segment.data() + segment.size());
}

}  // namespace

void Asked::keep(wire::InFrame frame) {
  Waiting waiting;
  for (size_t i = 0; i < frame.segments.size(); ++i) {
    if (frame.offered[i] == 0) continue;
    const uint64_t size = frame.segments[i].size();
    const size_t pieces = (size + wire::kPieceBytes - 1) / wire::kPieceBytes;
    waiting.places.push_back(frame.segments[i]);
    waiting.begun.emplace_back(pieces);
    waiting.missing += pieces;
  }
  const uint64_t offer = frame.offer.id;
  waiting.frame = std::move(frame);
  MutexLock lock(mutex_);
  if (!closed_) waiting_.insert_or_assign(offer, std::move(waiting));
}

std::optional<wire::InFrame> Asked::take(uint64_t offer) {
  MutexLock lock(mutex_);
  auto found = waiting_.extract(offer);
  if (found.empty()) return std::nullopt;
  return std::move(found.mapped().frame);
}

Buffer Asked::place_of_whole(uint64_t offer, size_t segment, size_t bytes) {
  MutexLock lock(mutex_);
  const auto found = waiting_.find(offer);
  if (found == waiting_.end()) return {};
  Waiting& waiting = found->second;
  if (segment >= waiting.places.size() || waiting.places[segment].size() != bytes) return {};
  const auto& begun = waiting.begun[segment];
  if (std::find(begun.begin(), begun.end(), true) != begun.end()) return {};
  waiting.in_pieces = false;
  return waiting.places[segment];
}

Asked::Waiting* Asked::find_locked(uint64_t offer) {
  const auto found = waiting_.find(offer);
  return found == waiting_.end() || !found->second.in_pieces ? nullptr : &found->second;
}

Buffer Asked::begin(Waiting& waiting, const wire::PieceHeader& piece, size_t bytes) {
  const auto& places = waiting.places;
  const size_t size = piece.segment < places.size() ? places[piece.segment].size() : 0;
  if (piece.offset >= size || piece.offset % wire::kPieceBytes != 0 ||
      bytes != std::min<uint64_t>(wire::kPieceBytes, size - piece.offset)) {
    throw Error(Code::kCorrupt,
                "a piece of " + std::to_string(bytes) + " bytes that belongs nowhere");
  }
  auto begun = waiting.begun[piece.segment].begin() +
               static_cast<std::ptrdiff_t>(piece.offset / wire::kPieceBytes);
  if (*begun) throw Error(Code::kCorrupt, "a piece came twice");
  *begun = true;
  return places[piece.segment].slice(piece.offset, bytes);
}

Buffer Asked::place(uint64_t offer, const wire::PieceHeader& piece, size_t bytes) {
  MutexLock lock(mutex_);
  Waiting* const waiting = find_locked(offer);
  return waiting ? begin(*waiting, piece, bytes) : Buffer();
}

std::optional<wire::InFrame> Asked::came(uint64_t offer, const wire::PieceHeader& piece,
                                         const Buffer& bytes) {
  MutexLock lock(mutex_);
  Waiting* const waiting = find_locked(offer);
  if (!waiting) return std::nullopt;
  const auto& places = waiting->places;
  if (piece.segment >= places.size() || !lies_in(bytes, places[piece.segment])) {
    const Buffer place = begin(*waiting, piece, bytes.size());
    std::memcpy(place.data(), bytes.data(), bytes.size());
  }
  if (--waiting->missing > 0) return std::nullopt;
  return std::move(waiting_.extract(offer).mapped().frame);
}

void Asked::close() {
  std::unordered_map<uint64_t, Waiting> dropped;
  MutexLock lock(mutex_);
  closed_ = true;
  dropped.swap(waiting_);
}

}  // namespace farspan::agent
