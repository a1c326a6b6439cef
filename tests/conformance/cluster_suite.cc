#include "conformance/cluster_suite.h"

#include <ATen/ATen.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <mutex>
#include <thread>
#include <utility>

#include "support/held.h"
#include "support/sanitizers.h"

namespace farspan::testing {
namespace {

struct Gate {
  std::mutex mutex;
  Promise<void> open;
  std::atomic<int> waiting{0};
};
Gate& gate() {
  static Gate gate;
  return gate;
}
Future<void> gate_opens() {
  std::lock_guard lock(gate().mutex);
  return gate().open.future();
}

// Of the suite's own, however little time a test gives its workers.
constexpr CallOptions kOwnCalls{.timeout = 60s};

// Whether this process runs tests, and holds all workers then.
bool holds_tests() { return ::testing::UnitTest::GetInstance()->current_test_info() != nullptr; }

}  // namespace

void close_gate() {
  std::lock_guard lock(gate().mutex);
  if (gate().open.future().ready()) gate().open = Promise<void>();
}
void open_gate() {
  Promise<void> open;
  {
    std::lock_guard lock(gate().mutex);
    open = gate().open;
  }
  open.set_value();
}
void pass_gate() {
  const Future<void> opens = gate_opens();
  ++gate().waiting;
  opens.wait_for(60s);
  --gate().waiting;
}
Future<int64_t> pass_gate_later(int64_t value) {
  ++gate().waiting;
  return gate_opens().then([value] {
    --gate().waiting;
    return value;
  });
}
int64_t waiting_at_gate() { return gate().waiting; }

void doze(int64_t ms) {
  const Promise<void> never;
  never.future().wait_for(Millis(ms));
}
void toil(int64_t ms) {
  const TimePoint end = Clock::now() + Millis(ms);
  while (Clock::now() < end) std::this_thread::yield();
}
void toil_at_gate() {
  const Future<void> opens = gate_opens();
  while (!opens.ready()) std::this_thread::yield();
}
int64_t add(int64_t a, int64_t b) { return a + b; }
double sum_of(const at::Tensor& x) { return x.sum().item<double>(); }
std::string whoami() { return current_worker().name(); }

int64_t thread_count() {
  if (holds_tests()) return current_worker().counters().threads;
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                       std::filesystem::directory_iterator());
}

namespace {
FARSPAN_REGISTER(close_gate, open_gate, pass_gate, pass_gate_later, waiting_at_gate, doze, toil,
                 toil_at_gate, add, sum_of, whoami, thread_count);
}  // namespace

ClusterSuite::Shared& ClusterSuite::shared() {
  static Shared shared;
  return shared;
}

void ClusterSuite::TearDownTestSuite() { shared().cluster.reset(); }

Cluster& ClusterSuite::start(const ClusterOptions& options) {
  if (cluster_) {
    ADD_FAILURE() << "start() comes first, and once";
    return *cluster_;
  }
  options_ = options;
  if (shared().cluster && shared().kind == GetParam().name && shared().options == options) {
    cluster_ = std::move(shared().cluster);
  } else {
    shared().cluster.reset();
    cluster_ = GetParam().make(options);
  }
  if (options.workers > 1) w0().rpc_sync("w1", kOwnCalls, close_gate);
  return *cluster_;
}

void ClusterSuite::TearDown() {
  open_gate();
  if (!cluster_) return;
  if (!spoiled_ && options_.workers > 1) {
    w0().rpc_sync("w1", kOwnCalls, open_gate);
    EXPECT_TRUE(eventually([&] { return w0().rpc_sync("w1", kOwnCalls, waiting_at_gate) == 0; }));
  }
  // Expect: whatever happened, nothing is left behind; in the World also of the dead, whose leases
  // end there in no time.
  eventually([&] { return held().empty(); }, GetParam().real ? 20s : 180s);
  for (const std::string& line : held()) ADD_FAILURE() << "still held: " << line;
  if (GetParam().costly && !spoiled_ && !HasFailure()) {
    shared() = {GetParam().name, options_, std::move(cluster_)};
  }
  cluster_.reset();
}

std::vector<std::string> ClusterSuite::held() {
  std::vector<std::string> all;
  for (int rank = 0; rank < options_.workers; ++rank) {
    if (!cluster_->serves(rank)) continue;
    for (std::string& line :
         rank == 0 ? held_by(w0()) : w0().rpc_sync(rank, kOwnCalls, held_here)) {
      all.push_back(std::move(line));
    }
  }
  return all;
}

bool ClusterSuite::eventually(const std::function<bool()>& condition, Clock::duration limit) {
  const TimePoint end = now() + limit;
  while (!condition()) {
    if (now() >= end) return false;
    doze(5);  // a wait: the World moves meanwhile
  }
  return true;
}

std::vector<ClusterKind> kinds_in_one_process() {
  if (kSanitized) return {in_one_process("shm"), in_one_process("tcp")};
  return {in_one_process("shm"), in_one_process("unix"), in_one_process("tcp"),
          on_hosts_in_one_process(), in_one_process("loopback")};
}
std::vector<ClusterKind> kinds_in_the_world() {
  const char* many = std::getenv("FARSPAN_SEEDS");
  std::vector<ClusterKind> kinds;
  for (int seed = 1; seed <= (many ? std::atoi(many) : repetitions(5)); ++seed) {
    kinds.push_back(in_the_world(static_cast<uint64_t>(seed)));
  }
  return kinds;
}
std::string name_of_kind(const ::testing::TestParamInfo<ClusterKind>& info) {
  return info.param.name;
}

}  // namespace farspan::testing
