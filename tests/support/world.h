// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// World: the workers of a job in one process, whole ones with all their rooms, on a network and a
// clock that the test controls.
//
//   World world({.workers = 3, .seed = 1});             // "w0", "w1", "w2"
//   world.faults().drop(Kind::kRRefControl, {.from = "w2", .to = "w1", .times = 1});
//   Tensor y = world["w0"].rpc_sync("w1", square, x);   // moves the world until it is answered
//   world.drain();                                      // until nothing is under way
//   world.advance(5s);                                  // lets time pass
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <farspan/c10d/base/future.h>
#include <farspan/rpc/worker.h>

#include "support/sim_network.h"

namespace farspan::testing {

struct WorldOptions {
  int workers = 3;
  uint64_t seed = 1;
  Worker::Settings settings = {};
  Micros max_latency{0};
  bool stragglers = false;
  int64_t max_steps = 1'000'000;
  Millis silence_timeout = kNoTimeout;  // see SimOptions
};

// Rules that workers break (work that must not block and waits, a livelock) fail the test when the
// World ends, and so do workers that live and still hold something (held.h). So that a failure can
// be repeated, the seed is printed with it.
//
// Threading: the test's thread, and the functions that workers serve and run; one of them runs at a
//            time, so they share state without locks. One World at a time.
class World {
 public:
  explicit World(WorldOptions options = {});
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int size() const noexcept { return network_->size(); }
  // A worker in its present life.
  //   throws  Error kInvalidArgument
  Worker& operator[](std::string_view name) { return *share(network_->rank_of(name)); }
  Worker& operator[](int rank) { return *share(rank); }
  const std::shared_ptr<Worker>& share(int rank) const;

  // Starts a program of this worker's: `program` runs on a thread of its own, with the free
  // functions at that worker, and may wait. What it throws is in the future.
  Future<void> start(std::string_view name, std::function<void()> program);
  // A program for each worker; returns when all have ended.
  //   throws  what the first of them threw, after all have ended
  void run_all(const std::function<void(Worker&)>& program);
  // Worker::shutdown() of all that live, each as a program of its own.
  void shutdown(bool graceful = true);

  bool step() { return network_->scheduler().step(); }
  void drain() { network_->scheduler().drain(); }
  void advance(Clock::duration duration) { network_->scheduler().advance(duration); }
  // Lets the world go on until `condition` holds; false when it did not within `limit`.
  bool run_until(std::function<bool()> condition, Clock::duration limit = std::chrono::hours(1));
  TimePoint now() const noexcept { return network_->scheduler().now(); }

  Faults& faults() noexcept { return network_->faults(); }
  // Partitions, clogs, frozen workers, broken lines: on the network itself.
  SimNetwork& network() noexcept { return *network_; }
  const SimNetwork& network() const noexcept { return *network_; }
  void kill(const std::string& name, Sent sent = Sent::kArrives) { network_->kill(name, sent); }
  // A new life of the worker, with new rooms. What the old one held stays until the World ends.
  Worker& restart(const std::string& name);

  SeededRandom& random() noexcept { return network_->random(); }
  uint64_t trace_hash() const noexcept { return network_->trace().hash(); }
  std::string describe() const { return network_->describe(); }

  // What the workers hold that live: see held_by().
  std::vector<std::string> held() const;

 private:
  std::shared_ptr<Worker> make_worker(int rank);

  const WorldOptions options_;
  const std::unique_ptr<SimNetwork> network_;
  std::vector<std::shared_ptr<Worker>> workers_;  // by rank
  std::vector<std::shared_ptr<Worker>> dead_;
};

// Runs `body` with `count` seeds, from 1 on, and stops at the first that fails, which it names.
// FARSPAN_SEED=n runs that one alone, FARSPAN_SEEDS=n as many as that.
void for_each_seed(int count, const std::function<void(uint64_t seed)>& body);

}  // namespace farspan::testing
