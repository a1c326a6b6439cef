#include "support/world.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <utility>

#include <farspan/rpc/call/registry.h>
#include <farspan/rpc/init/rooms.h>

#include "support/held.h"

namespace farspan::testing {

World::World(WorldOptions options)
    : options_(options),
      network_(
          std::make_unique<SimNetwork>(SimOptions{.workers = options.workers,
                                                  .seed = options.seed,
                                                  .max_latency = options.max_latency,
                                                  .stragglers = options.stragglers,
                                                  .max_steps = options.max_steps,
                                                  .silence_timeout = options.silence_timeout})) {
  for (int rank = 0; rank < options.workers; ++rank) workers_.push_back(make_worker(rank));
}

World::~World() {
  if (!::testing::Test::HasFailure()) {
    advance(std::chrono::minutes(10));  // leases of the dead end
    for (const std::string& one : held()) ADD_FAILURE() << "still held: " << one;
  }
  network_->stop();
  for (const std::string& complaint : network_->scheduler().complaints()) {
    ADD_FAILURE() << complaint;
  }
  if (::testing::Test::HasFailure()) {
    GTEST_LOG_(INFO) << "the last " << describe();
  }
}

std::shared_ptr<Worker> World::make_worker(int rank) {
  const auto& messenger = network_->at(rank);
  std::vector<wire::FunctionRecord> functions;
  for (const Function* function : Registry::global().all()) {
    functions.push_back({function->id, function->name, function->signature});
  }
  messenger->set_functions(std::move(functions));
  const auto worker = Worker::make(messenger, options_.settings);
  // A messenger that lives has a network; the worker itself may outlive both.
  worker->set_stop([network = network_.get(), messenger] {
    if (messenger->alive()) network->leave(messenger->self().name);
  });
  furnish(*worker);
  return worker;
}

const std::shared_ptr<Worker>& World::share(int rank) const {
  network_->at(rank);  // throws when there is none
  return workers_[static_cast<size_t>(rank)];
}

Future<void> World::start(std::string_view name, std::function<void()> program) {
  const Promise<void> ended;
  const auto worker = share(network_->rank_of(name));
  worker->messenger().run([ended, worker, program = std::move(program)] {
    const CurrentWorker current(*worker);
    try {
      program();
      ended.set_value();
    } catch (...) {
      ended.set_error(to_error(std::current_exception()));
    }
  });
  return ended.future();
}

void World::run_all(const std::function<void(Worker&)>& program) {
  std::vector<Future<void>> ends;
  for (const auto& worker : workers_) {
    if (!network_->alive(worker->rank())) continue;
    ends.push_back(start(worker->name(), [worker, program] { program(*worker); }));
  }
  wait_all(ends);
}

void World::shutdown(bool graceful) {
  run_all([graceful](Worker& worker) { worker.shutdown(graceful); });
}

bool World::run_until(std::function<bool()> condition, Clock::duration limit) {
  return network_->scheduler().run_until(std::move(condition), now() + limit);
}

Worker& World::restart(const std::string& name) {
  const int rank = network_->rank_of(name);
  network_->restart(name);
  auto& worker = workers_[static_cast<size_t>(rank)];
  dead_.push_back(worker);
  worker = make_worker(rank);
  return *worker;
}

std::vector<std::string> World::held() const {
  std::vector<std::string> all;
  for (const auto& worker : workers_) {
    if (!network_->alive(worker->rank())) continue;
    for (std::string& one : held_by(*worker)) all.push_back(std::move(one));
  }
  return all;
}

void for_each_seed(int count, const std::function<void(uint64_t seed)>& body) {
  uint64_t first = 1;
  if (const char* many = std::getenv("FARSPAN_SEEDS")) count = std::atoi(many);
  if (const char* one = std::getenv("FARSPAN_SEED")) {
    first = std::strtoull(one, nullptr, 10);
    count = 1;
  }
  for (uint64_t seed = first; seed < first + static_cast<uint64_t>(count); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed) +
                 "; to repeat it: FARSPAN_SEED=" + std::to_string(seed));
    body(seed);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace farspan::testing
