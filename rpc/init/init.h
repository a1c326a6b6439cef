// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// init_rpc and shutdown: joining and leaving the job.
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
//            port in use), kUnavailable (no store there), kTimeout (names the ranks that are
//            missing)
std::shared_ptr<Worker> init_rpc(const std::string& name, WorkerOptions options = {});

// Whether this process has joined a job, and not left it yet.
bool has_joined() noexcept;

// Leaves the job with the process's worker: see Worker::shutdown().
void shutdown(bool graceful = true);

}  // namespace farspan
