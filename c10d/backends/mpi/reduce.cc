// The collectives that reduce: each element of all ranks in the order of the ranks, by one of them,
// so that all have the same bits.
#include <algorithm>
#include <functional>

#include <farspan/c10d/backends/kernels/reduce.h>
#include <farspan/c10d/backends/mpi/collectives.h>

namespace farspan::dist::mpi {
namespace {

// Up to this all get all, and reduce for themselves; above, each rank reduces a part.
constexpr size_t kWholeBytes = size_t{8} << 10;
// Of a part, reduced at once.
constexpr size_t kSliceBytes = size_t{1} << 20;

int divisor(const Meeting& meeting, const Call& call) {
  return call.reduce() == ReduceOp::kAvg ? meeting.size() : 1;
}

// Elements of all ranks in memory of this one: its own where they are, the others' in `scratch`.
class Gathered {
 public:
  Gathered(const Meeting& meeting, size_t most_bytes)
      : self_(static_cast<size_t>(meeting.rank())),
        ranks_(static_cast<size_t>(meeting.size())),
        most_(most_bytes),
        scratch_(std::make_unique_for_overwrite<std::byte[]>((ranks_ - 1) * most_bytes)) {}

  std::span<std::byte> place(size_t rank, size_t bytes) noexcept {
    return {scratch_.get() + (rank < self_ ? rank : rank - 1) * most_, bytes};
  }
  void reduce(const Meeting& meeting, const Call& call, const std::byte* own, std::byte* out,
              size_t count) {
    std::vector<const std::byte*> all;
    for (size_t rank = 0; rank < ranks_; ++rank) {
      all.push_back(rank == self_ ? own : place(rank, 0).data());
    }
    kernels::reduce(call.type, call.reduce(), out, all, count, divisor(meeting, call));
  }

 private:
  const size_t self_, ranks_, most_;
  const std::unique_ptr<std::byte[]> scratch_;
};

// Elements [first, first + count) of a block: its slice `number`, empty behind its end.
struct Slice {
  size_t first, count;
};
Slice slice_of(const Block& block, size_t number, size_t elements) noexcept {
  const size_t first = std::min(block.count, number * elements);
  return {first, std::min(elements, block.count - first)};
}

// Reduces all ranks' in[r], for r this rank, slice by slice: a step for each. One slice comes while
// the one before is reduced; who is late is not run over, since others wait until it is ready. Each
// rank sends its n - 1 parts for the others.
//   place(first)        where the reduced elements from `first` on go
//   done(first, count)  after each slice
void reduce_own(Meeting& meeting, const Call& call, std::span<const Block> in,
                const std::function<std::byte*(size_t first)>& place,
                const std::function<void(Slice)>& done) {
  const size_t element = size_of(call.type), elements = kSliceBytes / element;
  const auto self = static_cast<size_t>(meeting.rank()), ranks = in.size();
  size_t slices = 0;
  for (const Block& part : in) slices = std::max(slices, (part.count + elements - 1) / elements);
  const size_t most = std::min(elements, in[self].count) * element;
  Gathered turns[2] = {{meeting, most}, {meeting, most}};
  std::vector<uint64_t> expected(1, 0);  // bytes of each rank, up to each slice
  for (size_t k = 0; k < slices; ++k) {
    const size_t bytes = slice_of(in[self], k, elements).count * element;
    expected.push_back(expected.back() + bytes);
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (rank != self) meeting.expect(static_cast<int>(rank), turns[k % 2].place(rank, bytes));
    }
  }
  const auto send = [&](size_t k) {
    Parts parts(ranks);
    for (size_t rank = 0; rank < ranks; ++rank) {
      const Slice slice = slice_of(in[rank], k, elements);
      parts[rank] = {in[rank].data + slice.first * element, slice.count * element};
    }
    if (k >= 2) meeting.await_ready(k - 1);
    meeting.send(parts);
  };
  meeting.enter(Parts(ranks));
  for (size_t k = 0; k < slices; ++k) {
    if (k == 0) send(0);
    if (k + 1 < slices) send(k + 1);
    meeting.await([&](int) { return expected[k + 1]; });
    const Slice own = slice_of(in[self], k, elements);
    turns[k % 2].reduce(meeting, call, in[self].data + own.first * element, place(own.first),
                        own.count);
    if (k + 2 < slices) meeting.tell_ready(k + 1);
    done(own);
  }
}

std::vector<Block> cut(Block data, int ranks, size_t element) {
  std::vector<Block> parts;
  const size_t share = data.count / static_cast<size_t>(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    const size_t first = static_cast<size_t>(rank) * share;
    parts.push_back({data.data + first * element, rank + 1 == ranks ? data.count - first : share});
  }
  return parts;
}

// `reader` gets the result, or all do (-1). One step: each rank sends its data once to each that
// reads.
void reduce_whole(Meeting& meeting, const Call& call, Block data, int reader) {
  const auto bytes = bytes_of(data, size_of(call.type));
  const int self = meeting.rank();
  const bool reads = reader < 0 || reader == self;
  Gathered gathered(meeting, reads ? bytes.size() : 0);
  Parts own(static_cast<size_t>(meeting.size()));
  for (int rank = 0; rank < meeting.size(); ++rank) {
    if (rank == self) continue;
    const auto place = static_cast<size_t>(rank);
    if (reads) meeting.expect(rank, gathered.place(place, bytes.size()));
    if (reader < 0 || reader == rank) own[place] = bytes;
  }
  meeting.enter(own);
  meeting.await_all();
  if (reads) gathered.reduce(meeting, call, data.data, data.data, data.count);
}

}  // namespace

// Above 8 KiB slices + 1 steps; each rank sends (n-1)/n of the data, and its result, one n-th, to
// n - 1 others: 2(n-1)/n.
void all_reduce(Meeting& meeting, const Call& call, Block data) {
  const size_t element = size_of(call.type);
  if (data.count * element <= kWholeBytes) return reduce_whole(meeting, call, data, -1);
  const std::vector<Block> parts = cut(data, meeting.size(), element);
  const Block& own = parts[static_cast<size_t>(meeting.rank())];
  // Another rank sends a result only after it has got what this one has there itself.
  for (int rank = 0; rank < meeting.size(); ++rank) {
    if (rank == meeting.rank()) continue;
    meeting.expect(rank, bytes_of(parts[static_cast<size_t>(rank)], element), Channel::kResult);
  }
  reduce_own(
      meeting, call, parts, [&](size_t first) { return own.data + first * element; },
      [&](Slice slice) {
        const std::span<const std::byte> bytes(own.data + slice.first * element,
                                               slice.count * element);
        meeting.send(Parts(parts.size(), bytes), Channel::kResult);
      });
  meeting.await_all();
}

// Above 8 KiB slices + 1 steps; each rank sends (n-1)/n of the data, and its result to the root: 1.
void reduce(Meeting& meeting, const Call& call, Block data) {
  const size_t element = size_of(call.type);
  if (data.count * element <= kWholeBytes) return reduce_whole(meeting, call, data, call.root());
  const std::vector<Block> parts = cut(data, meeting.size(), element);
  const Block& own = parts[static_cast<size_t>(meeting.rank())];
  const bool is_root = meeting.rank() == call.root();
  for (int rank = 0; is_root && rank < meeting.size(); ++rank) {
    if (rank == meeting.rank()) continue;
    meeting.expect(rank, bytes_of(parts[static_cast<size_t>(rank)], element), Channel::kResult);
  }
  // Only the root's data change.
  std::vector<std::byte> result(is_root ? 0 : std::min(own.count * element, kSliceBytes));
  reduce_own(
      meeting, call, parts,
      [&](size_t first) { return is_root ? own.data + first * element : result.data(); },
      [&](Slice slice) {
        if (is_root) return;
        Parts to_root(parts.size());
        to_root[static_cast<size_t>(call.root())] = std::span(result).first(slice.count * element);
        meeting.send(to_root, Channel::kResult);
      });
  meeting.await_all();
}

// Each rank sends n - 1 parts, in one step up to 8 KiB, above in a step for each slice.
void reduce_scatter(Meeting& meeting, const Call& call, std::span<const Block> in, Block out) {
  const size_t element = size_of(call.type);
  const size_t self = static_cast<size_t>(meeting.rank());
  size_t largest = 0;
  for (const Block& part : in) largest = std::max(largest, part.count * element);
  if (largest > kWholeBytes) {
    return reduce_own(
        meeting, call, in, [&](size_t first) { return out.data + first * element; }, [](Slice) {});
  }
  Gathered gathered(meeting, in[self].count * element);
  Parts parts;
  for (size_t rank = 0; rank < in.size(); ++rank) {
    parts.push_back(bytes_of(in[rank], element));
    if (rank == self) continue;
    meeting.expect(static_cast<int>(rank), gathered.place(rank, in[self].count * element));
  }
  meeting.enter(parts);
  meeting.await_all();
  gathered.reduce(meeting, call, in[self].data, out.data, out.count);
}

}  // namespace farspan::dist::mpi
