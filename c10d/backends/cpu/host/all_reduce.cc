#include <farspan/c10d/backends/cpu/host/chunks.h>
#include <farspan/c10d/backends/cpu/host/collectives.h>
#include <farspan/c10d/backends/kernels/reduce.h>

namespace farspan::dist::cpu::host {
namespace {

// The sum of what all ranks have put there, or for this rank the block itself, in their order.
void reduce_into(Team& team, const Call& call, std::byte* out, const std::byte* own, size_t count,
                 const auto& of_other) {
  constexpr size_t kFew = 16;
  const std::byte* few[kFew];
  std::vector<const std::byte*> many;
  const auto ranks = static_cast<size_t>(team.size());
  const std::byte** in = few;
  if (ranks > kFew) {
    many.resize(ranks);
    in = many.data();
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    const auto other = static_cast<int>(rank);
    in[rank] = other == team.rank() ? own : of_other(other);
  }
  kernels::reduce(call.type, call.reduce(), out, {in, ranks}, count,
                  call.reduce() == ReduceOp::kAvg ? team.size() : 1);
}

// One step. Each rank copies all of its data in; who has a place for the sum reads those of all n.
void reduce_small(Team& team, const Call& call, std::byte* out, Block data) {
  const auto bytes = bytes_of(data, size_of(call.type));
  copy(team.next_small(), bytes);
  team.enter(call.signature, call.deadline);
  if (!out) return;
  reduce_into(team, call, out, data.data, data.count, [&](int rank) { return team.small(rank); });
}

// Rank r reduces the parts in[r] of all ranks; the result goes to out[r] on each rank that has a
// place for it. Three stages, one chunk behind each other: put the parts for the others, reduce the
// own one, take the others' results: chunks + 2 steps. Each element is copied in and out once, and
// read n times.
void reduce_parts(Team& team, const Call& call, std::span<const Block> in,
                  std::span<const Block> out) {
  using Stage = Team::Stage;
  const size_t element = size_of(call.type), part = part_bytes(team);
  const auto self = static_cast<size_t>(team.rank());
  Segment& segment = team.segment();
  const auto chunk = [&](const Block& block, uint64_t k) {
    return Chunks(block, element, part)[k];
  };
  uint64_t chunks = 0;  // the same on all ranks
  for (const Block& block : in) chunks = std::max(chunks, Chunks(block, element, part).count());
  team.enter(call.signature, call.deadline);
  for (uint64_t k = 0; k < chunks + 2; ++k) {
    if (k < chunks) {
      if (k >= kDepth) team.await_others(Stage::kReduced, k - kDepth + 1);
      std::byte* const room = segment.room(team.rank(), Segment::kOwn, k);
      for (size_t rank = 0; rank < in.size(); ++rank) {
        if (rank != self) copy(room + rank * part, chunk(in[rank], k));
      }
      team.raise(Stage::kPut, k + 1);
    }
    if (k >= 1 && k <= chunks) {
      const uint64_t j = k - 1;
      team.await_others(Stage::kPut, j + 1);
      if (j >= kDepth) team.await_others(Stage::kTaken, j - kDepth + 1);
      const auto own = chunk(in[self], j);
      reduce_into(team, call, segment.room(team.rank(), Segment::kResult, j), own.data(),
                  own.size() / element,
                  [&](int rank) { return segment.room(rank, Segment::kOwn, j) + self * part; });
      team.raise(Stage::kReduced, j + 1);
    }
    if (k >= 2) {
      const uint64_t j = k - 2;
      for (size_t rank = 0; rank < out.size(); ++rank) {
        if (!out[rank].data || chunk(out[rank], j).empty()) continue;
        const auto other = static_cast<int>(rank);
        if (rank != self) team.await(other, Stage::kReduced, j + 1);
        copy(chunk(out[rank], j), segment.room(other, Segment::kResult, j));
      }
      team.raise(Stage::kTaken, j + 1);
    }
  }
}

bool is_small(const Team& team, const Call& call, size_t count) noexcept {
  return count * size_of(call.type) <= team.small_bytes();
}

}  // namespace

// Above 8 KiB each rank copies (n-1)/n of the data in and all of them out, and reads as much as all
// of them to reduce: its own part of each rank.
void all_reduce(Team& team, const Call& call, Block data) {
  if (is_small(team, call, data.count)) return reduce_small(team, call, data.data, data);
  const auto parts = split(data, static_cast<size_t>(team.size()), size_of(call.type));
  reduce_parts(team, call, parts, parts);
}

// As all_reduce, but only the root copies out.
void reduce(Team& team, const Call& call, Block data) {
  const bool is_root = call.root() == team.rank();
  if (is_small(team, call, data.count)) {
    return reduce_small(team, call, is_root ? data.data : nullptr, data);
  }
  const auto parts = split(data, static_cast<size_t>(team.size()), size_of(call.type));
  reduce_parts(team, call, parts,
               is_root ? std::span<const Block>(parts) : std::span<const Block>());
}

// Each rank copies n - 1 parts in and one out, at any size in chunks + 2 steps; in the last it
// waits for nobody, since the result is its own.
void reduce_scatter(Team& team, const Call& call, std::span<const Block> in, Block out) {
  std::vector<Block> results(in.size());
  results[static_cast<size_t>(team.rank())] = out;
  reduce_parts(team, call, in, results);
}

}  // namespace farspan::dist::cpu::host
