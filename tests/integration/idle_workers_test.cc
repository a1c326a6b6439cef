// The rule under test: a worker with nothing to do takes no processor's time (c10d/net/README.md,
// "Polling"), though it has just been busy, is connected to all others, and has references to
// values of theirs, and a context of theirs.
#include <farspan/autograd/context.h>
#include <farspan/rpc/init/init.h>
#include <farspan/rpc/rpc.h>
#include <farspan/rref/remote.h>
#include <farspan/rref/rref.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <ctime>
#include <thread>

#include "rpc/init/launch.h"
#include "support/process_use.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;

constexpr int kWorkers = 4;

int64_t one_more(int64_t x) { return x + 1; }
FARSPAN_REGISTER_AS("idle.one_more", one_more);

at::Tensor same(const at::Tensor& x) { return x; }
FARSPAN_REGISTER_AS("idle.same", same);

// On rank 0: is over when all workers have come.
Future<void> all_have_come() {
  static const Promise<void> all;
  static std::atomic<int> count{0};
  if (++count == kWorkers) all.set_value();
  return all.future();
}
FARSPAN_REGISTER_AS("idle.all_have_come", all_have_come);

double used_ms() { return std::chrono::duration<double, std::milli>(processor_time()).count(); }

int be_idle() {
  WorkerOptions options;
  options.transports = {std::getenv("TEST_TRANSPORT")};
  const auto worker = init_rpc("w" + std::string(std::getenv("RANK")), options);
  for (int rank = 0; rank < kWorkers; ++rank) {
    for (int64_t call = 0; call < 500; ++call) rpc_sync(rank, one_more, call);
    // Leaves memory that is kept for a while, here and there.
    rpc_sync(rank, same, at::ones({8 << 20}, at::kByte));
    rpc_sync(rank, same, empty_shared({8 << 20}, at::kByte).fill_(1));
  }
  {
    std::vector<RRef<int64_t>> held;
    for (int rank = 0; rank < kWorkers; ++rank) {
      held.push_back(remote(rank, one_more, int64_t{rank}));
      held.back().to_here();
    }
    const dist_autograd::Context context;
    const auto recorded = rpc_sync(0, same, at::ones({8}).requires_grad_());
    rpc_sync(0, all_have_come);
    // Until leases, polling and threads of that time have come to their end. Memory that is kept
    // goes back meanwhile.
    std::this_thread::sleep_for(4s);
    const double before = used_ms();
    std::this_thread::sleep_for(8s);
    std::printf("used %.2f ms of 8000\n", used_ms() - before);
  }
  shutdown();
  return 0;
}

class IdleWorkers : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Over, IdleWorkers, ::testing::Values("shm", "tcp"),
                         [](const auto& over) { return std::string(over.param); });

TEST_P(IdleWorkers, TakeLessThanAThousandthOfACore) {
  Launch launch;
  std::vector<Process*> workers;
  for (int rank = 0; rank < kWorkers; ++rank) {
    workers.push_back(&launch.start("be_idle", rank, kWorkers, {{"TEST_TRANSPORT", GetParam()}}));
  }
  for (Process* worker : workers) {
    const Process::End end = worker->wait(120s);
    ASSERT_EQ(end.status, 0) << end.output;
    double used_ms = -1;
    const size_t at = end.output.find("used ");  // whatever was logged before
    ASSERT_NE(at, std::string::npos) << end.output;
    ASSERT_EQ(std::sscanf(end.output.c_str() + at, "used %lf ms", &used_ms), 1) << end.output;
    EXPECT_LT(used_ms, 8.0) << end.output;
  }
}

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) {
  return farspan::testing::run_tests(argc, argv, {{"be_idle", farspan::testing::be_idle}});
}
