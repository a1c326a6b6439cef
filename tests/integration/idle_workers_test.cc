// The rule under test: a worker with nothing to do takes no processor's time (c10d/net/README.md,
// "Polling"), though it has just been busy and is connected to all others.
#include <farspan/rpc/init/init.h>
#include <farspan/rpc/rpc.h>

#include <gtest/gtest.h>

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

double used_ms() { return std::chrono::duration<double, std::milli>(processor_time()).count(); }

int be_idle() {
  const auto worker = init_rpc("w" + std::string(std::getenv("RANK")));
  for (int rank = 0; rank < kWorkers; ++rank) {
    for (int64_t call = 0; call < 500; ++call) rpc_sync(rank, one_more, call);
  }
  // Until all have made theirs, and leases, polling and threads of that time have come to their
  // end.
  std::this_thread::sleep_for(4s);
  const double before = used_ms();
  std::this_thread::sleep_for(5s);
  std::printf("%.2f ms of 5000\n", used_ms() - before);
  shutdown();
  return 0;
}

TEST(IdleWorkers, TakeLessThanAThousandthOfACore) {
  Launch launch;
  std::vector<Process*> workers;
  for (int rank = 0; rank < kWorkers; ++rank) {
    workers.push_back(&launch.start("be_idle", rank, kWorkers));
  }
  for (Process* worker : workers) {
    const Process::End end = worker->wait(60s);
    ASSERT_EQ(end.status, 0) << end.output;
    EXPECT_LT(std::atof(end.output.c_str()), 5.0) << end.output;
  }
}

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) {
  return farspan::testing::run_tests(argc, argv, {{"be_idle", farspan::testing::be_idle}});
}
