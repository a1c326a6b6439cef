#include <farspan/c10d/backends/cpu/segment.h>

#include <new>

#include <farspan/c10d/base/error.h>

namespace farspan::dist::cpu {
namespace {

constexpr size_t kPage = 4096;

constexpr size_t whole_pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

size_t seats_begin() { return whole_pages(sizeof(SharedHeader)); }
size_t smalls_begin(size_t ranks) {
  return seats_begin() + whole_pages(ranks * sizeof(SharedSeat));
}
size_t rooms_begin(size_t ranks) { return smalls_begin(ranks) + ranks * 2 * kSmallBytes; }

}  // namespace

size_t Segment::bytes_for(int ranks) {
  const auto n = static_cast<size_t>(ranks);
  return rooms_begin(n) + n * kRings * kDepth * kRoomBytes;
}

Segment::Segment(net::SharedMemory memory, int ranks) : memory_(std::move(memory)), ranks_(ranks) {
  FARSPAN_ASSERT(memory_.size() == bytes_for(ranks), "a segment of another size");
}

SharedHeader& Segment::header() const noexcept {
  return *std::launder(reinterpret_cast<SharedHeader*>(memory_.data()));
}

SharedSeat& Segment::seat(int rank) const noexcept {
  return std::launder(reinterpret_cast<SharedSeat*>(memory_.data() + seats_begin()))[rank];
}

std::byte* Segment::small(int rank, uint64_t epoch) const noexcept {
  return memory_.data() + smalls_begin(static_cast<size_t>(ranks_)) +
         (static_cast<size_t>(rank) * 2 + epoch % 2) * kSmallBytes;
}

std::byte* Segment::room(int rank, Ring ring, uint64_t chunk) const noexcept {
  const size_t place = (static_cast<size_t>(rank) * kRings + ring) * kDepth + chunk % kDepth;
  return memory_.data() + rooms_begin(static_cast<size_t>(ranks_)) + place * kRoomBytes;
}

}  // namespace farspan::dist::cpu
