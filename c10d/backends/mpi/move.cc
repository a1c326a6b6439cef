// The collectives that only move elements.
#include <algorithm>

#include <farspan/c10d/backends/mpi/collectives.h>

namespace farspan::dist::mpi {
namespace {

// Up to this a root sends all to all; above, each rank passes on a part.
constexpr size_t kWholeBytes = size_t{32} << 10;

Parts to_all(const Meeting& meeting, std::span<const std::byte> bytes) {
  return Parts(static_cast<size_t>(meeting.size()), bytes);
}
Parts to_nobody(const Meeting& meeting) { return to_all(meeting, {}); }

}  // namespace

// One step: a packet to each other rank.
void barrier(Meeting& meeting) { meeting.enter(to_nobody(meeting)); }

// Up to 32 KiB, and between two ranks, the root sends all to all: one step, n - 1 times the data.
// Above, it gives each other rank a part, which that one passes on to the others while it comes:
// all links are used, and nobody sends more than the whole. The root sends it once, the others
// (n-2)/(n-1) of it, one step behind the root.
void broadcast(Meeting& meeting, const Call& call, Block data) {
  const auto bytes = bytes_of(data, size_of(call.type));
  const int root = call.root(), ranks = meeting.size(), self = meeting.rank();
  if (bytes.size() <= kWholeBytes || ranks == 2) {
    if (self != root) meeting.expect(root, bytes);
    meeting.enter(self == root ? to_all(meeting, bytes) : to_nobody(meeting));
    return meeting.await_all();
  }
  const size_t share = bytes.size() / static_cast<size_t>(ranks - 1);
  // Of the ranks but the root, in their order; the last takes what is over.
  const auto part = [&](int rank) {
    const auto place = static_cast<size_t>(rank < root ? rank : rank - 1);
    const bool is_last = place + 2 == static_cast<size_t>(ranks);
    return bytes.subspan(place * share, is_last ? bytes.size() - place * share : share);
  };
  Parts own = to_nobody(meeting);
  for (int other = 0; other < ranks; ++other) {
    if (other == root) continue;
    if (self == root) own[static_cast<size_t>(other)] = part(other);
    if (self != root) meeting.expect(other == self ? root : other, part(other));
  }
  meeting.enter(own);
  if (self != root) {
    const auto mine = part(self);
    for (size_t sent = 0; sent < mine.size();) {
      const size_t count = std::min(kPartBytes, mine.size() - sent);
      meeting.await([&](int from) { return from == root ? sent + count : 0; });
      Parts others = to_all(meeting, mine.subspan(sent, count));
      others[static_cast<size_t>(root)] = {};
      meeting.send(others);
      sent += count;
    }
  }
  meeting.await_all();
}

// Straight from each to each, its block n - 1 times: with the first packet up to 8 KiB.
void all_gather(Meeting& meeting, const Call& call, Block in, std::span<const Block> out) {
  const size_t element = size_of(call.type);
  for (int rank = 0; rank < meeting.size(); ++rank) {
    const Block& place = out[static_cast<size_t>(rank)];
    if (rank != meeting.rank()) meeting.expect(rank, bytes_of(place, element));
  }
  copy_own(in, out[static_cast<size_t>(meeting.rank())], element);
  meeting.enter(to_all(meeting, bytes_of(in, element)));
  meeting.await_all();
}

// Straight to the root: one block from each rank.
void gather(Meeting& meeting, const Call& call, Block in, std::span<const Block> out) {
  const size_t element = size_of(call.type);
  Parts own = to_nobody(meeting);
  for (int rank = 0; rank < static_cast<int>(out.size()); ++rank) {
    const Block& place = out[static_cast<size_t>(rank)];
    if (rank == meeting.rank()) {
      copy_own(in, place, element);
    } else {
      meeting.expect(rank, bytes_of(place, element));
    }
  }
  if (meeting.rank() != call.root()) own[static_cast<size_t>(call.root())] = bytes_of(in, element);
  meeting.enter(own);
  meeting.await_all();
}

// Straight from the root: n - 1 blocks.
void scatter(Meeting& meeting, const Call& call, std::span<const Block> in, Block out) {
  const size_t element = size_of(call.type);
  Parts own = to_nobody(meeting);
  for (size_t rank = 0; rank < in.size(); ++rank) own[rank] = bytes_of(in[rank], element);
  if (meeting.rank() != call.root()) meeting.expect(call.root(), bytes_of(out, element));
  meeting.enter(own);
  if (meeting.rank() == call.root()) {
    copy_own(in[static_cast<size_t>(call.root())], out, element);
  }
  meeting.await_all();
}

// Straight from each to each: n - 1 blocks from each rank.
void all_to_all(Meeting& meeting, const Call& call, std::span<const Block> in,
                std::span<const Block> out) {
  const size_t element = size_of(call.type);
  const auto self = static_cast<size_t>(meeting.rank());
  Parts own = to_nobody(meeting);
  std::vector<uint64_t> table;
  std::vector<std::vector<std::byte>> copies;  // of what the other's part might overwrite too soon
  for (size_t rank = 0; rank < in.size(); ++rank) {
    table.push_back(in[rank].count);
    own[rank] = bytes_of(in[rank], element);
    if (in[rank].data != out[rank].data || rank == self) continue;
    own[rank] = copies.emplace_back(own[rank].begin(), own[rank].end());
  }
  for (size_t rank = 0; rank < out.size(); ++rank) {
    table.push_back(out[rank].count);
    if (rank != self) meeting.expect(static_cast<int>(rank), bytes_of(out[rank], element));
  }
  meeting.enter(own, table);
  copy_own(in[self], out[self], element);
  meeting.await_all();
}

}  // namespace farspan::dist::mpi
