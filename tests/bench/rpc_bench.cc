// farspan's side of `./dev bench rpc`: tests/bench/README.md says what each case is.
//   rpc_bench --transport shm|unix|tcp
#include <ATen/ATen.h>

#include <cstring>
#include <deque>
#include <string>

#include <farspan/farspan.h>

#include "bench/figures.h"

namespace {

at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return a.add(b); }
int64_t numel(const at::Tensor& x) { return x.numel(); }
at::Tensor same(const at::Tensor& x) { return x; }
FARSPAN_REGISTER(add, numel, same);

constexpr size_t kWarmUp = 500, kCalls = 5000, kInFlightCalls = 100'000, kInFlight = 128;

void measure(const std::string& transport) {
  const at::Tensor one = at::ones({1});
  const auto small_call = [&] { farspan::rpc_sync("server", add, one, one); };
  bench::times_of(kWarmUp, small_call);
  const auto times = bench::times_of(kCalls, small_call);
  bench::report("small call p50 " + transport, bench::median(times), "us");
  if (transport != "tcp") {
    bench::report("small call p99 " + transport, bench::percentile(times, 0.99), "us");
    bench::report("small call after a pause p50 " + transport,
                  bench::median(bench::times_after_pauses(bench::kCallsAfterPauses, small_call)),
                  "us");
    bench::report("calls per second 8 threads " + transport,
                  bench::rate_of_threads(bench::kThreads, bench::kCallsOfThread, small_call),
                  "calls/s");
    std::deque<farspan::Future<at::Tensor>> in_flight;
    const bench::Stopwatch stopwatch;
    for (size_t i = 0; i < kInFlightCalls; ++i) {
      in_flight.push_back(farspan::rpc_async("server", add, one, one));
      if (in_flight.size() == kInFlight) {
        in_flight.front().wait();
        in_flight.pop_front();
      }
    }
    for (const auto& call : in_flight) call.wait();
    bench::report("calls per second 128 in flight " + transport,
                  kInFlightCalls / (stopwatch.microseconds() / 1e6), "calls/s");
  }
  for (const bench::TensorSize& size : bench::kTensorSizes) {
    const at::Tensor tensor = at::ones({static_cast<int64_t>(size.bytes)}, at::kByte);
    const auto send = [&] { farspan::rpc_sync("server", numel, tensor); };
    bench::times_of(3, send);
    bench::report_tensor(size, transport, bench::times_of(size.calls, send));
  }
  if (transport == "tcp") return;
  const at::Tensor tensor = at::ones({static_cast<int64_t>(bench::kEcho.bytes)}, at::kByte);
  const auto echo = [&] { farspan::rpc_sync("server", same, tensor); };
  bench::times_of(3, echo);
  bench::report_echo(transport, bench::times_of(bench::kEcho.calls, echo));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || std::strcmp(argv[1], "--transport") != 0) {
    std::fprintf(stderr, "usage: rpc_bench --transport shm|unix|tcp\n");
    return 2;
  }
  const std::string transport = argv[2];
  farspan::spawn(2, [&](int rank, int) {
    farspan::WorkerOptions options;
    options.transports = {transport};
    farspan::init_rpc(rank == 0 ? "client" : "server", options);
    if (rank == 0) measure(transport);
    farspan::shutdown();
  });
}
