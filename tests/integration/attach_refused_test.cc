// The rule under test: rpc/wire/WIRE.md, "Offers": where the system does not let a worker read
// another one's memory, as in many containers, or from some moment on not any more, no frame is
// lost to that, and the route says why (rpc/agent/route.h).
#include <farspan/rpc/init/init.h>
#include <farspan/rpc/rpc.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "integration/exchanged_tensors.h"
#include "rpc/init/launch.h"
#include "support/eventually.h"
#include "support/forbid_reading.h"
#include "support/sanitizers.h"
#include "support/seeded_random.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using at::Tensor;
using ::testing::HasSubstr;

constexpr Millis kLong{60'000};
constexpr int64_t kNumbers = 1 << 20;  // 8 MiB
constexpr int kThreads = 4;            // of the caller

Tensor exchange_shared(const Tensor& x, int64_t seed) {
  wrong += !at::equal(x, pattern(seed, x.numel()));
  ++checked;
  return shared_pattern(seed + 1, x.numel());
}

std::string text_of(const Route& route) {
  return std::string(route.reads_memory ? "reads" : "does not read") + ", " +
         (route.is_read ? "is read" : "is not read") + ", " +
         (route.bytes_read + route.bytes_handed_over > 0 ? "has read" : "has read nothing") +
         ", why: " + route.why_not_read;
}
// Of the only other worker.
std::string route_here() {
  const auto routes = current_worker().routes();
  const auto other = std::find_if(routes.begin(), routes.end(), [](const Route& route) {
    return route.worker != current_worker().name();
  });
  return other == routes.end() ? "none" : text_of(*other);
}

int64_t forbid_reading() { return forbid_reading_processes(); }
FARSPAN_REGISTER_AS("refused.exchange", exchange);
FARSPAN_REGISTER_AS("refused.exchange_shared", exchange_shared);
FARSPAN_REGISTER_AS("refused.findings", findings);
FARSPAN_REGISTER_AS("refused.route_here", route_here);
FARSPAN_REGISTER_AS("refused.forbid_reading", forbid_reading);

WorkerOptions options_of_variables() {
  WorkerOptions options;
  options.transports = {std::getenv("TEST_TRANSPORT")};
  options.shutdown_timeout = 2 * kLong;  // it waits in there for the caller's calls
  return options;
}

int serve() {
  init_rpc("server", options_of_variables());
  shutdown();
  return 0;
}
int serve_without_reading() {
  if (const int64_t error = forbid_reading()) {
    std::printf("no filter: %ld\n", error);
    return 1;
  }
  return serve();
}

// What came of the calls of several threads at once.
struct Calls {
  std::atomic<int64_t> answered{0}, failed{0}, wrong_answers{0};
};

// Every other one gives its tensor away; the others overwrite it as soon as a call has ended.
void make_calls(Worker& worker, int64_t first, int count, Calls& calls) {
  for (int64_t call = first; call < first + count; ++call) {
    try {
      Tensor answer;
      if (call % 2 == 0) {
        Tensor x = pattern(call, kNumbers);
        answer = worker.rpc_sync("server", CallOptions{kLong}, exchange, x, call);
        x.fill_(-1);
      } else {
        Tensor x = empty_shared(worker, {kNumbers}, at::kLong);
        at::arange_out(x, call, call + kNumbers, 1);
        answer = worker.rpc_sync("server", CallOptions{kLong}, exchange_shared, std::move(x), call);
      }
      calls.wrong_answers += !at::equal(answer, pattern(call + 1, kNumbers));
      ++calls.answered;
    } catch (const std::exception& why) {
      ++calls.failed;
      std::printf("call %ld: %s\n", call, why.what());
    }
  }
}

// TEST_FORBID_AFTER: after so many answers the server is told that it may not read any more; -1: it
// could not from the beginning.
int call_and_tell() {
  const auto worker = init_rpc("caller", options_of_variables());
  rpc_sync("server", CallOptions{kLong}, exchange, pattern(0, 1), 0);
  const int forbid_after = std::atoi(std::getenv("TEST_FORBID_AFTER"));
  const int count = std::atoi(std::getenv("TEST_CALLS"));  // of each thread
  // What the server found out when the line opened comes a little after its first answer.
  if (forbid_after < 0) {
    eventually([&] {
      const auto routes = worker->routes();
      return !routes.empty() && !routes.front().is_read;
    });
  }
  std::printf("before: %s\n", route_here().c_str());
  Calls calls;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back(
        [&, thread] { make_calls(*worker, 1'000'000 * (thread + 1), count, calls); });
  }
  int64_t error = 0;
  if (forbid_after >= 0) {
    eventually([&] { return calls.answered + calls.failed >= forbid_after; }, kLong);
    std::printf("server: %s\n", rpc_sync("server", CallOptions{kLong}, route_here).c_str());
    error = rpc_sync("server", CallOptions{kLong}, forbid_reading);
  }
  for (std::thread& one : threads) one.join();
  // Whatever the moment was, these come when the server cannot read.
  make_calls(*worker, 90'000'000, 4, calls);
  std::printf("after: %s\n", route_here().c_str());
  std::printf("server after: %s\n", rpc_sync("server", CallOptions{kLong}, route_here).c_str());
  const auto found = rpc_sync("server", CallOptions{kLong}, findings);
  // Expect: nothing is kept for somebody who will not say that he has read it.
  const bool all_back = eventually([&] { return worker->counters().offered_memory == 0; });
  shutdown();
  std::printf(
      "filter: %ld; %ld answered, %ld failed, %ld arguments; %ld wrong answers, %ld wrong "
      "arguments; %s\n",
      error, calls.answered.load(), calls.failed.load(), found[0] - 1, calls.wrong_answers.load(),
      found[1], all_back ? "nothing is kept" : "leaked");
  return 0;
}

class AttachRefusedByTheSystem : public ::testing::TestWithParam<const char*> {
 protected:
  // Runs both, and returns what the caller has written.
  static std::string run(const std::string& server_role, int forbid_after, int calls) {
    Launch launch;
    const Process::Environment variables = {{"TEST_TRANSPORT", GetParam()},
                                            {"TEST_FORBID_AFTER", std::to_string(forbid_after)},
                                            {"TEST_CALLS", std::to_string(calls)}};
    Process& server = launch.start(server_role, 0, 2, variables);
    const Process::End end = launch.start("call_and_tell", 1, 2, variables).wait(3 * kLong);
    EXPECT_EQ(end.status, 0) << end.output;
    const Process::End server_end = server.wait(kLong);
    EXPECT_EQ(server_end.status, 0) << server_end.output;
    const std::string all = std::to_string(kThreads * calls + 4);
    EXPECT_THAT(end.output, HasSubstr("filter: 0; " + all + " answered, 0 failed, " + all +
                                      " arguments; 0 wrong answers, 0 wrong arguments; nothing is "
                                      "kept"));
    return end.output;
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, AttachRefusedByTheSystem, ::testing::Values("shm", "unix"),
                         [](const auto& transport) { return std::string(transport.param); });

constexpr const char* kItCannot =
    "is not read, has read nothing, why: it cannot read this worker's memory: Operation not "
    "permitted\n";

TEST_P(AttachRefusedByTheSystem, FromTheBeginningEverythingTravels) {
  const std::string output = run("serve_without_reading", -1, repetitions(5));
  EXPECT_THAT(output, HasSubstr("\nserver after: does not read, is not read, has read nothing, "
                                "why: this worker cannot read its memory: Operation not "
                                "permitted\n"));
  EXPECT_THAT(output, HasSubstr(std::string("before: reads, ") + kItCannot));
  // Seen where nothing was asked for.
  EXPECT_THAT(output, HasSubstr("worker 'server': no tensors are read out of memory: it cannot "
                                "read this worker's memory: Operation not permitted"));
  // Nor does the server offer anything, since it has no way to tell a reader from others.
  EXPECT_THAT(output, HasSubstr(std::string("\nafter: reads, ") + kItCannot));
}

// FARSPAN_SEED: the moments of an earlier run.
TEST_P(AttachRefusedByTheSystem, InTheMiddleOfTrafficTheRestTravels) {
  SeededRandom random(seed_of_run("filters"));
  const int calls = repetitions(10);
  for (int round = 0; round < repetitions(5); ++round) {
    const auto forbid_after =
        1 + static_cast<int>(random.below(static_cast<size_t>(kThreads * calls / 2)));
    const std::string output = run("serve", forbid_after, calls);
    EXPECT_THAT(output, HasSubstr("before: reads, is read, "));
    EXPECT_THAT(output, HasSubstr("\nserver: reads, is read, has read, why: \n"));
    // Its answers are read as before.
    EXPECT_THAT(output, HasSubstr("\nafter: reads, is not read, has read, why: it cannot read "
                                  "this worker's memory: Operation not permitted\n"));
    EXPECT_THAT(output,
                HasSubstr("\nserver after: does not read, is read, has read, why: this worker "
                          "cannot read its memory any more: Operation not permitted\n"));
  }
}

}  // namespace

std::map<std::string, Role> attach_refused_roles() {
  return {{"serve", serve},
          {"serve_without_reading", serve_without_reading},
          {"call_and_tell", call_and_tell}};
}

}  // namespace farspan::testing

int main(int argc, char** argv) {
  return farspan::testing::run_tests(argc, argv, farspan::testing::attach_refused_roles());
}
