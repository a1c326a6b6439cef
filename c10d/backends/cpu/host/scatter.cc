#include <farspan/c10d/backends/cpu/host/chunks.h>
#include <farspan/c10d/backends/cpu/host/collectives.h>

namespace farspan::dist::cpu::host {

// The root copies n - 1 blocks in, each of the others copies its own out. One step; where all n are
// more than 8 KiB, chunks + 1.
void scatter(Team& team, const Call& call, std::span<const Block> in, Block out) {
  const size_t element = size_of(call.type), bytes = out.count * element;
  const auto self = static_cast<size_t>(team.rank()), ranks = static_cast<size_t>(team.size());
  const bool is_root = call.root() == team.rank();
  const auto put_all = [&](const auto& put) {
    for (size_t rank = 0; is_root && rank < ranks; ++rank) {
      if (rank != self) put(rank, in[rank]);
    }
  };
  if (bytes * ranks <= team.small_bytes()) {
    put_all([&](size_t rank, Block from) {
      copy(team.next_small() + rank * bytes, bytes_of(from, element));
    });
    team.enter(call.signature, call.deadline);
    if (!is_root) copy(bytes_of(out, element), team.small(call.root()) + self * bytes);
  } else {
    team.enter(call.signature, call.deadline);
    const size_t part = part_bytes(team);
    const Chunks own(out, element, part);
    convey(
        team, own.count(),
        [&](uint64_t k, std::byte* room) {
          put_all([&](size_t rank, Block from) {
            copy(room + rank * part, Chunks(from, element, part)[k]);
          });
        },
        [&](uint64_t k) {
          if (!is_root) copy(own[k], put_by(team, call.root(), k) + self * part);
        });
  }
  if (is_root) copy_own(in[self], out, element);
}

}  // namespace farspan::dist::cpu::host
