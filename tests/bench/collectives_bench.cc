// farspan's collectives among processes of this host: collectives_bench --world N [--hosts H]. With
// H above 1 they are like processes of so many hosts.
#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/init/init.h>
#include <farspan/rpc/init/spawn.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstdlib>
#include <string_view>

#include "bench/collective_figures.h"
#include "bench/there_and_back.h"

namespace dist = farspan::dist;
using at::Tensor;

namespace {

void measure(int rank, int world, int hosts) {
  at::set_num_threads(1);
  if (hosts > 1) setenv("FARSPAN_HOST_ID", std::to_string(rank % hosts).c_str(), 1);
  dist::init_process_group("cpu");
  const auto run = [&](const std::string& what, size_t floats, const auto& work) {
    const double us = bench::time_of_collective(floats * 4, work, [] { dist::barrier(); });
    if (rank == 0) bench::report_collective(what, world, us);
  };
  for (const auto& size : bench::kCollectiveSizes) {
    const Tensor x = at::zeros({static_cast<int64_t>(size.floats)});
    run(std::string("all_reduce ") + size.name, size.floats, [&] { dist::all_reduce(x); });
  }
  const auto floats = static_cast<int64_t>(bench::kOtherFloats);
  const Tensor one = at::zeros({floats}), all = at::zeros({floats * world}),
               sent = at::zeros_like(all);
  run("broadcast 1 MiB", bench::kOtherFloats, [&] { dist::broadcast(one, 0); });
  run("all_gather 1 MiB", bench::kOtherFloats, [&] { dist::all_gather_into_tensor(all, one); });
  run("reduce_scatter 1 MiB", bench::kOtherFloats, [&] { dist::reduce_scatter_tensor(one, all); });
  run("all_to_all 1 MiB", bench::kOtherFloats, [&] { dist::all_to_all_single(all, sent); });
  run("barrier", 0, [] { dist::barrier(); });
  for (const auto& size : bench::kMessageSizes) {
    if (world != 2) break;
    const Tensor x = at::zeros({static_cast<int64_t>(size.floats)});
    const double us = bench::time_of_collective(
        2 * size.floats * 4, [&] { bench::there_and_back(x, rank); }, [] { dist::barrier(); });
    if (rank == 0) bench::report_collective(std::string("send ") + size.name, world, us / 2);
  }
  dist::destroy_process_group();
}

}  // namespace

int main(int argc, char** argv) {
  const bool has_world = argc >= 3 && std::string_view(argv[1]) == "--world";
  const bool has_hosts = argc == 5 && std::string_view(argv[3]) == "--hosts";
  if (!has_world || !(argc == 3 || has_hosts)) {
    std::fprintf(stderr, "usage: %s --world N [--hosts H]\n", argv[0]);
    return 2;
  }
  const int hosts = has_hosts ? std::atoi(argv[4]) : 1;
  farspan::spawn(std::atoi(argv[2]), [hosts](int rank, int world) { measure(rank, world, hosts); });
}
