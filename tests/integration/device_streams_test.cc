// On which streams calls work, that nobody waits for them on the host, and what a call leaves to
// the next one of its thread. The rules: rpc/device/README.md.
#include <ATen/ATen.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <farspan/c10d/streams/streams.h>
#include <farspan/rpc/rpc.h>

#include "integration/device_workers.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using at::Tensor;
using ::testing::IsEmpty;

bool is_on_the_default_stream(const Tensor& x) {
  const auto guard = accelerator_guard();
  return guard.getStream(x.device()) == guard.getDefaultStream(x.device());
}

std::mutex held_mutex;
Promise<void> held;  // what the last twice_held_up() of this process waits for

Tensor twice_held_up(const Tensor& x) {
  const Promise<void> go;
  hold_up_current_stream(x.device(), go.future());
  {
    const std::lock_guard lock(held_mutex);
    held = go;
  }
  return x + x;
}
void let_it_go_on() {
  Promise<void> go;
  {
    const std::lock_guard lock(held_mutex);
    go = held;
  }
  go.set_value();
}

// What the calling thread has current, and one that has done nothing has not; the device `own` may
// have a stream of its own.
std::vector<std::string> unusual_here(int own = -1) {
  const auto guard = accelerator_guard();
  std::vector<std::string> unusual;
  if (guard.getDevice() != accelerator(0)) unusual.push_back(guard.getDevice().str());
  for (int device = 0; device < accelerators(); ++device) {
    const at::Device one = accelerator(device);
    if (device == own || guard.getStream(one) == guard.getDefaultStream(one)) continue;
    unusual.push_back("a stream of " + one.str());
  }
  return unusual;
}

// As by one who does not think of who comes next in this thread.
void leave_others_current() {
  const auto guard = accelerator_guard();
  for (int device = 0; device < accelerators(); ++device) {
    const c10::Stream other = guard.getStreamFromGlobalPool(accelerator(device));
    follow(other, guard.getStream(accelerator(device)));
    guard.exchangeStream(other);
  }
  guard.setDevice(accelerator_of(1));
}

// A value, what was unusual before, and whether this thread has left others current already.
using Careless = std::tuple<Tensor, std::vector<std::string>, bool>;
thread_local bool has_left = false;

Careless twice_and_leave(const Tensor& x, int own) {
  const std::vector<std::string> unusual = unusual_here(own);
  Tensor twice = x + x;
  leave_others_current();
  return {std::move(twice), unusual, std::exchange(has_left, true)};
}
Careless careless(const Tensor& x) { return twice_and_leave(x, static_cast<int>(x.get_device())); }
std::vector<std::string> unusual_in_a_call() { return unusual_here(); }
std::vector<std::string> unusual_in_a_call_at_w0() { return rpc_sync(0, unusual_in_a_call); }

FARSPAN_REGISTER_AS("streams.is_on_the_default_stream", is_on_the_default_stream);
FARSPAN_REGISTER_AS("streams.twice_held_up", twice_held_up);
FARSPAN_REGISTER_AS("streams.let_it_go_on", let_it_go_on);
FARSPAN_REGISTER_AS("streams.careless", careless);
FARSPAN_REGISTER_AS("streams.unusual_in_a_call", unusual_in_a_call);
FARSPAN_REGISTER_AS("streams.unusual_in_a_call_at_w0", unusual_in_a_call_at_w0);

using DeviceStreams = DeviceWorkers;
// Where tensors stay with their sender until they have been copied.
class LentDeviceStreams : public DeviceWorkers {};

TEST_P(DeviceStreams, OfAFunctionAreNotTheDefaultOnes) {
  for (const int device : some_devices()) {
    EXPECT_FALSE(w0().rpc_sync(1, is_on_the_default_stream, numbers(1).to(accelerator(device))));
  }
}

TEST_P(LentDeviceStreams, AreWaitedForByDevicesAndByNobodyOnTheHost) {
  const Tensor x = numbers(1).to(accelerator(0));
  const auto answer = w0().rpc_async(1, twice_held_up, x);
  EXPECT_TRUE(answer.wait_for(10s)) << "the callee waits, or who reads its answer";
  auto taken = std::async(std::launch::async, [&] { return answer.wait(); });
  EXPECT_EQ(taken.wait_for(10s), std::future_status::ready) << "who takes the value waits";
  w0().rpc_sync(1, let_it_go_on);
  EXPECT_TRUE(is(taken.get(), numbers(1) * 2));
}

constexpr int kCalls = 50;  // more than the threads that they are shared out to

TEST_P(DeviceStreams, ThatAFunctionLeavesCurrentAreNotThoseOfLaterCalls) {
  int again = 0;
  for (int round = 0; round < kCalls; ++round) {
    const at::Device device = accelerator_of(round % 2);
    const auto [twice, unusual, has_left_before] =
        w0().rpc_sync(1, careless, numbers(round).to(device));
    EXPECT_EQ(twice.device(), device);
    EXPECT_TRUE(is(twice, numbers(round) * 2));
    ASSERT_THAT(unusual, IsEmpty()) << "call " << round;
    again += has_left_before;
  }
  EXPECT_GT(again, 0) << "no thread has served two calls";
}

TEST_P(DeviceStreams, ThatAContinuationLeavesCurrentAreNotThoseOfItsThread) {
  const auto calls = [&] {
    int again = 0;
    for (int round = 0; round < kCalls; ++round) {
      const Tensor x = numbers(round).to(accelerator(0));
      const auto after =
          w0().rpc_async(1, copied, x)
              .then([](const Tensor& y) { return twice_and_leave(y, -1); })
              .then([](const Careless& first) { return std::pair(first, unusual_here()); });
      const auto [first, unusual_after_it] = after.wait();
      const auto& [twice, unusual, has_left_before] = first;
      ASSERT_THAT(unusual_after_it, IsEmpty()) << "continuation of continuation " << round;
      EXPECT_TRUE(is(twice, numbers(round) * 2));
      ASSERT_THAT(unusual, IsEmpty()) << "continuation " << round;
      ASSERT_THAT(unusual_here(), IsEmpty()) << "of who waited for continuation " << round;
      ASSERT_THAT(w0().rpc_sync(1, unusual_in_a_call_at_w0), IsEmpty()) << "round " << round;
      again += has_left_before;
    }
    EXPECT_GT(again, 0) << "no thread has run two continuations";
  };
  std::thread(calls).join();  // which may run some, and goes then
}

INSTANTIATE_TEST_SUITE_P(EachWay, DeviceStreams, ::testing::Values(kSameProcess, kByName, kByHost),
                         name_of_way);
INSTANTIATE_TEST_SUITE_P(EachWay, LentDeviceStreams, ::testing::Values(kSameProcess, kByName),
                         name_of_way);

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) { return farspan::testing::run_device_tests(argc, argv); }
