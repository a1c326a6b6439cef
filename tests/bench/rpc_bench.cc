// farspan's side of `./dev bench rpc`: tests/bench/README.md says what each case is.
//   rpc_bench --transport shm|unix|tcp [--only PART_OF_CASE]
#include <ATen/ATen.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <farspan/rpc/init/init.h>
#include <farspan/rpc/init/spawn.h>
#include <farspan/rpc/rpc.h>

#include "bench/figures.h"

namespace {

at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return a.add(b); }
int64_t numel(const at::Tensor& x) { return x.numel(); }
at::Tensor same(const at::Tensor& x) { return x; }
int64_t sum(const at::Tensor& x) { return x.sum(at::kLong).item<int64_t>(); }
FARSPAN_REGISTER(add, numel, same, sum);

constexpr size_t kWarmUp = 500, kCalls = 20000;

// One case after the other; with `only`, those whose names contain it.
class Cases {
 public:
  Cases(std::string transport, std::string only)
      : transport_(std::move(transport)), only_(std::move(only)) {}
  void run() const;
  // Where workers may not read each other's memory.
  void run_without_attach() const;

 private:
  bool wants(const std::string& name) const { return name.find(only_) != std::string::npos; }
  bool wants_of_size(std::string what, const bench::TensorSize& size) const {
    return wants(what.append(size.name).append(" ").append(transport_));
  }
  template <class Measure>
  void report(const std::string& what, const char* unit, Measure&& measure) const {
    const std::string name = std::string(what).append(" ").append(transport_);
    if (wants(name)) bench::report(name, measure(), unit);
  }
  void run_small_calls() const;
  void run_many_calls() const;
  void run_tensors() const;
  void run_tensor(const std::string& what, const bench::TensorSize& size) const;
  void run_echo(const bench::TensorSize& size) const;
  void run_hand_over() const;

  const std::string transport_, only_;
};

void add_ones() {
  static const at::Tensor one = at::ones({1});
  farspan::rpc_sync("server", add, one, one);
}

void Cases::run_small_calls() const {
  bench::times_of(kWarmUp, add_ones);
  std::vector<double> times;
  if (wants("small call p50 " + transport_) || wants("small call p99 " + transport_)) {
    times = bench::times_of(kCalls, add_ones);
  }
  report("small call p50", "us", [&] { return bench::median(times); });
  if (transport_ == "tcp") return;
  report("small call p99", "us", [&] { return bench::percentile(times, 0.99); });
  report("small call after a pause p50", "us", [] {
    return bench::median(bench::times_after_pauses(bench::kCallsAfterPauses, add_ones));
  });
}

void Cases::run_many_calls() const {
  const auto rate_of = [](int threads) { return bench::rate_of_threads(threads, add_ones); };
  const auto rate_in_flight = [one = at::ones({1})](int threads) {
    return bench::rate_in_flight(
        threads, [&] { return farspan::rpc_async("server", add, one, one); },
        [](const farspan::Future<at::Tensor>& call) { call.wait(); });
  };
  report("calls per second 1 thread", "calls/s", [&] { return rate_of(1); });
  report("calls per second 8 threads", "calls/s", [&] { return rate_of(bench::kThreads); });
  report("calls per second 128 in flight", "calls/s", [&] { return rate_in_flight(1); });
  report("calls per second 128 in flight of 8 threads", "calls/s",
         [&] { return rate_in_flight(bench::kThreads); });
}

void Cases::run_tensors() const {
  for (const bench::TensorSize& size : bench::kTensorSizes) run_tensor("tensor ", size);
}

void Cases::run_tensor(const std::string& what, const bench::TensorSize& size) const {
  if (!wants_of_size(what, size)) return;
  const at::Tensor tensor = at::ones({static_cast<int64_t>(size.bytes)}, at::kByte);
  const auto send = [&] { farspan::rpc_sync("server", numel, tensor); };
  bench::times_of(3, send);
  bench::report_tensor(size, transport_, bench::times_of(size.calls, send), what);
}

// What it costs to give a tensor away, and to have another one: neither end looks at its bytes, but
// once before, at all of them.
void Cases::run_hand_over() const {
  const bench::TensorSize& size = bench::kTensorSizes.back();
  if (!wants_of_size("hand over ", size)) return;
  const auto empty = [&] {
    return farspan::empty_shared({static_cast<int64_t>(size.bytes)}, at::kByte);
  };
  at::Tensor filled = empty().fill_(3);
  const auto bytes = static_cast<int64_t>(size.bytes);
  if (farspan::rpc_sync("server", sum, std::move(filled)) != 3 * bytes) {
    throw std::runtime_error("what was handed over is not what arrived");
  }
  // Each page has been written, so that all of it would have to be moved.
  std::vector<double> times;
  for (size_t i = 0; i < 3 + bench::kHandOvers; ++i) {
    at::Tensor written = empty();
    for (int64_t at = 0; at < bytes; at += 4096) written.data_ptr<uint8_t>()[at] = 1;
    const bench::Stopwatch stopwatch;
    farspan::rpc_sync("server", numel, std::move(written));
    if (i >= 3) times.push_back(stopwatch.microseconds());
  }
  bench::report_hand_over(transport_, times);
}

void Cases::run_echo(const bench::TensorSize& size) const {
  if (!wants_of_size("echo ", size)) return;
  const at::Tensor tensor = at::ones({static_cast<int64_t>(size.bytes)}, at::kByte);
  const auto echo = [&] { farspan::rpc_sync("server", same, tensor); };
  bench::times_of(3, echo);
  bench::report_echo(size, transport_, bench::times_of(size.calls, echo));
}

void Cases::run_without_attach() const { run_tensor("ring tensor ", bench::kThroughRing); }

void Cases::run() const {
  run_small_calls();
  if (transport_ != "tcp") run_many_calls();
  run_tensors();
  if (transport_ == "tcp") return;
  run_hand_over();
  for (const bench::TensorSize& size : bench::kTensorSizes) {
    if (bench::is_echoed(size)) run_echo(size);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool has_only = argc == 5 && std::strcmp(argv[3], "--only") == 0;
  if ((argc != 3 && !has_only) || std::strcmp(argv[1], "--transport") != 0) {
    std::fprintf(stderr, "usage: rpc_bench --transport shm|unix|tcp [--only PART_OF_CASE]\n");
    return 2;
  }
  const std::string transport = argv[2], only = has_only ? argv[4] : "";
  const Cases cases(transport, only);
  const auto run_between_two = [&](farspan::CrossMemoryAttach attach, auto run) {
    farspan::spawn(2, [&](int rank, int) {
      farspan::WorkerOptions options;
      options.transports = {transport};
      options.cross_memory_attach = attach;
      farspan::init_rpc(rank == 0 ? "client" : "server", options);
      if (rank == 0) run();
      farspan::shutdown();
    });
  };
  run_between_two(farspan::CrossMemoryAttach::kAllowed, [&] { cases.run(); });
  if (transport == "tcp") return 0;
  run_between_two(farspan::CrossMemoryAttach::kForbidden, [&] { cases.run_without_attach(); });
}
