#include <farspan/c10d/backends/nccl/collectives.h>

#include <algorithm>

namespace farspan::dist::nccl {
namespace {

size_t bytes_of(const Call& call, Block block) { return block.count * size_of(call.type); }

// Then they lie one after the other, and NCCL has an operation for them. All ranks see the same.
bool have_one_size(std::span<const Block> blocks) {
  return std::ranges::all_of(
      blocks, [&](const Block& block) { return block.count == blocks.front().count; });
}

// What is called in `run` begins as one.
template <class Run>
void as_one(Library& library, const Run& run) {
  library.group_begin();
  try {
    run();
  } catch (...) {
    try {
      library.group_end();
    } catch (...) {  // the first says why
    }
    throw;
  }
  library.group_end();
}

// This rank's own part does not travel.
void copy_own(const Place& at, const Call& call, Block from, Block to) {
  if (from.count == 0 || from.data == to.data) return;
  at.nccl.devices()->copy(at.stream, to.data, from.data, bytes_of(call, from));
}

void send(const Place& at, const Call& call, Block block, int peer) {
  if (block.count > 0) at.nccl.send(at.comm, block.data, bytes_of(call, block), peer, at.stream);
}
void recv(const Place& at, const Call& call, Block block, int peer) {
  if (block.count > 0) at.nccl.recv(at.comm, block.data, bytes_of(call, block), peer, at.stream);
}

// `fn(r, index)` for each other rank.
template <class Fn>
void for_others(const Place& at, const Fn& fn) {
  for (int rank = 0; rank < at.ranks; ++rank) {
    if (rank != at.rank) fn(rank, static_cast<size_t>(rank));
  }
}

size_t self(const Place& at) { return static_cast<size_t>(at.rank); }

}  // namespace

void broadcast(const Place& at, const Call& call, Block data) {
  at.nccl.broadcast(at.comm, data.data, bytes_of(call, data), call.root(), at.stream);
}

void all_reduce(const Place& at, const Call& call, Block data) {
  at.nccl.all_reduce(at.comm, data.data, data.data, data.count, call.type, call.reduce(),
                     at.stream);
}

void reduce(const Place& at, const Call& call, Block data) {
  at.nccl.reduce(at.comm, data.data, data.data, data.count, call.type, call.reduce(), call.root(),
                 at.stream);
}

void all_gather(const Place& at, const Call& call, Block in, std::span<const Block> out) {
  if (have_one_size(out)) {
    return at.nccl.all_gather(at.comm, in.data, out.front().data, bytes_of(call, in), at.stream);
  }
  copy_own(at, call, in, out[self(at)]);
  as_one(at.nccl, [&] {
    for_others(at, [&](int rank, size_t index) {
      send(at, call, in, rank);
      recv(at, call, out[index], rank);
    });
  });
}

void gather(const Place& at, const Call& call, Block in, std::span<const Block> out) {
  if (at.rank != call.root()) return send(at, call, in, call.root());
  copy_own(at, call, in, out[self(at)]);
  as_one(at.nccl, [&] {
    for_others(at, [&](int rank, size_t index) { recv(at, call, out[index], rank); });
  });
}

void scatter(const Place& at, const Call& call, std::span<const Block> in, Block out) {
  if (at.rank != call.root()) return recv(at, call, out, call.root());
  copy_own(at, call, in[self(at)], out);
  as_one(at.nccl,
         [&] { for_others(at, [&](int rank, size_t index) { send(at, call, in[index], rank); }); });
}

void reduce_scatter(const Place& at, const Call& call, std::span<const Block> in, Block out) {
  if (have_one_size(in)) {
    return at.nccl.reduce_scatter(at.comm, in.front().data, out.data, out.count, call.type,
                                  call.reduce(), at.stream);
  }
  as_one(at.nccl, [&] {
    for (int rank = 0; rank < at.ranks; ++rank) {
      const Block& part = in[static_cast<size_t>(rank)];
      std::byte* const result = rank == at.rank ? out.data : part.data;
      at.nccl.reduce(at.comm, part.data, result, part.count, call.type, call.reduce(), rank,
                     at.stream);
    }
  });
}

void all_to_all(const Place& at, const Call& call, std::span<const Block> in,
                std::span<const Block> out) {
  copy_own(at, call, in[self(at)], out[self(at)]);
  as_one(at.nccl, [&] {
    for_others(at, [&](int rank, size_t index) {
      send(at, call, in[index], rank);
      recv(at, call, out[index], rank);
    });
  });
}

}  // namespace farspan::dist::nccl
