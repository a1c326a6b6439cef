// The rule under test: a worker that is killed, at whatever moment of its coming or going, leaves
// nothing to the others: no memory, no descriptors, nothing that has a name. They go on without it,
// or end in time with an error that says who is missing. FARSPAN_SEED: the moments of an earlier
// run.
#include <farspan/rpc/init/init.h>
#include <farspan/rpc/rpc.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <farspan/c10d/store/hash_store.h>

#include "rpc/init/launch.h"
#include "support/eventually.h"
#include "support/named_memory.h"
#include "support/sanitizers.h"
#include "support/seeded_random.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using at::Tensor;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr int kWorkers = 3;
constexpr int64_t kNumbers = 1 << 20;  // 8 MiB
// What no call takes: it fails before, or the test does.
constexpr Millis kLong{30'000};
// For all to join. Those that wait for one that is dead take as long.
constexpr Millis kJoining{kSanitized ? 15'000 : 3'000};

std::atomic<int64_t> wrong{0};
Tensor pattern(int64_t seed, int64_t count) { return at::arange(seed, seed + count, at::kLong); }
Tensor shared_pattern(Worker& worker, int64_t seed, int64_t count) {
  Tensor tensor = empty_shared(worker, {count}, at::kLong);
  at::arange_out(tensor, seed, seed + count, 1);
  return tensor;
}
Tensor exchange(const Tensor& x, int64_t seed) {
  wrong += !at::equal(x, pattern(seed, x.numel()));
  return pattern(seed + 1, x.numel());
}
Tensor exchange_shared(const Tensor& x, int64_t seed) {
  wrong += !at::equal(x, pattern(seed, x.numel()));
  return shared_pattern(current_worker(), seed + 1, x.numel());
}
void sleep_for(int64_t ms) { std::this_thread::sleep_for(Millis(ms)); }
FARSPAN_REGISTER_AS("killed.exchange", exchange);
FARSPAN_REGISTER_AS("killed.exchange_shared", exchange_shared);
FARSPAN_REGISTER_AS("killed.sleep_for", sleep_for);

void say(const std::string& what) {
  std::printf("%s\n", what.c_str());
  std::fflush(stdout);
}
int number(const char* variable) { return std::atoi(std::getenv(variable)); }
std::string name_of(int rank) { return "w" + std::to_string(rank); }

// What this process has open, and what it has mapped that others may map, too.
std::multiset<std::string> holdings() {
  std::multiset<std::string> all;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    std::string target = std::filesystem::read_symlink(entry, gone).string();
    if (gone || target.starts_with("/proc/")) continue;  // that of the look itself
    if (target.starts_with("socket:") || target.starts_with("pipe:")) {
      target.resize(target.find(':'));  // without its number
    }
    all.insert(target);
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    for (const char* const shared : {"/memfd:", "/SYSV", "/dev/shm/"}) {
      const size_t at = line.find(shared);
      if (at != std::string::npos) all.insert("mapped " + line.substr(at));
    }
  }
  return all;
}

// As a worker of a job of its own, this process opens what it keeps; and this thread sleeps for an
// answer, for which it keeps something, too.
std::multiset<std::string> holdings_of_idle_process() {
  WorkerOptions options;
  options.rank = 0;
  options.world_size = 1;
  options.store = std::make_shared<dist::HashStore>();
  init_rpc("alone", options);
  rpc_sync("alone", sleep_for, 20);  // longer than this thread polls
  shutdown();
  return holdings();
}

// What there is beside that, soon.
std::string left_beside(const std::multiset<std::string>& before) {
  std::vector<std::string> left;
  eventually([&] {
    const auto now = holdings();
    left.clear();
    std::set_difference(now.begin(), now.end(), before.begin(), before.end(),
                        std::back_inserter(left));
    return left.empty();
  });
  std::string text;
  for (const std::string& one : left) text += (text.empty() ? "" : ", ") + one;
  return left.empty() ? "nothing" : text;
}

WorkerOptions options_of_variables() {
  WorkerOptions options;
  options.transports = {std::getenv("TEST_TRANSPORT")};
  options.init_timeout = Millis(number("TEST_JOINING_MS"));
  options.connect_timeout = 5s;
  options.shutdown_timeout = kLong;
  return options;
}

// Null: not all have come, as is said.
std::shared_ptr<Worker> join() {
  say("joining");
  try {
    auto worker = init_rpc(name_of(number("RANK")), options_of_variables());
    say("joined");
    return worker;
  } catch (const Error& error) {
    say(std::string("not joined: ") + error.what());
    return nullptr;
  }
}

// Two, the first a large one: in the one the memory of the arguments is read, in the other it
// changes hands.
//   throws  Error: the other one is lost
void call_twice(Worker& worker, int rank, int64_t seed) {
  const CallOptions options{kLong};
  const Tensor read = worker.rpc_sync(rank, options, exchange, pattern(seed, kNumbers), seed);
  const Tensor given = worker.rpc_sync(rank, options, exchange_shared,
                                       shared_pattern(worker, seed, kNumbers / 8), seed);
  wrong += !at::equal(read, pattern(seed + 1, kNumbers)) ||
           !at::equal(given, pattern(seed + 1, kNumbers / 8));
}
// False: it is lost, as is said.
bool is_answered(Worker& worker, int rank, int64_t seed) {
  try {
    call_twice(worker, rank, seed);
    return true;
  } catch (const Error& error) {
    say("lost: " + std::string(error.what()));
    return false;
  }
}

// Leaves with the others, and says what is left of them all.
void leave(std::shared_ptr<Worker> worker, const std::multiset<std::string>& before) {
  if (worker) {
    try {
      shutdown();
      say("left");
    } catch (const Error& error) {
      say(std::string("not left: ") + error.what());
    }
  }
  worker.reset();
  say("left over: " + left_beside(before));
  say(std::to_string(wrong.load()) + " wrong");
}

int call_until_killed() {
  const auto worker = join();
  const Deadline deadline = Deadline::after(2 * kLong);
  for (int64_t call = 0; worker && !deadline.expired(); ++call) {
    for (int rank = 0; rank < number("RANK"); ++rank) is_answered(*worker, rank, call);
  }
  return 1;
}

// Calls the one that is to be killed until it is lost, then the other one, and leaves.
int outlive_the_last() {
  constexpr int kLast = kWorkers - 1;
  const auto before = holdings_of_idle_process();
  auto worker = join();
  if (worker) {
    const Deadline deadline = Deadline::after(kLong);
    int64_t call = 0;
    while (!deadline.expired() && is_answered(*worker, kLast, call)) ++call;
    say(is_answered(*worker, 1 - number("RANK"), 1000) ? "answered by the other"
                                                       : "not answered by the other");
    // Soon after: a line at most, to that other one.
    agent::MessengerCounters counters;
    const bool is_rid_of_it = eventually([&] {
      counters = worker->counters();
      return counters.connections <= 1 && counters.in_flight == 0 && counters.offered_memory == 0 &&
             counters.handed_over_memory == 0 && counters.shared_memory == 0 &&
             counters.mapped_memory == 0;
    });
    std::printf(
        "%s: %d connections, %ld calls, %lu bytes offered, %lu lent, %lu in use, %lu of "
        "others\n",
        is_rid_of_it ? "rid of it" : "not rid of it", counters.connections, counters.in_flight,
        counters.offered_memory, counters.handed_over_memory, counters.shared_memory,
        counters.mapped_memory);
  }
  leave(std::move(worker), before);
  return 0;
}

// Calls all others, and leaves at its own moment.
int call_and_leave() {
  const auto before = holdings_of_idle_process();
  auto worker = join();
  for (int rank = 0; worker && rank < kWorkers; ++rank) {
    if (rank != number("RANK")) is_answered(*worker, rank, rank);
  }
  // The three come to the end in any order, so that who is killed is in any step of it.
  std::this_thread::sleep_for(Millis(number("TEST_PAUSE_MS")));
  say("leaving");
  leave(std::move(worker), before);
  return 0;
}

class KilledWorkers : public ::testing::Test {
 protected:
  // A job of which a worker is killed.
  struct Job {
    Process& start(const std::string& role, int rank, const Process::Environment& more = {}) {
      Process::Environment all = {{"TEST_TRANSPORT", transport},
                                  {"TEST_JOINING_MS", std::to_string(joining.count())}};
      all.insert(more.begin(), more.end());
      Process& process = launch.start(role, rank, kWorkers, all);
      pids.insert(process.pid());
      return process;
    }
    const std::string transport;
    const Millis joining;
    const std::set<std::string> named_before = named_memory();
    Launch launch = {};
    std::set<pid_t> pids = {};
  };
  // Waits for the end of one that lives on: it has nothing left, and nothing wrong.
  static std::string end_of(Process& survivor) {
    const Process::End end = survivor.wait(3 * kLong);
    EXPECT_EQ(end.status, 0) << end.output;
    EXPECT_THAT(end.output, HasSubstr("\nleft over: nothing\n"));
    EXPECT_THAT(end.output, HasSubstr("\n0 wrong\n"));
    return end.output;
  }
  static void expect_nothing_named(const Job& job) {
    EXPECT_EQ(named_memory(job.pids), job.named_before);
  }

  SeededRandom random_{seed_of_run("kills")};
  static constexpr int kRounds = repetitions(25);  // of each test
};

bool has(const std::string& output, const std::string& text) {
  return output.find(text) != std::string::npos;
}

TEST_F(KilledWorkers, LeaveNothingToThoseWhomTheyWereJoining) {
  int came = 0;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Job job{round % 2 == 0 ? "shm" : "unix", kJoining};
    std::vector<Process*> survivors;
    for (const int rank : {0, 1}) survivors.push_back(&job.start("outlive_the_last", rank));
    for (Process* survivor : survivors) {
      ASSERT_TRUE(eventually([&] { return survivor->has_written("joining\n"); }, 60s))
          << survivor->output();
    }
    Process& killed = job.start("call_until_killed", 2);
    // Half of them before LibTorch is loaded, as a rule; the others when they dial and call.
    if (round / 2 % 2 == 1) {
      ASSERT_TRUE(eventually([&] { return killed.has_written("joining\n"); }, 60s))
          << killed.output();
    }
    std::this_thread::sleep_for(random_.up_to(300ms));  // any moment of that
    killed.signal(SIGKILL);
    EXPECT_EQ(killed.wait(60s).status, 128 + SIGKILL);
    const std::string first = end_of(*survivors[0]), second = end_of(*survivors[1]);
    const bool has_joined_first = has(first, "\njoined\n"), both = has(second, "\njoined\n");
    if (has_joined_first && both) {
      ++came;
      for (const std::string& output : {first, second}) {
        EXPECT_THAT(output, ContainsRegex("\nlost: [^\n]*'w2'"));
        EXPECT_THAT(output, HasSubstr("\nanswered by the other\n"));
        EXPECT_THAT(output, HasSubstr("\nrid of it: "));
        EXPECT_THAT(output, HasSubstr("\nleft\n"));
      }
    } else {
      // Rank 0 says who is missing, or both name a key of his that nobody has set. Were one of them
      // on time and the other not, it is the latter that the one has missed.
      if (!has_joined_first) {
        EXPECT_THAT(first, ContainsRegex("\nnot joined: [^\n]*(rank 2 |ranks [^\n]*2|/2')"));
      }
      if (!both) {
        EXPECT_THAT(second, ContainsRegex(
                                "\nnot joined: [^\n]*(rank 0's error|rank 0 did not answer|/2')"));
      }
    }
    expect_nothing_named(job);
    if (HasFailure()) break;  // the others would take as long to say the same
  }
  std::printf("%d of %d had joined\n", came, kRounds);
  if (!kSanitized) {
    EXPECT_GT(came, 0) << "no kill came late enough";
  }
}

TEST_F(KilledWorkers, LeaveNothingToThoseWithWhomTheyWereLeaving) {
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    Job job{round % 2 == 0 ? "shm" : "unix", kLong};
    // Who leads the shutdown is one of them.
    const int victim = round % kWorkers;
    std::vector<Process*> workers;
    for (int rank = 0; rank < kWorkers; ++rank) {
      workers.push_back(&job.start("call_and_leave", rank,
                                   {{"TEST_PAUSE_MS", std::to_string(random_.below(20))}}));
    }
    Process& killed = *workers[static_cast<size_t>(victim)];
    ASSERT_TRUE(
        eventually([&] { return killed.has_written("leaving\n") || !killed.running(); }, 60s))
        << killed.output();
    // While it waits for the others, or is through with it.
    std::this_thread::sleep_for(random_.up_to(30ms));
    killed.signal(SIGKILL);
    for (Process* survivor : workers) {
      if (survivor == &killed) continue;
      const std::string output = end_of(*survivor);
      if (has(output, "\nnot left: ")) {
        // Only who leads it holds up others, and they say so.
        EXPECT_EQ(victim, 0) << output;
        EXPECT_THAT(output, ContainsRegex("\nnot left: [^\n]*worker 0, which leads the shutdown"));
      } else {
        EXPECT_THAT(output, HasSubstr("\nleft\n"));
      }
    }
    killed.wait(60s);
    expect_nothing_named(job);
    if (HasFailure()) break;
  }
}

}  // namespace

std::map<std::string, Role> killed_workers_roles() {
  return {{"call_until_killed", call_until_killed},
          {"outlive_the_last", outlive_the_last},
          {"call_and_leave", call_and_leave}};
}

}  // namespace farspan::testing

int main(int argc, char** argv) {
  return farspan::testing::run_tests(argc, argv, farspan::testing::killed_workers_roles());
}
