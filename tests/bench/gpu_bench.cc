// farspan's side of `./dev bench gpu`: tests/bench/README.md says what each case is.
//   gpu_bench [--through-host]
#include <ATen/ATen.h>

#include <cstdio>
#include <cstring>

#include <farspan/rpc/init/init.h>
#include <farspan/rpc/init/spawn.h>
#include <farspan/rpc/rpc.h>

#include "bench/gpu_calls.h"

namespace {

at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return a.add(b); }
int64_t numel(const at::Tensor& x) { return bench::numel_on_arrival(x); }
FARSPAN_REGISTER(add, numel);

void measure(bool through_host) {
  if (!through_host) {
    bench::report_small_calls([](const at::Tensor& x) { farspan::rpc_sync("server", add, x, x); });
  }
  bench::report_gpu_tensors([](const at::Tensor& x) { farspan::rpc_sync("server", numel, x); });
}

}  // namespace

int main(int argc, char** argv) {
  const bool through_host = argc == 2 && std::strcmp(argv[1], "--through-host") == 0;
  if (argc != 1 && !through_host) {
    std::fprintf(stderr, "usage: gpu_bench [--through-host]\n");
    return 2;
  }
  bench::require_gpu("gpu_bench");
  farspan::spawn(2, [&](int rank, int) {
    farspan::WorkerOptions options;
    options.device_to_device =
        through_host ? farspan::DeviceToDevice::kForbidden : farspan::DeviceToDevice::kRequired;
    farspan::init_rpc(rank == 0 ? "client" : "server", options);
    if (rank == 0) measure(through_host);
    farspan::shutdown();
  });
}
