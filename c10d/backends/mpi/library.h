// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The MPI library of this process: from its start to its end.
#pragma once

#include <farspan/c10d/backends/mpi/hub.h>
#include <farspan/c10d/base/time.h>

namespace farspan::dist::mpi {

// Initialises MPI, unless the program has, and gives farspan a communicator of its own, once in a
// process; all ranks of the job must come for that.
//   throws  Error kTimeout, kInvalidArgument (MPI has ended, or the program has initialised it
//           without MPI_THREAD_MULTIPLE), kUnavailable (MPI fails)
//
// Who initialises MPI ends it. Where farspan has, that is when the process exits:
//   with status 0     it waits for all other ranks to come to their end, as MPI demands; after a
//                     collective has run out of time here, for half a minute: then it ends the job
//   with another one  at once; mpirun sees that, and ends the job
// MPI's own start knows no deadline: under mpirun it blocks until all processes have come to it.
//
// Threading: any thread.
Hub& hub(Deadline deadline);

// Instead of that half a minute; for tests.
void set_farewell(Millis time) noexcept;

}  // namespace farspan::dist::mpi
