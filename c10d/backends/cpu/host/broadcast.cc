#include <farspan/c10d/backends/cpu/host/chunks.h>
#include <farspan/c10d/backends/cpu/host/collectives.h>

namespace farspan::dist::cpu::host {

// One copy in by the root, one copy out by each of the others. One step; above 8 KiB chunks + 1.
void broadcast(Team& team, const Call& call, Block data) {
  const size_t element = size_of(call.type);
  const auto bytes = bytes_of(data, element);
  const bool is_root = call.root() == team.rank();
  if (bytes.size() <= team.small_bytes()) {
    if (is_root) copy(team.next_small(), bytes);
    team.enter(call.signature, call.deadline);
    if (!is_root) copy(bytes, team.small(call.root()));
    return;
  }
  team.enter(call.signature, call.deadline);
  const Chunks chunks(data, element, kRoomBytes);
  convey(
      team, chunks.count(),
      [&](uint64_t k, std::byte* room) {
        if (is_root) copy(room, chunks[k]);
      },
      [&](uint64_t k) {
        if (!is_root) copy(chunks[k], put_by(team, call.root(), k));
      });
}

// One step, and no bytes but the signature.
void barrier(Team& team, const Call& call) { team.enter(call.signature, call.deadline); }

}  // namespace farspan::dist::cpu::host
