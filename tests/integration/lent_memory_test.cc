// The rules under test: memory that others may be reading stays as it is until they have read it or
// are dead, however a call ends and whoever stands still meanwhile (rpc/wire/WIRE.md, "Offers"),
// and nothing that was shared with a worker outlives it. FARSPAN_SEED: the moments of the kills of
// an earlier run.
#include <farspan/c10d/base/future.h>
#include <farspan/rpc/init/init.h>
#include <farspan/rpc/rpc.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "integration/exchanged_tensors.h"
#include "rpc/init/launch.h"
#include "support/eventually.h"
#include "support/named_memory.h"
#include "support/process_counts.h"
#include "support/process_use.h"
#include "support/sanitizers.h"
#include "support/seeded_random.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using at::Tensor;
using ::testing::HasSubstr;

constexpr Millis kLong{60'000};

int64_t numel(const Tensor& x) { return x.numel(); }
Tensor make_large() { return at::ones({256 << 20}, at::kByte); }
// Keeps the last few, and looks at them again when they go: nobody else may have changed them.
std::deque<std::pair<Tensor, int64_t>> kept;
std::mutex kept_mutex;
Tensor exchange_shared(const Tensor& x, int64_t seed) {
  wrong += !at::equal(x, pattern(seed, x.numel()));
  ++checked;
  const std::lock_guard lock(kept_mutex);
  kept.emplace_back(x, seed);
  if (kept.size() > 3) {
    const auto& [oldest, its_seed] = kept.front();
    wrong += !at::equal(oldest, pattern(its_seed, oldest.numel()));
    kept.pop_front();
  }
  return shared_pattern(seed + 1, x.numel());
}
FARSPAN_REGISTER_AS("lent.peak_growth", peak_growth);
FARSPAN_REGISTER_AS("lent.exchange", exchange);
FARSPAN_REGISTER_AS("lent.exchange_shared", exchange_shared);
FARSPAN_REGISTER_AS("lent.findings", findings);
FARSPAN_REGISTER_AS("lent.numel", numel);
FARSPAN_REGISTER_AS("lent.make_large", make_large);

// The ways by which tensors go.
struct Way {
  const char* name;
  const char* transport;
  CrossMemoryAttach attach;
  bool between_hosts = false;  // at addresses of their own, so that large tensors go by lanes
};
const Way kWays[] = {{"shared_memory_attach", "shm", CrossMemoryAttach::kRequired},
                     {"shared_memory", "shm", CrossMemoryAttach::kForbidden},
                     {"unix_attach", "unix", CrossMemoryAttach::kRequired},
                     {"tcp", "tcp", CrossMemoryAttach::kAllowed},
                     {"lanes", "tcp", CrossMemoryAttach::kAllowed, true}};
int number(const char* variable) { return std::atoi(std::getenv(variable)); }

WorkerOptions options_of_variables() {
  const Way& way = kWays[number("TEST_WAY")];
  WorkerOptions options;
  options.transports = {way.transport};
  options.cross_memory_attach = way.attach;
  options.shutdown_timeout = Millis(400'000);  // the server waits in there, as long as all is tried
  // Who dials on this host has the address 127.0.0.1.
  if (way.between_hosts) options.bind_host = "127.0.0." + std::to_string(number("RANK") + 2);
  return options;
}

int serve() {
  const char* name = std::getenv("TEST_NAME");
  init_rpc(name ? name : "server", options_of_variables());
  shutdown();
  return 0;
}

// Serves until it is told that nobody will call any more, whatever lines end meanwhile.
Promise<void> may_leave;
void leave() { may_leave.set_value(); }
FARSPAN_REGISTER_AS("lent.leave", leave);
int serve_until_told() {
  init_rpc("server", options_of_variables());
  const bool was_told = may_leave.future().wait_for(Millis(300'000));
  shutdown();
  return was_told ? 0 : 1;
}

// The test has had all the stops that it wants.
std::atomic<bool> was_stopped_enough{false};
void say_ready() {
  std::signal(SIGUSR1, [](int) { was_stopped_enough = true; });
  std::printf("ready\n");
  std::fflush(stdout);
}
// So many calls must have timed out, as many have been cancelled, and four times as many been made,
// so that others are answered.
bool has_enough(int64_t calls, int timed_out, int cancelled) {
  const int events = number("TEST_EVENTS");
  return was_stopped_enough && timed_out >= events && cancelled >= events && calls >= 4 * events;
}

// Each second call is cancelled after a while, unless it has ended by then: its end comes at once.
template <class T>
void cancel_some(int64_t call, const Future<T>& answer, SeededRandom& random) {
  if (call % 2 == 0) return;
  answer.wait_for(Millis(static_cast<int64_t>(random.below(4))));
  if (answer.cancel() && !answer.ready()) throw std::logic_error("cancelled, and not ready");
}

// Calls with arguments that it changes as soon as a call has ended, with or without an answer.
int call_and_change() {
  const auto worker = init_rpc("caller", options_of_variables());
  rpc_sync("server", CallOptions{kLong}, exchange, pattern(0, 1), 0);
  say_ready();
  SeededRandom random(7);
  int answered = 0, timed_out = 0, cancelled = 0, wrong_answers = 0;
  for (int64_t call = 1; !has_enough(call - 1, timed_out, cancelled); ++call) {
    const auto count = static_cast<int64_t>(8'192 + random.below(512 << 10));
    Tensor x = pattern(call, count);
    const CallOptions options{Millis(1 + static_cast<int64_t>(random.below(20)))};
    const auto answer = rpc_async("server", options, exchange, x, call);
    cancel_some(call, answer, random);
    try {
      wrong_answers += !at::equal(answer.wait(), pattern(call + 1, count));
      ++answered;
    } catch (const Error& error) {
      if (error.code() != Code::kTimeout && error.code() != Code::kCancelled) throw;
      ++(error.code() == Code::kTimeout ? timed_out : cancelled);
    }
    x.fill_(-1);
  }
  std::printf("done\n");
  std::fflush(stdout);
  const auto found = rpc_sync("server", CallOptions{kLong}, findings);
  const bool by_lanes = worker->routes().at(0).bytes_by_lanes > 0;
  shutdown();
  std::printf(
      "%d answered, %d timed out, %d cancelled, %ld arguments; %d wrong answers, %ld wrong "
      "arguments; %s\n",
      answered, timed_out, cancelled, found[0] - 1, wrong_answers, found[1],
      by_lanes ? "by lanes" : "on one line");
  return 0;
}

// Gives tensors away, and fills the next ones as soon as they have come back.
int call_and_give() {
  const auto worker = init_rpc("caller", options_of_variables());
  rpc_sync("server", CallOptions{kLong}, exchange, pattern(0, 1), 0);
  say_ready();
  SeededRandom random(17);
  int answered = 0, timed_out = 0, cancelled = 0, wrong_answers = 0;
  std::deque<std::pair<Tensor, int64_t>> results;
  for (int64_t call = 1; !has_enough(call - 1, timed_out, cancelled); ++call) {
    const auto count = static_cast<int64_t>(8'192 + random.below(256 << 10));
    const CallOptions options{Millis(1 + static_cast<int64_t>(random.below(20)))};
    const auto answer =
        rpc_async("server", options, exchange_shared, shared_pattern(call, count), call);
    cancel_some(call, answer, random);
    try {
      results.emplace_back(answer.wait(), call + 1);
      ++answered;
    } catch (const Error& error) {
      if (error.code() != Code::kTimeout && error.code() != Code::kCancelled) throw;
      ++(error.code() == Code::kTimeout ? timed_out : cancelled);
    }
    if (results.size() > 3) {
      const auto& [oldest, seed] = results.front();
      wrong_answers += !at::equal(oldest, pattern(seed, oldest.numel()));
      results.pop_front();
    }
  }
  std::printf("done\n");
  std::fflush(stdout);
  const auto found = rpc_sync("server", CallOptions{kLong}, findings);
  const uint64_t handed_over = worker->routes().at(0).bytes_handed_over;
  // The server keeps three, and may have more of calls that nobody waited for.
  const Deadline deadline = Deadline::after(10s);
  const auto away = [&] { return worker->counters().handed_over_memory; };
  while (away() > 4 * (264 << 13) && !deadline.expired()) std::this_thread::sleep_for(10ms);
  const bool all_back = !deadline.expired();
  shutdown();
  std::printf(
      "%d answered, %d timed out, %d cancelled, %ld arguments; %d wrong answers, %ld wrong "
      "arguments; "
      "%s; %s\n",
      answered, timed_out, cancelled, found[0] - 1, wrong_answers, found[1],
      handed_over > 0 ? "handed over" : "copied", all_back ? "all came back" : "leaked");
  return 0;
}

// Sends a large tensor, has one sent back, and says what each has taken of both ends' memory.
int send_large() {
  init_rpc("caller", options_of_variables());
  rpc_sync("server", CallOptions{kLong}, exchange, pattern(0, 1), 0);
  const Tensor x = make_large();
  peak_growth();
  rpc_sync("server", peak_growth);
  rpc_sync("server", CallOptions{kLong}, numel, x);
  const int64_t there = rpc_sync("server", peak_growth), here = peak_growth();
  const Tensor y = rpc_sync("server", CallOptions{kLong}, make_large);
  const int64_t made = rpc_sync("server", peak_growth), come = peak_growth();
  shutdown();
  std::printf("grown by %ld MiB here, %ld there; by a result %ld there, %ld here\n", here, there,
              made, come);
  const auto is_one = [](int64_t mib) { return mib >= 256 && mib < 320; };
  return is_one(there) && here < 64 && y.numel() == 256 << 20 && is_one(made) && is_one(come) ? 0
                                                                                              : 1;
}

// Calls without a timeout, on a line that is given up soon; arguments change as soon as a call has
// ended so. Says when the server is lost, and when it answers again. From several threads: where
// one call's argument is being read, another's is being checked.
int call_and_give_up() {
  constexpr int kThreads = 3;
  WorkerOptions options = options_of_variables();
  options.silence_timeout = Millis(number("TEST_SILENCE_MS"));
  const auto worker = init_rpc("caller", options);
  rpc_sync("server", CallOptions{kLong}, exchange, pattern(0, 1), 0);
  std::atomic<int> answered{0}, given_up{0}, wrong_answers{0}, failed{0};
  std::atomic<bool> is_lost{false};
  say_ready();
  const auto say = [](const char* what) {
    std::printf("%s\n", what);
    std::fflush(stdout);
  };
  const auto make_calls = [&](int thread) {
    SeededRandom random(static_cast<uint64_t>(thread) + 31);
    for (int64_t call = int64_t{1'000'000'000} * (thread + 1); !was_stopped_enough;
         call += 3'000'000) {
      const auto count = static_cast<int64_t>(8'192 + random.below(1 << 20));
      Tensor x = pattern(call, count);
      try {
        const Tensor answer =
            worker->rpc_sync("server", CallOptions{kNoTimeout}, exchange, x, call);
        wrong_answers += !at::equal(answer, pattern(call + 1, count));
        ++answered;
        if (is_lost.exchange(false)) say("again");
      } catch (const Error& error) {
        x.fill_(-1);  // at once
        const std::set<Code> of_a_loss{Code::kDisconnected, Code::kUnavailable, Code::kTimeout};
        if (of_a_loss.count(error.code()) == 0) throw;
        ++given_up;
        if (!is_lost.exchange(true)) say("lost");
      }
      x.fill_(-1);
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      try {
        make_calls(thread);
      } catch (const std::exception& why) {
        ++failed;
        say(why.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto found = rpc_sync("server", CallOptions{kLong}, findings);
  rpc_sync("server", CallOptions{kLong}, leave);
  shutdown();
  std::printf(
      "%d answered, %d given up, %ld arguments; %d wrong answers, %ld wrong arguments, %d "
      "threads failed\n",
      answered.load(), given_up.load(), found[0] - 1, wrong_answers.load(), found[1],
      failed.load());
  return 0;
}

int count_of(const std::string& text, const Process& process) {
  const std::string output = process.output();
  int count = 0;
  for (size_t at = 0; (at = output.find(text, at)) != std::string::npos; at += text.size()) {
    ++count;
  }
  return count;
}

// The one that has this text; empty: none has.
std::string line_with(const std::string& text, const std::string& output) {
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(text) != std::string::npos) return line;
  }
  return "";
}

class LentMemory : public ::testing::TestWithParam<int> {
 protected:
  Process& start(const std::string& role, int rank, int world_size, int events = 0) {
    return launch_.start(
        role, rank, world_size,
        {{"TEST_WAY", std::to_string(GetParam())}, {"TEST_EVENTS", std::to_string(events)}});
  }
  // Runs that role as the caller, and stops one or the other now and again, until the server, who
  // reads, has been stopped so often, and as many calls have timed out, and been cancelled.
  std::string run_with_stops(const std::string& role, int events);
  Launch launch_;
};
INSTANTIATE_TEST_SUITE_P(Ways, LentMemory, ::testing::Range(0, 5),
                         [](const auto& way) { return std::string(kWays[way.param].name); });

std::string LentMemory::run_with_stops(const std::string& role, int events) {
  Process& server = start("serve", 0, 2);
  Process& caller = start(role, 1, 2, events);
  EXPECT_TRUE(eventually([&] { return caller.has_written("ready") || !caller.running(); }, 60s));
  SeededRandom random(11);
  int stops = 0, reader_stops = 0;
  const Deadline limit = Deadline::after(300s);  // then it fails, for the caller does not end
  while (caller.running() && !caller.has_written("done") && !limit.expired()) {
    Process& stopped = random.chance(0.7) ? server : caller;
    stopped.signal(SIGSTOP);
    std::this_thread::sleep_for(random.up_to(12ms));
    stopped.signal(SIGCONT);
    std::this_thread::sleep_for(random.up_to(12ms));
    ++stops;
    if (&stopped == &server && ++reader_stops == events) caller.signal(SIGUSR1);
  }
  const Process::End end = caller.wait(60s);
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_EQ(server.wait(60s).status, 0);
  const std::string found = line_with(" answered, ", end.output);
  EXPECT_THAT(found, HasSubstr("; 0 wrong answers, 0 wrong arguments"));
  // Expect: calls have ended in each way.
  int answered = 0, timed_out = 0, cancelled = 0;
  EXPECT_EQ(std::sscanf(found.c_str(), "%d answered, %d timed out, %d cancelled", &answered,
                        &timed_out, &cancelled),
            3);
  EXPECT_GT(answered, 0);
  EXPECT_GE(timed_out, events);
  EXPECT_GE(cancelled, events);
  EXPECT_GE(reader_stops, events);
  RecordProperty("ended", found);
  std::printf("%s: %d stops, %d of the reader; %s\n", kWays[GetParam()].name, stops, reader_stops,
              found.c_str());
  return found;
}

// How many stops, calls that time out, and calls that are cancelled. A thousand of each take a
// minute, and more where sanitizers make it slow.
constexpr int kFew = 80, kSome = kSanitized ? kFew : 250, kMany = kSanitized ? kFew : 500,
              kThousand = kSanitized ? kFew : 1'000;

// FARSPAN_EVENTS: so many for each way.
int events_or(int usual) {
  const char* const wanted = std::getenv("FARSPAN_EVENTS");
  return wanted ? std::atoi(wanted) : usual;
}

TEST_P(LentMemory, StaysUntilItIsReadWhoeverStandsStill) {
  const std::string found =
      run_with_stops("call_and_change", events_or(GetParam() == 0 ? kThousand : kFew));
  EXPECT_THAT(found, HasSubstr(kWays[GetParam()].between_hosts ? "; by lanes" : "; on one line"));
}

// The caller gives up a reader that stands still, and overwrites at once what that one may be in
// the middle of reading: it goes on in a line that has ended, and must not run anything with that.
TEST_P(LentMemory, IsNotReadByWhoWasGivenUpForHisSilence) {
  const bool is_read = kWays[GetParam()].attach == CrossMemoryAttach::kRequired;
  const int usual = repetitions(is_read ? 100 : 20), stops = events_or(usual);
  Process& server = start("serve_until_told", 0, 2);
  Process& caller = launch_.start(
      "call_and_give_up", 1, 2,
      {{"TEST_WAY", std::to_string(GetParam())}, {"TEST_SILENCE_MS", kSanitized ? "100" : "50"}});
  ASSERT_TRUE(eventually([&] { return caller.has_written("ready\n"); }, 60s)) << caller.output();
  SeededRandom random(23);
  // Of the usual ones as many as a busy machine manages.
  const Deadline enough = stops == usual ? Deadline::after(30s) : Deadline::never();
  int stopped = 0;
  bool goes_on = true;
  for (; goes_on && stopped < stops && !enough.expired(); ++stopped) {
    // Any moment of a call.
    std::this_thread::sleep_for(random.up_to(20ms));
    server.signal(SIGSTOP);
    // Now, or already: a server that gets no processor for so long is given up, too.
    const auto is_lost = [&] { return count_of("lost\n", caller) > count_of("again\n", caller); };
    goes_on = eventually(is_lost, 20s);
    EXPECT_TRUE(goes_on) << "not given up; it wrote:\n" << caller.output();
    // Some of them when the caller has dialled anew, and waits for that.
    std::this_thread::sleep_for(random.up_to(50ms));
    server.signal(SIGCONT);
    goes_on = eventually([&] { return !is_lost(); }, 20s) && goes_on;
    EXPECT_TRUE(goes_on) << "no answers any more; it wrote:\n" << caller.output();
  }
  EXPECT_GE(stopped, stops == usual ? std::min(stops, 10) : stops) << "in 30 s";
  caller.signal(SIGUSR1);
  const Process::End end = caller.wait(60s);
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_EQ(server.wait(60s).status, 0);
  const std::string found = line_with(" answered, ", end.output);
  EXPECT_THAT(found, HasSubstr("; 0 wrong answers, 0 wrong arguments, 0 threads failed"));
  int answered = 0, given_up = 0;
  EXPECT_EQ(std::sscanf(found.c_str(), "%d answered, %d given up", &answered, &given_up), 2);
  EXPECT_GE(answered, stopped);
  EXPECT_GE(given_up, stopped);
  RecordProperty("ended", found);
  std::printf("%s: %d stops; %s\n", kWays[GetParam()].name, stopped, found.c_str());
}

TEST_P(LentMemory, IsOneWorkersAtATimeWhereItIsGivenAway) {
  const bool is_handed_over = kWays[GetParam()].attach == CrossMemoryAttach::kRequired;
  const int events = events_or(GetParam() == 0 ? kMany : is_handed_over ? kSome : kFew);
  const std::string found = run_with_stops("call_and_give", events);
  EXPECT_THAT(found, HasSubstr(is_handed_over ? "; handed over" : "; copied"));
  EXPECT_THAT(found, HasSubstr("; all came back"));
}

TEST_P(LentMemory, IsTheOnlyCopyOfATensorAtItsSender) {
  Process& server = start("serve", 0, 2);
  const Process::End end = start("send_large", 1, 2).wait(60s);
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_THAT(end.output, HasSubstr("grown by "));
  EXPECT_EQ(server.wait(60s).status, 0);
}

// Memory of empty_shared() that this process keeps for new tensors: each has a descriptor and a
// mapping, where what others have given has the latter alone.
int own_blocks() {
  int blocks = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry, gone).string();
    blocks += target.starts_with("/memfd:farspan-block");
  }
  return blocks;
}

// Exchanges with all others until they are gone, and says what is left of them. With every other
// one it exchanges memory that both give away.
int outlive() {
  const auto worker = init_rpc("survivor", options_of_variables());
  const int before = ProcessCounts::now().descriptors;
  const int others = worker->world_size() - 1;
  std::atomic<int> gone{0};
  std::vector<std::thread> threads;
  for (int rank = 1; rank <= others; ++rank) {
    threads.emplace_back([&, rank] {
      for (int64_t call = 0;; ++call) {
        try {
          const int64_t count = 1 << (10 + call % 10);
          const Tensor answer =
              rank % 2 == 0
                  ? worker->rpc_sync(rank, exchange, pattern(call, count), call)
                  : worker->rpc_sync(rank, exchange_shared, shared_pattern(call, count), call);
          wrong += !at::equal(answer, pattern(call + 1, count));
          if (call == 20) std::printf("busy\n"), std::fflush(stdout);
        } catch (const Error&) {
          break;
        }
      }
      ++gone;
    });
  }
  for (std::thread& thread : threads) thread.join();
  // Soon after the last one's end.
  int memories = 0, descriptors = 0;
  agent::MessengerCounters counters;
  eventually([&] {
    const ProcessCounts now = ProcessCounts::now();
    const int own = own_blocks();
    memories = now.memories - own;
    descriptors = now.descriptors - own - before;
    counters = worker->counters();
    return memories <= 0 && descriptors <= 0 && counters.connections == 0 &&
           counters.offered_memory + counters.shared_memory + counters.handed_over_memory == 0;
  });
  std::printf(
      "%d gone; %d memories of others, %d descriptors too many, %d connections, %lu bytes offered, "
      "%lu lent, %lu in use, %ld wrong\n",
      gone.load(), std::max(memories, 0), std::max(descriptors, 0), counters.connections,
      counters.offered_memory, counters.handed_over_memory, counters.shared_memory, wrong.load());
  worker->shutdown(/*graceful=*/false);
  return 0;
}

std::string maps_of(const Process& process) {
  std::ifstream maps("/proc/" + std::to_string(process.pid()) + "/maps");
  return std::string(std::istreambuf_iterator<char>(maps), std::istreambuf_iterator<char>());
}

TEST_P(LentMemory, IsGoneWithAWorkerThatIsKilled) {
  constexpr int kOthers = 5;
  SeededRandom random(seed_of_run("kills"));
  const std::set<std::string> named_before = named_memory();
  Process& survivor = start("outlive", 0, kOthers + 1);
  std::vector<Process*> others;
  for (int rank = 1; rank <= kOthers; ++rank) {
    others.push_back(&launch_.start("serve", rank, kOthers + 1,
                                    {{"TEST_WAY", std::to_string(GetParam())},
                                     {"TEST_NAME", "server" + std::to_string(rank)}}));
  }
  ASSERT_TRUE(
      eventually([&] { return survivor.has_written("busy\nbusy\nbusy\nbusy\nbusy\n"); }, 60s))
      << survivor.output();
  for (Process* other : others) {
    std::this_thread::sleep_for(random.up_to(50ms));
    const std::string maps = maps_of(*other);
    other->signal(SIGKILL);
    EXPECT_THAT(maps, HasSubstr(" /"));
    EXPECT_THAT(maps, ::testing::Not(HasSubstr("/dev/shm/")));
    EXPECT_THAT(maps, ::testing::Not(HasSubstr("/SYSV")));
  }
  const Process::End end = survivor.wait(60s);
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_THAT(end.output,
              HasSubstr("5 gone; 0 memories of others, 0 descriptors too many, 0 connections, 0 "
                        "bytes offered, 0 lent, 0 in use, 0 wrong"));
  EXPECT_EQ(named_memory(), named_before);
}

}  // namespace

std::map<std::string, Role> lent_memory_roles() {
  return {{"serve", serve},
          {"serve_until_told", serve_until_told},
          {"call_and_change", call_and_change},
          {"call_and_give", call_and_give},
          {"call_and_give_up", call_and_give_up},
          {"outlive", outlive},
          {"send_large", send_large}};
}

}  // namespace farspan::testing

int main(int argc, char** argv) {
  return farspan::testing::run_tests(argc, argv, farspan::testing::lent_memory_roles());
}
