// Starting workers as a launcher does: environment variables, real processes.
#pragma once

#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <farspan/c10d/store/tcp_store_server.h>

#include "support/processes.h"

namespace farspan::testing {

// The roles of this test program, in init_test.cc and spawn_test.cc.
std::map<std::string, Role> launch_roles();
std::map<std::string, Role> spawn_roles();

// The variables by which launchers tell a worker where it belongs, as given, and no other ones;
// as they were when it goes.
class LaunchVariables {
 public:
  explicit LaunchVariables(const Process::Environment& values) {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                             "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE",
                             "FARSPAN_STORE_PASSWORD", "FARSPAN_STORE_PASSWORD_FILE"}) {
      const char* value = std::getenv(name);
      before_[name] = value ? std::optional<std::string>(value) : std::nullopt;
      const auto wanted = values.find(name);
      set(name, wanted == values.end() ? std::nullopt : std::optional(wanted->second));
    }
  }
  ~LaunchVariables() {
    for (const auto& [name, value] : before_) set(name, value);
  }
  LaunchVariables(const LaunchVariables&) = delete;
  LaunchVariables& operator=(const LaunchVariables&) = delete;

 private:
  static void set(const std::string& name, const std::optional<std::string>& value) {
    value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
  }
  std::map<std::string, std::optional<std::string>> before_;
};

// Processes that join a job at one store, which outlives them.
class Launch {
 public:
  // What the worker of this rank is told; more in `extra`.
  Process::Environment variables(int rank, int world_size,
                                 const Process::Environment& extra = {}) const {
    Process::Environment all = {{"RANK", std::to_string(rank)},
                                {"WORLD_SIZE", std::to_string(world_size)},
                                {"MASTER_ADDR", "127.0.0.1"},
                                {"MASTER_PORT", std::to_string(store_->port())},
                                {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
    for (const auto& [name, value] : extra) all[name] = value;
    return all;
  }
  // TEST_NAME: its name, or w and its rank. TEST_TIMEOUT_MS: to join.
  // TEST_INIT_METHOD: instead of env://.
  Process& start(const std::string& role, int rank, int world_size,
                 const Process::Environment& extra = {}) {
    processes_.push_back(std::make_unique<Process>(role, variables(rank, world_size, extra)));
    return *processes_.back();
  }
  uint16_t port() const { return store_->port(); }

 private:
  const std::shared_ptr<dist::TcpStoreServer> store_ = dist::TcpStoreServer::start();
  std::vector<std::unique_ptr<Process>> processes_;
};

}  // namespace farspan::testing
