// The rules under test: rpc/init/init.h. And what the processes of this test program do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <thread>
#include <vector>

#include <farspan/c10d/store/hash_store.h>
#include <farspan/c10d/store/rendezvous.h>
#include <farspan/c10d/store/tcp_store.h>
#include <farspan/rpc/agent/agent.h>
#include <farspan/rpc/init/init.h>
#include <farspan/rpc/rpc.h>

#include "c10d/store/reserved_port.h"
#include "c10d/store/store_server.h"
#include "rpc/init/launch.h"
#include "support/errors.h"
#include "support/process_use.h"
#include "support/workers.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string name_here() { return current_worker().name(); }
void leave_from_inside() { shutdown(); }
Future<void> may_go;
std::string name_when_told() {
  may_go.wait();
  return name_here();
}
// Always the same time: that is what the caller is to learn.
void take_a_while() { std::this_thread::sleep_for(5ms); }
FARSPAN_REGISTER(name_here, leave_from_inside, name_when_told, take_a_while);

int64_t only_here(int64_t x) { return x; }
int64_t differs(int64_t x) { return x; }
std::string differs_there(const std::string& x) { return x; }

WorkerOptions options_of_variables() {
  WorkerOptions options;
  const char* timeout = std::getenv("TEST_TIMEOUT_MS");
  options.init_timeout = Millis(timeout ? std::atoi(timeout) : 15'000);
  options.shutdown_timeout = 15s;
  if (const char* method = std::getenv("TEST_INIT_METHOD")) options.init_method = method;
  return options;
}
std::string name_of_variables() {
  const char* name = std::getenv("TEST_NAME");
  return name ? name : "w" + std::string(std::getenv("RANK"));
}
int join_and_leave(const WorkerOptions& options) {
  init_rpc(name_of_variables(), options);
  shutdown();
  return 0;
}

// Calls everybody, and writes who answered and by which way.
int call_all() {
  const auto worker = init_rpc(name_of_variables(), options_of_variables());
  for (int rank = 0; rank < worker->world_size(); ++rank) {
    const std::string name = rpc_sync(rank, name_here);
    const auto routes = worker->routes();
    const auto route = std::find_if(routes.begin(), routes.end(),
                                    [&](const Route& one) { return one.worker == name; });
    std::printf("%s over %s\n", name.c_str(), route->transport.c_str());
  }
  shutdown();
  return 0;
}

void print_error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    std::printf("%s\n", e.what());
  }
}
int call_what_is_missing() {
  detail::register_function<&only_here>("only_here");
  detail::register_function<&differs>("differs");
  init_rpc(name_of_variables(), options_of_variables());
  print_error_of([] { rpc_sync("w1", only_here, 1); });
  print_error_of([] { rpc_sync("w1", differs, 1); });
  print_error_of([] { rpc_sync("w7", name_here); });
  shutdown();
  return 0;
}
int lack_functions() {
  detail::register_function<&differs_there>("differs");
  return join_and_leave(options_of_variables());
}
int call_over_tcp_only() {
  WorkerOptions options = options_of_variables();
  options.transports = {"tcp"};
  init_rpc(name_of_variables(), options);
  print_error_of([] { rpc_sync("w1", name_here); });
  shutdown(false);
  return 0;
}
int unix_only() {
  WorkerOptions options = options_of_variables();
  options.transports = {"unix"};
  return join_and_leave(options);
}

}  // namespace

std::map<std::string, Role> launch_roles() {
  return {{"join", [] { return join_and_leave(options_of_variables()); }},
          {"call_all", call_all},
          {"call_what_is_missing", call_what_is_missing},
          {"lacks_functions", lack_functions},
          {"call_over_tcp_only", call_over_tcp_only},
          {"unix_only", unix_only}};
}

namespace {

// Of a world of one.
WorkerOptions alone() {
  WorkerOptions options;
  options.rank = 0;
  options.world_size = 1;
  options.store = std::make_shared<dist::HashStore>();
  return options;
}

TEST(InitRpc, ProcessesFindEachOtherByTheEnvironment) {
  Launch launch;
  for (int rank = 1; rank < 3; ++rank) launch.start("call_all", rank, 3);
  const Process::End end = launch.start("call_all", 0, 3).wait(30s);
  EXPECT_EQ(end.status, 0) << end.output;
  // Expect: within a host by unix sockets, which come first; to itself without any socket.
  EXPECT_THAT(end.output, HasSubstr("w0 over loopback"));
  EXPECT_THAT(end.output, HasSubstr("w1 over shm"));
  EXPECT_THAT(end.output, HasSubstr("w2 over shm"));
}

TEST(InitRpc, RankZeroHostsTheStoreWhereNoLauncherDoes) {
  const ReservedPort port;
  Launch launch;
  const Process::Environment own_store = {{"MASTER_PORT", std::to_string(port.number())},
                                          {"TORCHELASTIC_USE_AGENT_STORE", ""}};
  std::vector<Process*> workers;
  for (int rank = 0; rank < 4; ++rank) {
    workers.push_back(&launch.start("join", rank, 4, own_store));
  }
  for (Process* worker : workers) {
    const Process::End end = worker->wait(30s);
    EXPECT_EQ(end.status, 0) << end.output;
  }
}

TEST(InitRpc, OptionsComeBeforeTheEnvironment) {
  const LaunchVariables set({{"RANK", "3"}, {"WORLD_SIZE", "9"}});
  WorkerOptions options;
  options.rank = 0;
  options.world_size = 1;
  options.init_method = "tcp://127.0.0.1:0";
  EXPECT_EQ(init_rpc("w", options)->rank(), 0);
  EXPECT_EQ(current_worker().world_size(), 1);
  EXPECT_EQ(rpc_sync("w", name_here), "w");
  shutdown();
}

TEST(InitRpc, WhatAWorkerRunsCannotShutItDown) {
  const LaunchVariables set({});
  WorkerOptions options = alone();
  init_rpc("w", options);
  const Error error = error_of([] { rpc_sync("w", leave_from_inside); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("cannot be shut down by what it runs"));
  EXPECT_EQ(rpc_sync("w", name_here), "w");
  shutdown();
}

TEST(InitRpc, AContinuationCannotShutItDownThoughTheProgramsOwnThreadRunsIt) {
  const auto own = std::this_thread::get_id();
  WorkersOptions options;
  options.transport = "unix";
  Workers workers(options);
  bool here = false;
  for (const auto deadline = Deadline::after(30s); !here && !deadline.expired();) {
    Promise<void> go;
    may_go = go.future();
    const auto call = workers[0].rpc_async("w1", name_when_told);
    const auto refused = call.then([&](const std::string&) {
      here = std::this_thread::get_id() == own;
      return code_of([&] { workers[0].shutdown(); });
    });
    go.set_value();
    call.wait(30s);  // reads the reply, unless another thread is quicker
    EXPECT_EQ(refused.wait(30s), Code::kInvalidArgument);
  }
  EXPECT_TRUE(here) << "this thread ran none, though it waited";
}

TEST(InitRpc, ACallHasAMinuteUnlessTheOptionsSayOtherwise) {
  const LaunchVariables set({});
  WorkerOptions options = alone();
  EXPECT_EQ(init_rpc("w", options)->rpc_timeout(), 60s);
  shutdown();
  options.rpc_timeout = 5s;
  EXPECT_EQ(init_rpc("w", options)->rpc_timeout(), 5s);
  shutdown();
}

TEST(InitRpc, NoThreadOfAWorkerPollsForLongerThanTheOptionsSay) {
  const LaunchVariables set({});
  WorkerOptions options = alone();
  for (const auto polling : {0us, 7us, 150us}) {
    options.max_polling = polling;
    const auto worker = init_rpc("w", options);
    EXPECT_EQ(dynamic_cast<agent::Agent&>(worker->messenger()).reactor().max_spin(), polling);
    for (int call = 0; call < 200; ++call) rpc_sync("w", name_here);
    const agent::MessengerCounters counters = worker->counters();
    if (polling == 0us) {
      EXPECT_EQ(counters.polls_that_found, 0u);
      EXPECT_EQ(counters.polls_in_vain, 0u);
      EXPECT_EQ(counters.polling, 0ns);
    }
    shutdown();
  }
}

// What the calling thread runs while it waits for an answer that takes 5 ms: the median of 40.
Clock::duration processor_time_of_a_wait(std::chrono::microseconds max_polling) {
  WorkerOptions options = alone();
  options.max_polling = max_polling;
  init_rpc("w", options);
  std::vector<Clock::duration> times;
  for (int call = 0; call < 40; ++call) {
    const Clock::duration before = processor_time_of_thread();
    rpc_sync("w", take_a_while);
    times.push_back(processor_time_of_thread() - before);
  }
  shutdown();
  std::ranges::nth_element(times, times.begin() + 20);
  return times[20];
}

TEST(InitRpc, AnswersThatTakeTheSameTimeArePolledForWhenTheyAreDue) {
  const LaunchVariables set({});
  const Clock::duration asleep = processor_time_of_a_wait(0us);
  const Deadline give_up = Deadline::after(20s);
  bool polls = false, was_crowded = false;  // where it is, nobody is to poll
  while (!polls && !give_up.expired()) {
    polls = processor_time_of_a_wait(200us) > asleep + 50us;
    was_crowded |= net::was_crowded();
  }
  EXPECT_TRUE(polls || was_crowded);
}

TEST(InitRpc, AGivenStoreIsUsedAndMayBeUsedAgain) {
  const LaunchVariables set({});
  WorkerOptions options = alone();
  for (int round = 0; round < 3; ++round) {
    init_rpc("w" + std::to_string(round), options);
    EXPECT_EQ(rpc_sync(0, name_here), "w" + std::to_string(round));
    shutdown();
  }
}

TEST(InitRpc, AFileIsAStoreToo) {
  const LaunchVariables set({});
  std::string folder = (std::filesystem::temp_directory_path() / "farspan-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  WorkerOptions options;
  options.rank = 0;
  options.world_size = 1;
  options.init_method = "file://" + folder + "/store";
  init_rpc("w", options);
  EXPECT_EQ(rpc_sync(0, name_here), "w");
  shutdown();
  std::filesystem::remove_all(folder);
}

// A server that outlives the job keeps what an earlier start has left, one that was killed.
TEST(InitRpc, WorkersMeetInAServerAgain) {
  constexpr std::pair<StoreServer::Kind, const char*> kServers[] = {
      {StoreServer::Kind::kRedis, "redis://"}, {StoreServer::Kind::kEtcd, "etcd://"}};
  int found = 0;
  for (const auto& [kind, scheme] : kServers) {
    if (!StoreServer::missing(kind).empty()) continue;
    ++found;
    const StoreServer server(kind);
    const std::string method = scheme + server.place() + "?prefix=job";
    const Process::Environment there = {{"TEST_INIT_METHOD", method}, {"MASTER_PORT", ""}};
    {
      Launch killed;
      killed.start("call_all", 0, 2, there);
      dist::RendezvousOptions options;
      options.environment = {};
      const auto store = dist::rendezvous(method + "&rank=0&world_size=1", options).store;
      store->wait({"generation/leader"}, 30s);
    }
    Launch launch;
    launch.start("call_all", 1, 2, there);
    const Process::End end = launch.start("call_all", 0, 2, there).wait(30s);
    EXPECT_EQ(end.status, 0) << end.output;
    EXPECT_THAT(end.output, HasSubstr("w1 over shm"));
  }
  if (found == 0) GTEST_SKIP() << "neither Redis nor etcd is here";
}

TEST(InitRpc, AFunctionRegisteredTwiceIsReportedWhenAWorkerStarts) {
  Registry registry;
  detail::register_function<&only_here>("same", registry);
  detail::register_function<&differs_there>("same", registry);
  const Error error = error_of([&] { registry.check(); });
  EXPECT_EQ(error.code(), Code::kAlreadyExists);
  EXPECT_THAT(error.what(), HasSubstr("'same' names two functions"));
  EXPECT_THAT(error.what(), HasSubstr("FARSPAN_REGISTER_AS"));
}

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) {
  auto roles = farspan::testing::launch_roles();
  roles.merge(farspan::testing::spawn_roles());
  auto servers = farspan::testing::StoreServer::roles();
  roles.merge(servers);
  return farspan::testing::run_tests(argc, argv, roles);
}
