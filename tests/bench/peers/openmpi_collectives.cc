// Open MPI's collectives, for the same cases: mpirun -n N openmpi_collectives --world N.
#include <mpi.h>

#include "bench/collective_figures.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, world = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  const auto run = [&](const std::string& what, size_t floats, const auto& work) {
    const double us =
        bench::time_of_collective(floats * 4, work, [] { MPI_Barrier(MPI_COMM_WORLD); });
    if (rank == 0) bench::report_collective(what, world, us);
  };
  for (const auto& size : bench::kCollectiveSizes) {
    std::vector<float> x(size.floats);
    run(std::string("all_reduce ") + size.name, size.floats, [&] {
      MPI_Allreduce(MPI_IN_PLACE, x.data(), static_cast<int>(x.size()), MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
    });
  }
  const int floats = static_cast<int>(bench::kOtherFloats);
  const size_t whole = bench::kOtherFloats * static_cast<size_t>(world);
  std::vector<float> one(bench::kOtherFloats), all(whole), sent(whole);
  run("broadcast 1 MiB", bench::kOtherFloats,
      [&] { MPI_Bcast(one.data(), floats, MPI_FLOAT, 0, MPI_COMM_WORLD); });
  run("all_gather 1 MiB", bench::kOtherFloats, [&] {
    MPI_Allgather(one.data(), floats, MPI_FLOAT, all.data(), floats, MPI_FLOAT, MPI_COMM_WORLD);
  });
  run("reduce_scatter 1 MiB", bench::kOtherFloats, [&] {
    MPI_Reduce_scatter_block(all.data(), one.data(), floats, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  });
  run("all_to_all 1 MiB", bench::kOtherFloats, [&] {
    MPI_Alltoall(sent.data(), floats, MPI_FLOAT, all.data(), floats, MPI_FLOAT, MPI_COMM_WORLD);
  });
  run("barrier", 0, [] { MPI_Barrier(MPI_COMM_WORLD); });
  for (const auto& size : bench::kMessageSizes) {
    if (world != 2) break;
    std::vector<float> x(size.floats);
    const auto count = static_cast<int>(size.floats);
    const double us = bench::time_of_collective(
        2 * size.floats * 4,
        [&] {
          if (rank == 0) MPI_Send(x.data(), count, MPI_FLOAT, 1, 0, MPI_COMM_WORLD);
          MPI_Recv(x.data(), count, MPI_FLOAT, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
          if (rank == 1) MPI_Send(x.data(), count, MPI_FLOAT, 0, 0, MPI_COMM_WORLD);
        },
        [] { MPI_Barrier(MPI_COMM_WORLD); });
    if (rank == 0) bench::report_collective(std::string("send ") + size.name, world, us / 2);
  }
  MPI_Finalize();
}
