// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The collectives, each over a Meeting of two ranks or more. What they mean: group/backend.h.
#pragma once

#include <span>

#include <farspan/c10d/backends/blocks.h>
#include <farspan/c10d/backends/mpi/meeting.h>
#include <farspan/c10d/group/backend.h>

namespace farspan::dist::mpi {

void broadcast(Meeting& meeting, const Call& call, Block data);
void all_reduce(Meeting& meeting, const Call& call, Block data);
void reduce(Meeting& meeting, const Call& call, Block data);
void all_gather(Meeting& meeting, const Call& call, Block in, std::span<const Block> out);
void gather(Meeting& meeting, const Call& call, Block in, std::span<const Block> out);
void scatter(Meeting& meeting, const Call& call, std::span<const Block> in, Block out);
void reduce_scatter(Meeting& meeting, const Call& call, std::span<const Block> in, Block out);
void all_to_all(Meeting& meeting, const Call& call, std::span<const Block> in,
                std::span<const Block> out);
void barrier(Meeting& meeting);

}  // namespace farspan::dist::mpi
