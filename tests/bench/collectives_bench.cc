// farspan's collectives: collectives_bench --world N, all on this host.
#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/init/init.h>
#include <farspan/rpc/init/spawn.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

int main(int argc, char** argv) {
  namespace dist = farspan::dist;
  const int world = argc > 1 ? std::atoi(argv[1]) : 2;
  farspan::spawn(world, [](int rank, int size) {
    at::set_num_threads(1);
    dist::init_process_group("cpu");
    for (const int64_t n : {1L, 1024L, 16384L, 262144L, 4L << 20, 16L << 20}) {
      const at::Tensor x = at::ones({n});
      const int64_t times =
          std::max<int64_t>(5, std::min<int64_t>(n == 1 ? 20000 : 2000, (64 << 20) / n));
      for (int i = 0; i < 3; ++i) dist::all_reduce(x);
      dist::barrier();
      double best = 1e9;
      for (int round = 0; round < 3; ++round) {
        const auto begin = farspan::Clock::now();
        for (int64_t i = 0; i < times; ++i) dist::all_reduce(x);
        const double us =
            std::chrono::duration<double, std::micro>(farspan::Clock::now() - begin).count() /
            times;
        best = std::min(best, us);
      }
      if (rank == 0) {
        std::printf("all_reduce world %d %10ld B %10.2f us busbw %.2f GB/s\n", size, n * 4, best,
                    2.0 * (size - 1) / size * n * 4 / best / 1e3);
        std::fflush(stdout);
      }
    }
    dist::destroy_process_group();
  });
}
