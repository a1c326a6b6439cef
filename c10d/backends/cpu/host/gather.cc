#include <farspan/c10d/backends/cpu/host/chunks.h>
#include <farspan/c10d/backends/cpu/host/collectives.h>

namespace farspan::dist::cpu::host {

// One copy in by each rank but the root, which copies n - 1 blocks out. One step; above 8 KiB
// chunks + 1.
void gather(Team& team, const Call& call, Block in, std::span<const Block> out) {
  const size_t element = size_of(call.type), bytes = in.count * element;
  const bool is_root = call.root() == team.rank();
  const auto take_all = [&](const auto& take) {
    for (int rank = 0; is_root && rank < team.size(); ++rank) {
      if (rank != team.rank()) take(rank, out[static_cast<size_t>(rank)]);
    }
  };
  if (bytes <= team.small_bytes()) {
    if (!is_root) copy(team.next_small(), bytes_of(in, element));
    team.enter(call.signature, call.deadline);
    take_all([&](int rank, Block to) { copy(bytes_of(to, element), team.small(rank)); });
  } else {
    team.enter(call.signature, call.deadline);
    const size_t chunk = kRoomBytes;
    const Chunks own(in, element, chunk);
    convey(
        team, own.count(),
        [&](uint64_t k, std::byte* room) {
          if (!is_root) copy(room, own[k]);
        },
        [&](uint64_t k) {
          take_all([&](int rank, Block to) {
            copy(Chunks(to, element, chunk)[k], put_by(team, rank, k));
          });
        });
  }
  if (is_root) copy_own(in, out[static_cast<size_t>(team.rank())], element);
}

}  // namespace farspan::dist::cpu::host
