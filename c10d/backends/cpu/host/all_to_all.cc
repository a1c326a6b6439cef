#include <farspan/c10d/backends/cpu/host/chunks.h>
#include <farspan/c10d/backends/cpu/host/collectives.h>

namespace farspan::dist::cpu::host {
namespace {

// What a rank shows with its call: how many elements it has for each and how many it expects of
// each, and, when they are few, what it has itself behind that.
class Table {
 public:
  Table(const std::byte* place, size_t ranks) noexcept : place_(place), ranks_(ranks) {}

  uint64_t has_for(size_t rank) const noexcept { return number(rank); }
  uint64_t expects_of(size_t rank) const noexcept { return number(ranks_ + rank); }
  const std::byte* data_for(size_t rank, size_t element) const noexcept {
    size_t before = 0;
    for (size_t other = 0; other < rank; ++other) before += has_for(other);
    return place_ + 2 * ranks_ * sizeof(uint64_t) + before * element;
  }

  static size_t bytes(std::span<const Block> in, size_t element) noexcept {
    size_t all = 2 * in.size() * sizeof(uint64_t);
    for (const Block& block : in) all += block.count * element;
    return all;
  }
  static void write(std::byte* place, std::span<const Block> in, std::span<const Block> out,
                    size_t element, bool with_data) noexcept {
    const auto put = [&place](const void* from, size_t bytes) {
      if (bytes > 0) std::memcpy(place, from, bytes);
      place += bytes;
    };
    for (const auto& blocks : {in, out}) {
      for (const Block& block : blocks) {
        const uint64_t count = block.count;
        put(&count, sizeof count);
      }
    }
    for (const Block& block : in) {
      if (with_data) put(block.data, block.count * element);
    }
  }

 private:
  uint64_t number(size_t index) const noexcept {
    uint64_t value = 0;
    std::memcpy(&value, place_ + index * sizeof value, sizeof value);
    return value;
  }

  const std::byte* place_;
  size_t ranks_;
};

// Every rank looks at what all have said, so that all come to the same end.
void check_sizes(Team& team) {
  const auto ranks = static_cast<size_t>(team.size());
  const auto table = [&](size_t rank) { return Table(team.small(static_cast<int>(rank)), ranks); };
  for (size_t from = 0; from < ranks; ++from) {
    for (size_t to = 0; to < ranks; ++to) {
      const uint64_t sent = table(from).has_for(to), expected = table(to).expects_of(from);
      if (sent == expected) continue;
      team.fail_call(Error(Code::kShapeMismatch,
                           describe_parts(team.name_of(static_cast<int>(from)), sent,
                                          team.name_of(static_cast<int>(to)), expected)));
      throw team.failure();
    }
  }
}

}  // namespace

// One copy in and one copy out of each block: n - 1 each for each rank. One step where all that
// each rank has fits into 8 KiB with its table; else chunks + 1, chunks of the largest block of
// all.
void all_to_all(Team& team, const Call& call, std::span<const Block> in,
                std::span<const Block> out) {
  const size_t element = size_of(call.type), part = part_bytes(team);
  const auto self = static_cast<size_t>(team.rank()), ranks = static_cast<size_t>(team.size());
  const bool fits = Table::bytes(in, element) <= team.small_bytes();
  uint64_t own_chunks = 0;
  for (const Block& block : in) {
    own_chunks = std::max(own_chunks, Chunks(block, element, part).count());
  }
  Table::write(team.next_small(), in, out, element, fits);
  team.enter(call.signature, call.deadline, fits ? 0 : own_chunks);
  check_sizes(team);
  copy_own(in[self], out[self], element);
  convey(
      team, team.most_chunks(),
      [&](uint64_t k, std::byte* room) {
        for (size_t rank = 0; !fits && rank < ranks; ++rank) {
          if (rank != self) copy(room + rank * part, Chunks(in[rank], element, part)[k]);
        }
      },
      [&](uint64_t k) {
        for (size_t rank = 0; rank < ranks; ++rank) {
          const auto other = static_cast<int>(rank);
          if (rank == self || team.chunks(other) == 0) continue;
          copy(Chunks(out[rank], element, part)[k], put_by(team, other, k) + self * part);
        }
      });
  // Last, for where inputs and outputs are the same memory, all has been put by now.
  for (size_t rank = 0; rank < ranks; ++rank) {
    if (rank == self || team.chunks(static_cast<int>(rank)) != 0) continue;
    const Table table(team.small(static_cast<int>(rank)), ranks);
    copy(bytes_of(out[rank], element), table.data_for(self, element));
  }
}

}  // namespace farspan::dist::cpu::host
