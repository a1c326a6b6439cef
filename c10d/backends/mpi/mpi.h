// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The mpi backend: ranks that mpirun has started, through Open MPI. Optional: where farspan was
// built without it, both functions say so.
#pragma once

#include <memory>

#include <farspan/c10d/group/backend.h>

namespace farspan::dist::mpi {

// The group of all ranks that mpirun has started, when all of them have called it; no store needed.
//   throws  Error kTimeout (names who is missing), kInvalidArgument (built without MPI; MPI has
//           ended in this process, or was initialised without MPI_THREAD_MULTIPLE),
//           kUnavailable (MPI fails)
GroupSpec meet(Deadline deadline);

// The backend of a group that meet() gave.
//   throws  Error kInvalidArgument: MPI counts other ranks; else as meet()
std::shared_ptr<Backend> make_mpi_backend(const BackendContext& context);

}  // namespace farspan::dist::mpi
