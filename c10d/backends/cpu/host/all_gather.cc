#include <farspan/c10d/backends/cpu/host/chunks.h>
#include <farspan/c10d/backends/cpu/host/collectives.h>

namespace farspan::dist::cpu::host {

// Each rank copies its own block in, and the n - 1 others out. One step; above 8 KiB chunks + 1.
void all_gather(Team& team, const Call& call, Block in, std::span<const Block> out) {
  const size_t element = size_of(call.type);
  size_t most = 0;  // the same on all ranks: all have the same list of sizes
  for (const Block& block : out) most = std::max(most, block.count * element);
  const auto take_from_others = [&](const auto& take) {
    for (int rank = 0; rank < team.size(); ++rank) {
      if (rank != team.rank()) take(rank, out[static_cast<size_t>(rank)]);
    }
  };
  if (most <= team.small_bytes()) {
    copy(team.next_small(), bytes_of(in, element));
    team.enter(call.signature, call.deadline);
    take_from_others([&](int rank, Block to) { copy(bytes_of(to, element), team.small(rank)); });
  } else {
    team.enter(call.signature, call.deadline);
    const size_t chunk = kRoomBytes;
    const Chunks own(in, element, chunk);
    convey(
        team, (most + chunk - 1) / chunk, [&](uint64_t k, std::byte* room) { copy(room, own[k]); },
        [&](uint64_t k) {
          take_from_others([&](int rank, Block to) {
            copy(Chunks(to, element, chunk)[k], put_by(team, rank, k));
          });
        });
  }
  copy_own(in, out[static_cast<size_t>(team.rank())], element);
}

}  // namespace farspan::dist::cpu::host
