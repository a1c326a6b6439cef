// What is won at the sizes around which the cpu backend changes its ways: thresholds_bench
// --threshold NAME [--low | --high]. With --low all sizes go the way of those above it, with --high
// that of those below; for `piece`, which is no such size, the pieces are smaller or larger.
#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/init/init.h>
#include <farspan/rpc/init/spawn.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <string_view>
#include <vector>

#include "bench/collective_figures.h"
#include "bench/there_and_back.h"

namespace dist = farspan::dist;
using at::Tensor;

namespace {

enum class What { kAllReduce, kBroadcast, kSend };

struct Threshold {
  std::string_view name;
  const char* variable;
  const char *low, *high;
  int ranks;
  bool one_host;  // else each rank has one of its own
  What what;
  const char* prefix;
  std::vector<bench::CollectiveSize> sizes;
};

const char* const kNever = "1000000000";

const Threshold kThresholds[] = {
    {"small",
     "FARSPAN_CPU_SMALL_BYTES",
     "0",
     "8192",
     2,
     true,
     What::kAllReduce,
     "small: all_reduce ",
     {{"1 KiB", 256}, {"4 KiB", 1 << 10}, {"8 KiB", 2 << 10}}},
    {"hosts_small",
     "FARSPAN_CPU_HOSTS_SMALL_BYTES",
     "0",
     kNever,
     2,
     false,
     What::kAllReduce,
     "hosts_small: all_reduce ",
     {{"4 KiB", 1 << 10}, {"16 KiB", 4 << 10}, {"64 KiB", 16 << 10}, {"256 KiB", 64 << 10}}},
    {"tree",
     "FARSPAN_CPU_TREE_BYTES",
     "0",
     kNever,
     4,
     false,
     What::kBroadcast,
     "tree: broadcast ",
     {{"16 KiB", 4 << 10}, {"64 KiB", 16 << 10}, {"256 KiB", 64 << 10}, {"1 MiB", 256 << 10}}},
    {"piece",
     "FARSPAN_CPU_PIECE_BYTES",
     "262144",
     "4194304",
     2,
     false,
     What::kAllReduce,
     "piece: all_reduce ",
     {{"1 MiB", 256 << 10}, {"4 MiB", 1 << 20}, {"16 MiB", 4 << 20}}},
    {"attach",
     "FARSPAN_CPU_ATTACH_BYTES",
     "0",
     kNever,
     2,
     true,
     What::kSend,
     "attach: send ",
     {{"64 KiB", 16 << 10},
      {"256 KiB", 64 << 10},
      {"1 MiB", 256 << 10},
      {"4 MiB", 1 << 20},
      {"16 MiB", 4 << 20}}},
    {"stripe",
     "FARSPAN_CPU_STRIPE_BYTES",
     "0",
     kNever,
     2,
     false,
     What::kSend,
     "stripe: send ",
     {{"2 MiB", 512 << 10}, {"8 MiB", 2 << 20}, {"32 MiB", 8 << 20}}},
};

void measure(const Threshold& threshold, int rank) {
  at::set_num_threads(1);
  if (!threshold.one_host) setenv("FARSPAN_HOST_ID", std::to_string(rank).c_str(), 1);
  dist::init_process_group("cpu");
  const bool sends = threshold.what == What::kSend;
  for (const auto& size : threshold.sizes) {
    const Tensor x = at::zeros({static_cast<int64_t>(size.floats)});
    const auto work = [&] {
      if (sends) return bench::there_and_back(x, rank);
      if (threshold.what == What::kBroadcast) return dist::broadcast(x, 0);
      dist::all_reduce(x);
    };
    const double us =
        bench::time_of_collective((sends ? 2 : 1) * size.floats * 4, work, [] { dist::barrier(); });
    if (rank == 0)
      bench::report(std::string(threshold.prefix) + size.name, sends ? us / 2 : us, "us");
  }
  dist::destroy_process_group();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view way = argc == 4 ? argv[3] : "";
  const bool is_right = argc >= 3 && std::string_view(argv[1]) == "--threshold" &&
                        (argc == 3 || way == "--low" || way == "--high");
  const auto* const found =
      std::find_if(std::begin(kThresholds), std::end(kThresholds),
                   [&](const Threshold& one) { return is_right && one.name == argv[2]; });
  if (found == std::end(kThresholds)) {
    std::fprintf(stderr, "usage: %s --threshold NAME [--low | --high]\n", argv[0]);
    return 2;
  }
  if (!way.empty()) setenv(found->variable, way == "--low" ? found->low : found->high, 1);
  farspan::spawn(found->ranks, [found](int rank, int) { measure(*found, rank); });
}
