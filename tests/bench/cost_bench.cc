// What a small call costs beside its time: tests/bench/README.md says what of it is counted.
//   cost_bench --transport shm|unix|tcp
// Prints the ids of its two processes once they are warm, {"caller": 12, "callee": 13}. Then, for
// each line "CALLS PAUSE_MS counts" that it reads, it makes so many calls, each after so long a
// pause, and prints the median time of one and its allocations; for "CALLS PAUSE_MS stages" the
// stages of a call.
#include <ATen/ATen.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <farspan/rpc/init/init.h>
#include <farspan/rpc/init/spawn.h>
#include <farspan/rpc/rpc.h>

#include "bench/allocations.h"
#include "bench/call_stages.h"
#include "bench/figures.h"

namespace bench {
FARSPAN_STRUCT(Allocations, count, bytes);
}

namespace {

using bench::Allocations;
using bench::allocations;

at::Tensor sum_of(const at::Tensor& a, const at::Tensor& b) { return a.add(b); }
int process_id() { return getpid(); }
FARSPAN_REGISTER(sum_of, allocations, process_id);

constexpr size_t kWarmUp = 2000;

struct Counted {
  double median_us = 0;
  Allocations caller, callee, function;  // of all calls
};

Allocations since(const Allocations& before, const Allocations& now) {
  return {now.count - before.count, now.bytes - before.bytes};
}

Counted count(size_t calls, std::chrono::milliseconds pause) {
  const at::Tensor one = at::ones({1});
  std::vector<double> times(calls);  // here, so that it is not counted
  const Allocations callee = farspan::rpc_sync("server", allocations);
  const Allocations caller = allocations();
  for (double& time : times) {
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
    const bench::Stopwatch stopwatch;
    farspan::rpc_sync("server", sum_of, one, one);
    time = stopwatch.microseconds();
  }
  Counted counted;
  counted.caller = since(caller, allocations());
  counted.callee = since(callee, farspan::rpc_sync("server", allocations));
  const Allocations alone = allocations();
  for (size_t i = 0; i < calls; ++i) sum_of(one, one);
  counted.function = since(alone, allocations());
  counted.median_us = bench::median(times);
  return counted;
}

void print_of_one_call(const char* name, const Allocations& allocated, size_t calls) {
  const auto all = static_cast<double>(calls);
  std::printf(", \"%s\": {\"count\": %.4f, \"bytes\": %.2f}", name,
              static_cast<double>(allocated.count) / all,
              static_cast<double>(allocated.bytes) / all);
}

void print_stages(size_t calls, std::chrono::milliseconds pause) {
  const char* separator = "{";
  for (const bench::Stage& stage : bench::stages_of_calls(calls, pause)) {
    std::printf("%s\"%s\": %.3f", separator, stage.name.c_str(), stage.microseconds);
    separator = ", ";
  }
  std::printf("}\n");
}

void print_counted(size_t calls, std::chrono::milliseconds pause) {
  const Counted counted = count(calls, pause);
  std::printf("{\"us\": %.3f", counted.median_us);
  print_of_one_call("caller", counted.caller, calls);
  print_of_one_call("callee", counted.callee, calls);
  print_of_one_call("function", counted.function, calls);
  std::printf("}\n");
}

void serve_input() {
  count(kWarmUp, {});
  std::printf("{\"caller\": %d, \"callee\": %d}\n", getpid(),
              farspan::rpc_sync("server", process_id));
  std::fflush(stdout);
  size_t calls = 0;
  unsigned pause_ms = 0;
  char what[8];
  while (std::scanf("%zu %u %7s", &calls, &pause_ms, what) == 3 && calls > 0) {
    const std::chrono::milliseconds pause(pause_ms);
    if (std::strcmp(what, "stages") == 0) {
      print_stages(calls, pause);
    } else {
      print_counted(calls, pause);
    }
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::strcmp(argv[1], "--transport") != 0) {
    std::fprintf(stderr, "usage: cost_bench --transport shm|unix|tcp\n");
    return 2;
  }
  const std::string transport = argv[2];
  farspan::spawn(2, [&](int rank, int) {
    farspan::WorkerOptions options;
    options.transports = {transport};
    farspan::init_rpc(rank == 0 ? "client" : "server", options);
    if (rank == 0) serve_input();
    farspan::shutdown();
  });
}
