// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// init_process_group and destroy_process_group: joining and leaving the default group.
//
// Threading: any thread; one at a time.
#pragma once

#include <memory>
#include <string>

#include <farspan/c10d/group/process_group.h>
#include <farspan/c10d/store/store.h>

namespace farspan::dist {

// Zero, empty or absent: the default, or what the environment says.
struct InitOptions {
  int rank = -1;        // RANK
  int world_size = -1;  // WORLD_SIZE
  // Where the ranks meet: env://, tcp://host:port, file:///path, redis://host:port,
  // etcd://host:port (c10d/store/rendezvous.h); or a store of the caller's.
  std::string init_method = "env://";
  std::shared_ptr<Store> store = nullptr;
  // The address that ranks of other hosts connect to. Empty: the one that reaches the store. While
  // all ranks share a host nothing listens on the network.
  std::string bind_host = {};
  Millis init_timeout{300'000};           // until all ranks have come
  Millis timeout = kDefaultGroupTimeout;  // of each operation, see ProcessGroup
};

// Joins the default group, and returns when all its ranks have.
//   backend  "cpu"; "mpi": ranks that mpirun has started, which need no store, where farspan was
//            built with Open MPI (rank and world_size are what MPI says; what else is said of them
//            must be the same)
//   returns  the group; the process keeps it until destroy_process_group()
//   throws   Error: kInvalidArgument (RANK and the like missing or out of range, no such backend,
//            joined already), kTimeout (names the ranks that are missing), kAlreadyExists (a rank
//            that another process has, a port in use), kUnavailable (no store there),
//            kDisconnected (the store went away), kOverloaded (no descriptors or threads left)
Group init_process_group(const std::string& backend = "cpu", const InitOptions& options = {});

// Whether a launcher (torchrun, mpirun, srun) has started this process, or RANK or WORLD_SIZE is
// set: then it must not spawn() others, which would each be a job of their own.
bool is_launched();

// Leaves the default group; those made out of it live until their users let go of them, and the
// store, which rank 0 may host, with them. Rank 0 first waits until all have joined, for 30 s at
// most, also where the process ends without this call. init_process_group() may follow, at the same
// address as well.
//   throws   Error kInvalidArgument: there is none
void destroy_process_group();

}  // namespace farspan::dist
