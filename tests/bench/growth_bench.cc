// What a call costs when there is much of everything: tests/bench/README.md says what each case is.
//   growth_bench --workers|--references|--contexts N [--few]
#include <ATen/ATen.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <latch>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <farspan/autograd/context.h>
#include <farspan/rpc/init/init.h>
#include <farspan/rpc/init/spawn.h>
#include <farspan/rpc/rpc.h>
#include <farspan/rref/remote.h>
#include <farspan/rref/rref.h>

#include "bench/figures.h"

namespace {

using farspan::RRef;

at::Tensor add(const at::Tensor& a, const at::Tensor& b) { return a.add(b); }
int64_t number() { return 7; }
// Of this process: those of LibTorch and of the store are among them.
int64_t entries(const std::string& folder) {
  return std::distance(
      std::filesystem::directory_iterator(std::filesystem::path("/proc/self") / folder), {});
}
FARSPAN_REGISTER(add, number, entries);

constexpr size_t kWarmUp = 500, kCalls = 5000;

void report(const char* what, const std::string& named, double value, const char* unit) {
  bench::report(std::string(what).append(", ").append(named), value, unit);
}

std::string name_of(int rank) { return std::string("w").append(std::to_string(rank)); }

// As a worker that leaves when all others are done, however long that takes.
void join(int rank) {
  farspan::WorkerOptions options;
  options.shutdown_timeout = std::chrono::minutes(10);
  farspan::init_rpc(name_of(rank), options);
}

double p50_of(const std::function<void()>& call) {
  bench::times_of(kWarmUp, call);
  return bench::median(bench::times_of(kCalls, call));
}

double small_call() {
  const at::Tensor one = at::ones({1});
  return p50_of([&] { farspan::rpc_sync("w1", add, one, one); });
}

// `workers` of them, of which all know all; the cases are named after `named`.
void measure_workers(int workers, const std::string& named) {
  const bench::Stopwatch start;
  farspan::spawn(workers, [&](int rank, int) {
    join(rank);
    if (rank > 0) return farspan::shutdown();
    const at::Tensor one = at::ones({1});
    for (int peer = 1; peer < workers; ++peer) farspan::rpc_sync(peer, add, one, one);
    report("start", named, start.microseconds() / 1e6, "s");
    report("small call p50", named, small_call(), "us");
    report("descriptors of a worker", named,
           static_cast<double>(farspan::rpc_sync(workers - 1, entries, std::string("fd"))),
           "count");
    report("descriptors of one that has called all", named, static_cast<double>(entries("fd")),
           "count");
    report("threads of a worker", named,
           static_cast<double>(farspan::rpc_sync(workers - 1, entries, std::string("task"))),
           "count");
    const bench::Stopwatch end;
    farspan::shutdown();
    report("shutdown", named, end.microseconds() / 1e6, "s");
  });
}

void measure_references(int references, const std::string& named) {
  farspan::spawn(2, [&](int rank, int) {
    join(rank);
    if (rank > 0) return farspan::shutdown();
    {
      const bench::Stopwatch creation;
      std::vector<RRef<int64_t>> all;
      all.reserve(static_cast<size_t>(references));
      for (int i = 0; i < references; ++i) all.push_back(farspan::remote("w1", number));
      for (const RRef<int64_t>& one : all) one.to_here();
      report("made and read, each", named, creation.microseconds() / references, "us");
      report("small call p50", named, small_call(), "us");
      report("to_here p50", named, p50_of([&] { all.back().to_here(); }), "us");
    }
    const bench::Stopwatch end;
    farspan::shutdown();
    report("shutdown", named, end.microseconds() / 1e6, "s");
  });
}

// Each in a thread of its own, with a call that both workers remember for it.
class LiveContexts {
 public:
  explicit LiveContexts(int contexts) : made_(contexts) {
    for (int i = 0; i < contexts; ++i) {
      threads_.emplace_back([this] {
        const farspan::dist_autograd::Context context;
        farspan::rpc_sync("w1", add, leaf(), leaf());
        made_.count_down();
        over_.wait();
      });
    }
    made_.wait();
  }
  ~LiveContexts() {
    over_.count_down();
    for (std::thread& thread : threads_) thread.join();
  }
  LiveContexts(const LiveContexts&) = delete;
  LiveContexts& operator=(const LiveContexts&) = delete;

  static at::Tensor leaf() { return at::ones({1}).requires_grad_(); }

 private:
  std::latch made_, over_{1};
  std::vector<std::thread> threads_;
};

void measure_contexts(int contexts, const std::string& named) {
  farspan::spawn(2, [&](int rank, int) {
    join(rank);
    if (rank > 0) return farspan::shutdown();
    {
      const LiveContexts live(contexts);
      report("small call p50", named, small_call(), "us");
      report("recorded call p50", named, p50_of([] {
               const farspan::dist_autograd::Context context;
               farspan::rpc_sync("w1", add, LiveContexts::leaf(), LiveContexts::leaf());
             }),
             "us");
    }
    farspan::shutdown();
  });
}

}  // namespace

int main(int argc, char** argv) {
  using Measure = std::function<void(bool few, int count, const std::string& named)>;
  const std::map<std::string, Measure> measures{
      {"--workers",
       [](bool few, int count, auto& named) { measure_workers(few ? 2 : count, named); }},
      {"--references",
       [](bool few, int count, auto& named) { measure_references(few ? 10 : count, named); }},
      {"--contexts",
       [](bool few, int count, auto& named) { measure_contexts(few ? 1 : count, named); }},
  };
  const std::string what = argc > 1 ? argv[1] : "";
  const int count = argc > 2 ? std::atoi(argv[2]) : 0;
  const bool few = argc == 4 && std::strcmp(argv[3], "--few") == 0;
  if ((argc != 3 && !few) || count < 2 || !measures.contains(what)) {
    std::fprintf(stderr, "usage: growth_bench --workers|--references|--contexts N [--few]\n");
    return 2;
  }
  const std::string named = std::to_string(count).append(" ").append(what.substr(2));
  measures.at(what)(few, count, named);
}
