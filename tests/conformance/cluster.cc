#include "conformance/cluster.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <set>
#include <thread>
#include <utility>

#include <farspan/c10d/store/tcp_store.h>
#include <farspan/rpc/init/init.h>
#include <farspan/rpc/init/rooms.h>

#include "support/processes.h"
#include "support/workers.h"
#include "support/world.h"

namespace farspan::testing {
namespace {

[[noreturn]] void cannot(const char* what) {
  throw Error(Code::kInvalidArgument, std::string(what) + " is not possible in this cluster");
}

agent::ConnectionOptions limits_of(const ClusterOptions& options, uint64_t lane_bytes) {
  agent::ConnectionOptions limits{options.max_in_flight_bytes, options.silence_timeout};
  limits.lane_bytes = lane_bytes;
  return limits;
}

class OneProcess final : public Cluster {
 public:
  // As if each were on a host of its own, with lanes for segments from `lane_bytes` on; 0: not so.
  OneProcess(const std::string& transport, const ClusterOptions& options, uint64_t lane_bytes)
      : workers_({.count = options.workers,
                  .transport = transport,
                  .own_hosts = lane_bytes > 0,
                  .settings = {.rpc_timeout = options.rpc_timeout},
                  .reactor = {.threads = options.threads, .max_threads = options.max_threads},
                  .limits = limits_of(options, lane_bytes)}),
        current_(workers_[0]) {
    for (int rank = 0; rank < workers_.count(); ++rank) furnish(workers_[rank]);
  }

  Worker& driver() override { return workers_[0]; }
  void shutdown() override {
    down_ = true;
    std::vector<std::thread> others;
    std::vector<std::exception_ptr> failures(static_cast<size_t>(workers_.count()));
    const auto shut = [&](int rank) {
      try {
        workers_[rank].shutdown();
      } catch (...) {
        failures[static_cast<size_t>(rank)] = std::current_exception();
      }
    };
    for (int rank = 1; rank < workers_.count(); ++rank) others.emplace_back(shut, rank);
    shut(0);
    for (auto& thread : others) thread.join();
    for (const auto& failure : failures) {
      if (failure) std::rethrow_exception(failure);
    }
  }
  void leave() override {
    down_ = true;
    workers_[0].shutdown(false);
  }
  void kill(int) override { cannot("kill"); }
  void freeze(int) override { cannot("freeze"); }
  void thaw(int) override { cannot("thaw"); }
  bool serves(int) const override { return !down_; }

 private:
  Workers workers_;
  const CurrentWorker current_;
  bool down_ = false;
};

class Simulated final : public Cluster {
 public:
  Simulated(uint64_t seed, const ClusterOptions& options)
      : world_({.workers = options.workers,
                .seed = seed,
                .settings = {.rpc_timeout = options.rpc_timeout},
                .max_latency = Micros(500),
                .silence_timeout = options.silence_timeout}),
        current_(world_[0]) {}

  Worker& driver() override { return world_[0]; }
  void shutdown() override { world_.shutdown(); }
  void leave() override { world_[0].shutdown(false); }
  void kill(int rank) override { world_.kill(name_of(rank)); }
  void freeze(int rank) override { world_.network().freeze(name_of(rank)); }
  void thaw(int rank) override { world_.network().thaw(name_of(rank)); }
  bool serves(int rank) const override {
    return world_.network().alive(0) && world_.network().alive(rank);
  }

 private:
  static std::string name_of(int rank) { return "w" + std::to_string(rank); }

  World world_;
  const CurrentWorker current_;
};

WorkerOptions worker_options(const std::string& transport, const ClusterOptions& options) {
  WorkerOptions all;
  all.init_timeout = Millis(60'000);
  all.rpc_timeout = options.rpc_timeout;
  all.transports = {transport};
  all.threads = options.threads;
  all.max_threads = options.max_threads;
  all.max_in_flight_bytes = options.max_in_flight_bytes;
  all.silence_timeout = options.silence_timeout;
  all.device_to_device = options.device_to_device;
  all.device_maps = options.device_maps;
  return all;
}

// The test's own process is w0; each other worker is one that shuts down as soon as it has joined,
// and so serves until all have.
class Processes final : public Cluster {
 public:
  Processes(const std::string& transport, const ClusterOptions& options)
      : store_(dist::TcpStoreServer::start()) {
    Process::Environment environment = {
        {"WORLD_SIZE", std::to_string(options.workers)},
        {"MASTER_ADDR", "127.0.0.1"},
        {"MASTER_PORT", std::to_string(store_->port())},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"},
        {"OMP_NUM_THREADS", "1"},  // or each thread that computes gets helpers of its own
        {"TEST_TRANSPORT", transport},
        {"TEST_RPC_TIMEOUT", std::to_string(options.rpc_timeout.count())},
        {"TEST_THREADS", std::to_string(options.threads)},
        {"TEST_MAX_THREADS", std::to_string(options.max_threads)},
        {"TEST_MAX_IN_FLIGHT_BYTES", std::to_string(options.max_in_flight_bytes)},
        {"TEST_SILENCE_TIMEOUT", std::to_string(options.silence_timeout.count())}};
    environment.insert(options.environment.begin(), options.environment.end());
    for (int rank = 1; rank < options.workers; ++rank) {
      environment["RANK"] = std::to_string(rank);
      others_.push_back(std::make_unique<Process>("worker", environment));
    }
    WorkerOptions own = worker_options(transport, options);
    own.rank = 0;
    own.world_size = options.workers;
    dist::TcpStoreOptions store;
    store.port = store_->port();
    own.store = std::make_shared<dist::TcpStore>(store);
    worker_ = init_rpc("w0", own);
  }
  ~Processes() override {
    try {
      if (whole_) {
        shutdown();
      } else if (!down_) {
        farspan::shutdown(false);
      }
    } catch (const Error& e) {
      ADD_FAILURE() << "the end of the processes: " << e.what();
    }
  }

  Worker& driver() override { return *worker_; }
  void shutdown() override {
    if (std::exchange(down_, true)) return;
    whole_ = false;
    farspan::shutdown();
    for (const auto& other : others_) {
      const Process::End end = other->wait(std::chrono::seconds(30));
      EXPECT_EQ(end.status, 0) << end.output;
    }
  }
  void leave() override {
    down_ = true;
    whole_ = false;
    farspan::shutdown(false);
  }
  void kill(int rank) override {
    whole_ = false;
    killed_.insert(rank);
    at(rank).signal(SIGKILL);
  }
  void freeze(int rank) override { at(rank).signal(SIGSTOP); }
  void thaw(int rank) override { at(rank).signal(SIGCONT); }
  bool serves(int rank) const override { return !down_ && !killed_.contains(rank); }

 private:
  Process& at(int rank) { return *others_.at(static_cast<size_t>(rank - 1)); }

  const std::shared_ptr<dist::TcpStoreServer> store_;
  std::vector<std::unique_ptr<Process>> others_;
  std::shared_ptr<Worker> worker_;
  std::set<int> killed_;
  bool whole_ = true;  // every worker lives
  bool down_ = false;
};

int64_t number(const char* variable) { return std::atoll(std::getenv(variable)); }

}  // namespace

ClusterKind in_one_process(const std::string& transport) {
  return {.name = transport,
          .make = [transport](const ClusterOptions& options) -> std::unique_ptr<Cluster> {
            return std::make_unique<OneProcess>(transport, options, 0);
          },
          .can_kill = false,
          .can_freeze = false};
}

ClusterKind on_hosts_in_one_process() {
  static constexpr uint64_t kLaneBytes = 20'000;  // so that many tests have tensors for lanes
  return {.name = "tcp_with_lanes",
          .make = [](const ClusterOptions& options) -> std::unique_ptr<Cluster> {
            return std::make_unique<OneProcess>("tcp", options, kLaneBytes);
          },
          .can_kill = false,
          .can_freeze = false};
}

ClusterKind in_the_world(uint64_t seed) {
  return {.name = "Seed" + std::to_string(seed),
          .make = [seed](const ClusterOptions& options) -> std::unique_ptr<Cluster> {
            return std::make_unique<Simulated>(seed, options);
          },
          .real = false};
}

ClusterKind in_processes(const std::string& transport) {
  return {.name = transport,
          .make = [transport](const ClusterOptions& options) -> std::unique_ptr<Cluster> {
            return std::make_unique<Processes>(transport, options);
          },
          .costly = true};
}

int be_worker() {
  ClusterOptions options;
  options.rpc_timeout = Millis(number("TEST_RPC_TIMEOUT"));
  options.threads = static_cast<int>(number("TEST_THREADS"));
  options.max_threads = static_cast<int>(number("TEST_MAX_THREADS"));
  options.max_in_flight_bytes = static_cast<uint64_t>(number("TEST_MAX_IN_FLIGHT_BYTES"));
  options.silence_timeout = Millis(number("TEST_SILENCE_TIMEOUT"));
  WorkerOptions all = worker_options(std::getenv("TEST_TRANSPORT"), options);
  all.shutdown_timeout = kNoTimeout;  // it serves until the test is over
  init_rpc("w" + std::string(std::getenv("RANK")), all);
  shutdown();
  return 0;
}

}  // namespace farspan::testing
