// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Collectives of ranks on several hosts: within each host through its Team's shared memory, between
// hosts by messages, each block once to each host that needs it.
#pragma once

#include <span>

#include <farspan/c10d/backends/cpu/hosts/meeting.h>
#include <farspan/c10d/group/backend.h>

namespace farspan::dist::cpu::hosts {

// As the functions of Backend, with the call that the meeting is for.
void broadcast(Meeting& meeting, Block data);
void all_reduce(Meeting& meeting, Block data);
void reduce(Meeting& meeting, Block data);
void all_gather(Meeting& meeting, Block in, std::span<const Block> out);
void gather(Meeting& meeting, Block in, std::span<const Block> out);
void scatter(Meeting& meeting, std::span<const Block> in, Block out);
void reduce_scatter(Meeting& meeting, std::span<const Block> in, Block out);
void all_to_all(Meeting& meeting, std::span<const Block> in, std::span<const Block> out);
void barrier(Meeting& meeting);

}  // namespace farspan::dist::cpu::hosts
