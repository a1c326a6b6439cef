// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Blocks in chunks, and the belt on which they go from rank to rank.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include <farspan/c10d/backends/blocks.h>
#include <farspan/c10d/backends/cpu/team.h>
#include <farspan/c10d/group/backend.h>

namespace farspan::dist::cpu::host {

// Bytes of a block, cut into chunks of one size; the last may be shorter, and those behind it are
// empty.
class Chunks {
 public:
  Chunks(Block block, size_t element, size_t chunk_bytes) noexcept
      : data_(block.data), bytes_(block.count * element), chunk_(chunk_bytes) {}

  uint64_t count() const noexcept { return (bytes_ + chunk_ - 1) / chunk_; }
  std::span<std::byte> operator[](uint64_t index) const noexcept {
    const size_t begin = std::min(bytes_, static_cast<size_t>(index) * chunk_);
    return {data_ + begin, std::min(chunk_, bytes_ - begin)};
  }

 private:
  std::byte* data_;
  size_t bytes_, chunk_;
};

// A room that is cut into one part for each rank: the bytes of a part, whole elements of any type.
inline size_t part_bytes(const Team& team) noexcept {
  return kRoomBytes / static_cast<size_t>(team.size()) / 64 * 64;
}

inline void copy(std::byte* to, std::span<const std::byte> from) noexcept {
  if (!from.empty() && to != from.data()) std::memcpy(to, from.data(), from.size());
}
inline void copy(std::span<std::byte> to, const std::byte* from) noexcept {
  if (!to.empty() && to.data() != from) std::memcpy(to.data(), from, to.size());
}

// In a call: this rank puts chunk after chunk into its rooms, and takes from those of others; both
// are told the number of the chunk, and `take` waits for whom it takes from. A room is used again
// when all have taken what they wanted of it.
template <class Put, class Take>
void convey(Team& team, uint64_t chunks, const Put& put, const Take& take) {
  using Stage = Team::Stage;
  for (uint64_t k = 0; k <= chunks; ++k) {
    if (k < chunks) {
      if (k >= kDepth) team.await_others(Stage::kTaken, k - kDepth + 1);
      put(k, team.segment().room(team.rank(), Segment::kOwn, k));
      team.raise(Stage::kPut, k + 1);
    }
    if (k > 0) {
      take(k - 1);
      team.raise(Stage::kTaken, k);
    }
  }
}

// What `rank` has put as its chunk k, once it is there.
inline const std::byte* put_by(Team& team, int rank, uint64_t k) {
  team.await(rank, Team::Stage::kPut, k + 1);
  return team.segment().room(rank, Segment::kOwn, k);
}

}  // namespace farspan::dist::cpu::host
