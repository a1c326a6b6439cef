// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// init_rpc and shutdown: joining and leaving the job.
//
// Threading: any thread. One init_rpc() or shutdown() of a process at a time: of two at once the
//            second throws. shutdown() is for threads of the program's own: a function that a
//            worker runs for another, or a continuation, cannot end it.
#pragma once

#include <memory>
#include <string>

#include <farspan/rpc/worker.h>

namespace farspan {

// Joins the job as worker `name`, and returns when all `world_size` workers have: from then on each
// can be called. The first worker of a process serves its free functions.
//   returns  the worker; the process keeps it until shutdown()
//   throws   Error: kInvalidArgument (RANK and the like missing or out of range, a bad name, joined
//            already), kAlreadyExists (a name that another rank has, a function registered twice, a
//            port in use), kUnavailable (no store there; another worker does not join: which, and
//            why), kTimeout (names the ranks that are missing), kDisconnected (the store went
//            away), kCorrupt (something else listens there), kOverloaded (no descriptors or threads
//            left)
std::shared_ptr<Worker> init_rpc(const std::string& name, WorkerOptions options = {});

// Whether this process has joined a job, or is about to, and has not left it yet.
bool has_joined() noexcept;

// Leaves the job with the process's worker: see Worker::shutdown(). Whatever is thrown, but for
// kInvalidArgument, the worker has ended then, and the process may join again.
//   throws   Error: kInvalidArgument (no worker: not joined, or left already; or called by what the
//            worker runs), kShutdown (its own shutdown() was called before), and when graceful
//            kTimeout (worker 0 names those that are missing), kDisconnected (worker 0, which leads
//            it, died)
void shutdown(bool graceful = true);

}  // namespace farspan
