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
// copy never returns from it: when `run` returns it ends with status 0, when `run` throws, or
// returns as a worker that has not been shut down, with 1.
//
// Under a launcher (dist::is_launched()) it logs a warning: the copies are a job of their own.
//
// Nothing is left behind, whatever happens. When a copy ends badly, the others get SIGTERM, and
// after 3 s SIGKILL. So they do when this process gets SIGINT (Ctrl-C), SIGTERM or SIGHUP: when all
// have ended it says so in one line on standard error and takes the signal, of which it dies unless
// the program handles it; at a second such signal the copies are killed at once. When this process
// is killed, the copies are, too. A signal that the program ignores is not waited for.
//
// Threading: the program's first thread, since it takes signals and forks; one at a time.
//
//   throws  Error: kInvalidArgument, this process is a worker already; kRemote, names the rank
//           that ended badly first (not one that only lost its connection to another that did),
//           and what it threw or how it ended; kOverloaded, no process can be started; kCancelled,
//           a signal came, and the program's own handler has returned
void spawn(int processes, const std::function<void(int rank, int processes)>& run);

}  // namespace farspan
