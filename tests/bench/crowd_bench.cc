// Many trainers of one server on few processors: tests/bench/README.md says what each case is.
//   crowd_bench --trainers N [--blocking]
#include <ATen/ATen.h>
#include <time.h>

#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include <farspan/c10d/base/processors.h>
#include <farspan/rpc/init/init.h>
#include <farspan/rpc/init/spawn.h>
#include <farspan/rpc/rpc.h>

#include "bench/figures.h"

namespace {

constexpr int kSteps = 600, kCalls = 2'000;

// What the server has for all.
at::Tensor& parameter() {
  static at::Tensor shared = at::zeros({64 << 10});
  return shared;
}
at::Tensor fetch() { return parameter(); }
void apply(const at::Tensor& gradient) { parameter().add_(gradient, -0.01); }
int64_t next(int64_t x) { return x + 1; }
// Ready when so many have come.
farspan::Future<void> meet(int64_t trainers) {
  static std::mutex mutex;
  static std::vector<farspan::Promise<void>> waiting;
  const farspan::Promise<void> mine;
  std::vector<farspan::Promise<void>> all;
  {
    const std::lock_guard lock(mutex);
    waiting.push_back(mine);
    if (static_cast<int64_t>(waiting.size()) == trainers) all.swap(waiting);
  }
  for (const auto& each : all) each.set_value();
  return mine.future();
}
int64_t polled_ns() { return farspan::current_worker().counters().polling.count(); }
int64_t processor_ns() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return used.tv_sec * 1'000'000'000 + used.tv_nsec;
}
FARSPAN_REGISTER(fetch, apply, next, meet, polled_ns, processor_ns);

// By all workers, so far.
double seconds_of(int64_t (*nanoseconds)(), int trainers) {
  double seconds = 0;
  for (int rank = 0; rank <= trainers; ++rank) {
    seconds += 1e-9 * static_cast<double>(farspan::rpc_sync(rank, nanoseconds));
  }
  return seconds;
}

// Fetches 256 KiB, computes for a while, sends as much.
void train() {
  const at::Tensor weights = at::rand({128, 128});
  for (int step = 0; step < kSteps; ++step) {
    at::Tensor gradient = farspan::rpc_sync("server", fetch).view({-1, 128});
    for (int layer = 0; layer < 4; ++layer) gradient = gradient.matmul(weights).tanh();
    farspan::rpc_sync("server", apply, gradient.view({-1}));
  }
}

void call_often() {
  for (int call = 0; call < kCalls; ++call) farspan::rpc_sync("server", next, 1);
}

// `times` for each of the trainers: how many that is in a second.
double rate(int trainers, int times, void (*work)()) {
  farspan::rpc_sync("server", meet, trainers);
  const bench::Stopwatch stopwatch;
  work();
  farspan::rpc_sync("server", meet, trainers);
  return static_cast<double>(trainers) * times / (stopwatch.microseconds() / 1e6);
}

void measure(int rank, int trainers) {
  const bench::Stopwatch stopwatch;
  const auto taken = [&] { return rank == 1 ? seconds_of(processor_ns, trainers) : 0; };
  const double begun = taken();
  const double steps = rate(trainers, kSteps, train);
  const double before = taken();
  const double calls = rate(trainers, kCalls, call_often);
  if (rank != 1) return;
  const double of_a_step = (before - begun) / (trainers * kSteps);
  const double of_a_call = (taken() - before) / (trainers * kCalls);
  const double seconds = stopwatch.microseconds() / 1e6;
  const double polled = seconds_of(polled_ns, trainers) / seconds;
  const std::string named = std::string(", ").append(std::to_string(trainers)).append(" trainers");
  bench::report(std::string("steps per second").append(named), steps, "steps/s");
  bench::report(std::string("calls per second").append(named), calls, "calls/s");
  bench::report(std::string("processor time of a step").append(named), of_a_step * 1e6, "us");
  bench::report(std::string("processor time of a call").append(named), of_a_call * 1e6, "us");
  bench::report(std::string("polled in a second").append(named), polled, "s");
}

}  // namespace

int main(int argc, char** argv) {
  const int trainers = argc > 2 ? std::atoi(argv[2]) : 0;
  const bool blocking = argc == 4 && std::strcmp(argv[3], "--blocking") == 0;
  if ((argc != 3 && !blocking) || trainers < 1 || std::strcmp(argv[1], "--trainers") != 0) {
    std::fprintf(stderr, "usage: crowd_bench --trainers N [--blocking]\n");
    return 2;
  }
  if (trainers < 2 * farspan::available_processors()) {
    std::fprintf(stderr, "%d workers are no crowd for %d processors\n", trainers + 1,
                 farspan::available_processors());
    return 77;
  }
  farspan::spawn(trainers + 1, [&](int rank, int) {
    farspan::WorkerOptions options;
    if (blocking) options.max_polling = std::chrono::microseconds(0);
    farspan::init_rpc(rank == 0 ? "server" : std::string("trainer").append(std::to_string(rank)),
                      options);
    if (rank > 0) measure(rank, trainers);
    farspan::shutdown();
  });
}
