// In place of all other files here, where MPI was not found.
#include <farspan/c10d/backends/mpi/mpi.h>
#include <farspan/c10d/base/error.h>

namespace farspan::dist::mpi {
namespace {

[[noreturn]] void refuse() {
  throw Error(Code::kInvalidArgument, "farspan was built without MPI")
      .advice(
          "install Open MPI (libopenmpi-dev, openmpi-bin) and configure it with "
          "-DFARSPAN_WITH_MPI=ON");
}

}  // namespace

GroupSpec meet(Deadline) { refuse(); }
std::shared_ptr<Backend> make_mpi_backend(const BackendContext&) { refuse(); }

}  // namespace farspan::dist::mpi
