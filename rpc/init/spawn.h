// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// spawn: N processes from one program.
#pragma once

#include <functional>

namespace farspan {

// Starts `processes` copies of this process, runs `run(rank, processes)` in each, and returns when
// all have ended well. In each, init_rpc("name") finds the others by itself: RANK, WORLD_SIZE,
// MASTER_ADDR and MASTER_PORT are set, and this process serves the store.
//
// Call it first thing in main(), before there are other threads: the copies are made by fork(). A
// copy never returns from it. What `run` throws is printed and ends the copy with status 1. When
// one ends badly, the others are ended too (SIGTERM, after 5 s SIGKILL); when this process dies,
// so do they.
//   throws  Error kRemote: names the rank that ended badly first, and how; kOverloaded: no fork
void spawn(int processes, const std::function<void(int rank, int processes)>& run);

}  // namespace farspan
