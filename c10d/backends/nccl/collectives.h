// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The collectives, each as what NCCL has for it: its own, or messages that begin as one.
#pragma once

#include <span>

#include <farspan/c10d/backends/nccl/library.h>
#include <farspan/c10d/group/backend.h>

namespace farspan::dist::nccl {

// A communicator, and this rank in it.
struct Place {
  Library& nccl;
  Comm comm;
  device::Stream stream;
  int rank;
  int ranks;
};

// As Backend's. Steps and bytes are NCCL's: a ring or a tree for its own; each of `ranks` messages
// straight from rank to rank else.
void broadcast(const Place& at, const Call& call, Block data);
void all_reduce(const Place& at, const Call& call, Block data);
void reduce(const Place& at, const Call& call, Block data);
// NCCL's own where all have one size; else messages.
void all_gather(const Place& at, const Call& call, Block in, std::span<const Block> out);
void gather(const Place& at, const Call& call, Block in, std::span<const Block> out);
void scatter(const Place& at, const Call& call, std::span<const Block> in, Block out);
// NCCL's own where all have one size; else a reduce to each rank.
void reduce_scatter(const Place& at, const Call& call, std::span<const Block> in, Block out);
void all_to_all(const Place& at, const Call& call, std::span<const Block> in,
                std::span<const Block> out);

}  // namespace farspan::dist::nccl
