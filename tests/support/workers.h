// Workers of one process, connected over a real transport.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <farspan/rpc/agent/agent.h>
#include <farspan/rpc/call/registry.h>
#include <farspan/rpc/worker.h>

namespace farspan::testing {

struct WorkersOptions {
  int count = 2;
  std::string transport = "loopback";
  bool own_hosts = false;  // each at an address of its own, as if it were on another host
  Worker::Settings settings;
  net::ReactorOptions reactor;
  agent::ConnectionOptions limits = {};
};

// "w0", "w1", ...; ends them all when it goes.
class Workers {
 public:
  explicit Workers(WorkersOptions options = {}) {
    std::vector<wire::FunctionRecord> functions;
    for (const Function* function : Registry::global().all()) {
      functions.push_back({function->id, function->name, function->signature});
    }
    std::vector<agent::PeerRecord> records;
    for (int rank = 0; rank < options.count; ++rank) {
      agent::AgentOptions one;
      one.self = {"w" + std::to_string(rank), rank};
      one.generation = "test";
      one.transports = {options.transport};
      // Who dials has the address 127.0.0.1.
      if (options.own_hosts) one.bind_host = "127.0.0." + std::to_string(rank + 2);
      one.reactor = options.reactor;
      one.connection = options.limits;
      one.functions = functions;
      agents_.push_back(std::make_shared<agent::Agent>(one));
      records.push_back(agents_.back()->record());
    }
    for (const auto& agent : agents_) {
      agent->set_workers(records);
      workers_.push_back(Worker::make(agent, options.settings));
      workers_.back()->set_stop([agent = agent.get()] { agent->stop(); });
    }
  }
  ~Workers() {
    for (const auto& agent : agents_) agent->stop();
  }

  Worker& operator[](int rank) { return *workers_.at(static_cast<size_t>(rank)); }
  std::shared_ptr<Worker> share(int rank) { return workers_.at(static_cast<size_t>(rank)); }
  agent::Agent& agent(int rank) { return *agents_.at(static_cast<size_t>(rank)); }
  int count() const { return static_cast<int>(workers_.size()); }

 private:
  std::vector<std::shared_ptr<agent::Agent>> agents_;
  std::vector<std::shared_ptr<Worker>> workers_;
};

}  // namespace farspan::testing
