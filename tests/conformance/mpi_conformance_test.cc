// The mpi backend: all ranks are processes that mpirun has started, each of which runs this program
// and all of its cases, in the same order. See tests/support/mpirun.py.
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>

#include <farspan/c10d/backends/mpi/mpi.h>

#include "conformance/collective_suite.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;

// All ranks that mpirun has started; the ranks of a case are the first of them.
struct World {
  dist::GroupSpec spec;
  std::shared_ptr<dist::Backend> backend;
  dist::Group group;

  World() {
    dist::BackendContext context;
    context.deadline = Deadline::after(60s);
    context.group = dist::mpi::meet(context.deadline);
    spec = context.group;
    backend = dist::mpi::make_mpi_backend(context);
    group = std::make_shared<dist::ProcessGroup>(spec, spec.rank, backend,
                                                 all_combinations() ? 3600s : 120s);
  }
  static World& the() {
    static World world;
    return world;
  }
};

// A rank that does not come ends the job.
void wait_for_all_processes() {
  try {
    dist::barrier({.group = World::the().group});
  } catch (const Error& error) {
    std::fprintf(stderr, "a rank hangs, or has ended: %s\n", error.what());
    std::_Exit(1);
  }
}

// Nobody leaves before all have ended: who leaves is gone for those that need it still.
void run_rank(int ranks, Millis timeout, const std::function<void(int rank)>& body) {
  static int cases = 0;
  World& world = World::the();
  dist::GroupSpec spec;
  spec.name = world.spec.name + "/case." + std::to_string(++cases);
  spec.rank = world.spec.rank;
  for (int rank = 0; rank < ranks; ++rank) spec.ranks.push_back(rank);
  ASSERT_LE(ranks, world.spec.size()) << "mpirun must start more ranks";
  if (spec.rank >= ranks) return wait_for_all_processes();
  const dist::CurrentGroup current(std::make_shared<dist::ProcessGroup>(
      spec, spec.rank, world.backend->subgroup(spec), timeout));
  try {
    body(spec.rank);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << spec.rank << ": " << error.what();
  }
  wait_for_all_processes();
}

// Packets, of which four may be under way; and slices.
Chunk chunk(int) { return {1 << 18, 1 << 18, 1 << 20}; }

INSTANTIATE_TEST_SUITE_P(Each, CollectiveSuite,
                         ::testing::Values(BackendKind{"Mpi", run_rank, chunk}),
                         [](const auto& kind) { return kind.param.name; });

// There are more ranks than cores.
const bool single_threaded = [] {
  at::set_num_threads(1);
  return true;
}();

}  // namespace
}  // namespace farspan::testing
