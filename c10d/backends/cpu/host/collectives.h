// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Collectives among the ranks of one host, through their Team's shared memory.
#pragma once

#include <span>

#include <farspan/c10d/backends/cpu/team.h>
#include <farspan/c10d/group/backend.h>

namespace farspan::dist::cpu::host {

// As the functions of Backend. Small data travel with the call itself, in one step: everyone copies
// in, all meet, everyone takes what it needs. Large data go through rings of rooms, chunk by chunk,
// so that copying in, reducing and copying out overlap, and all of it stays in the caches.
void broadcast(Team& team, const Call& call, Block data);
void all_reduce(Team& team, const Call& call, Block data);
void reduce(Team& team, const Call& call, Block data);
void all_gather(Team& team, const Call& call, Block in, std::span<const Block> out);
void gather(Team& team, const Call& call, Block in, std::span<const Block> out);
void scatter(Team& team, const Call& call, std::span<const Block> in, Block out);
void reduce_scatter(Team& team, const Call& call, std::span<const Block> in, Block out);
void all_to_all(Team& team, const Call& call, std::span<const Block> in,
                std::span<const Block> out);
void barrier(Team& team, const Call& call);

}  // namespace farspan::dist::cpu::host
