// Workers with devices that are killed: nothing of theirs is left behind, on either side.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include <farspan/rpc/rpc.h>

#include "integration/device_workers.h"
#include "support/errors.h"
#include "support/eventually.h"
#include "support/sanitizers.h"
#include "support/seeded_random.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using at::Tensor;
using ::testing::AnyOf;

class LostDeviceWorkers : public DeviceWorkers {};

// Three threads, which call a worker until they notice that it is lost.
class Callers {
 public:
  Callers(Worker& w0, int rank) {
    for (int thread = 0; thread < kThreads; ++thread) {
      threads_.emplace_back([this, &w0, rank, thread] {
        const Tensor x = numbers(thread, 50'000).to(accelerator_of(thread % 2));
        try {
          for (;; ++calls_) w0.rpc_sync(rank, copied, x);
        } catch (const Error& error) {
          // The answer may have come, and its memory be gone.
          EXPECT_THAT(error.code(), AnyOf(Code::kDisconnected, Code::kUnavailable)) << error.what();
        }
      });
    }
  }
  ~Callers() { join(); }
  Callers(const Callers&) = delete;
  Callers& operator=(const Callers&) = delete;

  static constexpr int kThreads = 3;
  int calls() const { return calls_; }
  void join() {
    for (auto& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::atomic<int> calls_{0};
  std::vector<std::thread> threads_;
};

// Whichever of the two has memory of the other's open, or lends it its own.
TEST_P(LostDeviceWorkers, LeaveNothingBehindWhenTheyAreKilledAtAnyMoment) {
  SeededRandom random(seed_of_run("kills"));
  for (const int device : some_devices()) numbers(0).to(accelerator(device));  // real ones begin
  for (int round = 0; round < repetitions(10); ++round) {
    if (round > 0) start_processes();
    Callers callers(w0(), 1);
    std::this_thread::sleep_for(random.up_to(60ms));
    lose_w1();
    const TimePoint lost = Clock::now();
    callers.join();
    EXPECT_TRUE(eventually([&] {
      settle_accelerator();
      const AcceleratorUse use = accelerator_use();
      return use.opened + use.bytes == 0;
    })) << ::testing::PrintToString(accelerator_use());
    EXPECT_LT(Clock::now() - lost, 2s * (kAddressSanitizer ? 5 : 1));
    EXPECT_THAT(accelerator_use().faults, ::testing::IsEmpty());
  }
}

TEST_P(LostDeviceWorkers, LeaveTheirEventsToTheNextCallsOfWhoIsLeft) {
  start_processes({.workers = 4});
  auto& room = dynamic_cast<DeviceRoom&>(*w0().device_carrier());
  for (const int rank : {1, 2, 3}) {
    Callers callers(w0(), rank);
    EXPECT_TRUE(eventually([&] { return callers.calls() > 50; }, 30s));
    lose(rank);
    callers.join();
    EXPECT_TRUE(eventually([&] {
      settle_accelerator();
      return room.exports().kept() == 0 && accelerator_use().events == room.exports().events();
    })) << accelerator_use().events
        << " events, " << room.exports().kept() << " exports";
    EXPECT_LE(room.exports().events(), size_t{Callers::kThreads}) << "one for each that lends";
  }
}

INSTANTIATE_TEST_SUITE_P(EachWay, LostDeviceWorkers, ::testing::Values(kByName), name_of_way);

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) { return farspan::testing::run_device_tests(argc, argv); }
