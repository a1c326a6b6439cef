#include <farspan/c10d/backends/mpi/library.h>

#include <mpi.h>

#include <atomic>
#include <cstdlib>
#include <string>

#include <farspan/c10d/backends/mpi/pause.h>
#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/log.h>

namespace farspan::dist::mpi {
namespace {

// How long the end of a process waits for ranks that may hang.
std::atomic<Millis> farewell{Millis(30'000)};

Mutex start_mutex;
Hub* the_hub FARSPAN_GUARDED_BY(start_mutex) = nullptr;  // never destroyed: threads may wait in it
// Outlives a deadline: nothing can take it back, and it ends when the other ranks come.
MPI_Comm own_ranks FARSPAN_GUARDED_BY(start_mutex) = MPI_COMM_NULL;
MPI_Request duplicating FARSPAN_GUARDED_BY(start_mutex) = MPI_REQUEST_NULL;

void end_mpi(int status, void* argument) {
  Hub& hub = *static_cast<Hub*>(argument);
  int has_ended = 0;
  MPI_Finalized(&has_ended);
  if (has_ended || status != 0) return;
  try {
    const Deadline deadline =
        hub.has_timed_out() ? Deadline::after(farewell.load()) : Deadline::never();
    const std::string missing = hub.say_bye(deadline);
    if (missing.empty()) {
      MPI_Finalize();
      return;
    }
    log(LogLevel::kError, "c10d/mpi",
        "an operation ran out of time before, and rank " + missing +
            " does not come to its end; ending the job");
  } catch (const Error& error) {
    log(LogLevel::kError, "c10d/mpi", error.what());
  }
  MPI_Abort(MPI_COMM_WORLD, 1);
}

// MPI calls it at the begin of MPI_Finalize, whoever called that.
int before_finalize(MPI_Comm, int, void* hub, void*) {
  static_cast<Hub*>(hub)->close();
  return MPI_SUCCESS;
}

void close_before_finalize(Hub& hub) {
  int key = MPI_KEYVAL_INVALID;
  check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, before_finalize, &key, nullptr),
        "MPI_Comm_create_keyval");
  check(MPI_Comm_set_attr(MPI_COMM_SELF, key, &hub), "MPI_Comm_set_attr");
}

void check_not_ended() {
  int has_ended = 0;
  MPI_Finalized(&has_ended);
  if (has_ended) throw Error(Code::kInvalidArgument, "MPI has ended in this process");
}

// Whether it was not before.
bool initialise() {
  int has_begun = 0, level = 0;
  MPI_Initialized(&has_begun);
  if (has_begun) {
    check(MPI_Query_thread(&level), "MPI_Query_thread");
  } else {
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
  }
  if (level < MPI_THREAD_MULTIPLE) {
    throw Error(Code::kInvalidArgument, "MPI was initialised for fewer threads than farspan needs")
        .advice("leave it to farspan, or call MPI_Init_thread with MPI_THREAD_MULTIPLE");
  }
  return !has_begun;
}

void duplicate_world_locked(Deadline deadline) FARSPAN_REQUIRES(start_mutex) {
  if (duplicating == MPI_REQUEST_NULL) {
    check(MPI_Comm_idup(MPI_COMM_WORLD, &own_ranks, &duplicating), "MPI_Comm_idup");
  }
  int is_done = 0;
  for (Pause pause;;) {
    check(MPI_Test(&duplicating, &is_done, MPI_STATUS_IGNORE), "MPI_Test");
    if (is_done) break;
    if (deadline.expired()) {
      throw Error(Code::kTimeout, "not all ranks came in time")
          .advice("each rank that mpirun has started must call it");
    }
    pause.take();
  }
  check(MPI_Comm_set_errhandler(own_ranks, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

}  // namespace

void set_farewell(Millis time) noexcept { farewell = time; }

Hub& hub(Deadline deadline) {
  static bool ends_here = false;  // under the lock, too
  MutexLock lock(start_mutex);
  check_not_ended();
  if (the_hub) return *the_hub;
  ends_here = initialise() || ends_here;
  duplicate_world_locked(deadline);
  auto made = std::make_unique<Hub>(own_ranks);
  close_before_finalize(*made);
  the_hub = made.release();
  if (ends_here) on_exit(end_mpi, the_hub);
  return *the_hub;
}

}  // namespace farspan::dist::mpi
