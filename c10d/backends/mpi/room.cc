#include <farspan/c10d/backends/mpi/room.h>

#include <algorithm>
#include <cstring>

#include <farspan/c10d/backends/absence.h>

namespace farspan::dist::mpi {

void Stream::pour(std::span<const std::byte> bytes) {
  came_ += bytes.size();
  if (came_ > expected_) throw Error(Code::kCorrupt, "more bytes came than the operation has");
  while (!bytes.empty()) {
    std::span<std::byte>& place = places_.front();
    const size_t count = std::min(place.size(), bytes.size());
    std::memcpy(place.data(), bytes.data(), count);
    bytes = bytes.subspan(count);
    place = place.subspan(count);
    if (place.empty()) places_.pop_front();
  }
}

std::string Room::name_of(int rank) const {
  const auto place = static_cast<size_t>(rank);
  if (place < names.size()) return names[place];
  return "rank " + std::to_string(place < spec.ranks.size() ? spec.ranks[place] : rank);
}

Error Room::has_left(int rank) const { return left_error(name_of(rank)); }

std::optional<Error> Room::why_none(int rank) const {
  if (is_left) return left_error();
  if (failure) return failure;
  if (rank >= 0) return left.contains(rank) ? std::optional(has_left(rank)) : std::nullopt;
  if (left.empty() || left.size() + 1 < spec.ranks.size()) return std::nullopt;
  return Error(Code::kDisconnected, "all other ranks have left the group");
}

}  // namespace farspan::dist::mpi
