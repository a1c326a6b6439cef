// The rules under test: rpc/device/README.md, on simulated devices.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <farspan/rpc/device/device_room.h>
#include <farspan/rpc/device/streams.h>
#include <farspan/rpc/rpc.h>

#include "conformance/cluster.h"
#include "support/errors.h"
#include "support/eventually.h"
#include "support/processes.h"
#include "support/sanitizers.h"
#include "support/simulated_accelerator.h"
#include "support/workers.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using at::Tensor;
using device::cpu;
using device::cuda;
using ::testing::AllOf;
using ::testing::HasSubstr;

Tensor numbers(int64_t seed, int64_t count = 1000) {
  return at::arange(seed, seed + count, at::kLong);
}
bool is(const Tensor& x, const Tensor& expected) { return at::equal(x.cpu(), expected); }

Tensor same(const Tensor& x) { return x; }
Tensor copied(const Tensor& x) { return x.clone(); }
int64_t device_of(const Tensor& x) { return x.is_cpu() ? -1 : x.get_device(); }
bool is_numbers(const Tensor& x, int64_t seed) { return is(x, numbers(seed, x.numel())); }
Tensor on_device(int64_t device, int64_t seed) {
  return numbers(seed).to(simulated(static_cast<int>(device)));
}
void take(const Tensor&) {}
[[noreturn]] void refuse(const Tensor&) { throw std::runtime_error("no"); }
std::mutex kept_mutex;
std::vector<Tensor> kept;
Tensor keep(const Tensor& x) {
  const std::lock_guard lock(kept_mutex);
  kept.push_back(x);
  return x;
}
void overwrite_kept(const Tensor& by) {
  const std::lock_guard lock(kept_mutex);
  for (Tensor& one : kept) one.copy_(by);
}
FARSPAN_REGISTER_AS("device.same", same);
FARSPAN_REGISTER_AS("device.copied", copied);
FARSPAN_REGISTER_AS("device.device_of", device_of);
FARSPAN_REGISTER_AS("device.is_numbers", is_numbers);
FARSPAN_REGISTER_AS("device.on_device", on_device);
FARSPAN_REGISTER_AS("device.take", take);
FARSPAN_REGISTER_AS("device.refuse", refuse);
FARSPAN_REGISTER_AS("device.keep", keep);
FARSPAN_REGISTER_AS("device.overwrite_kept", overwrite_kept);

// What is wrong with the devices of this process when no call has tensors on them.
std::vector<std::string> wrong_here() {
  {
    const std::lock_guard lock(kept_mutex);
    kept.clear();
  }
  settle_simulated_devices();
  const device::SimulatedDevices& devices = simulated_accelerator();
  std::vector<std::string> wrong = devices.faults();
  const auto expect_none = [&](const char* of, size_t count) {
    if (count > 0) wrong.push_back(std::to_string(count) + " " + of);
  };
  expect_none("bytes on 0", devices.allocated(0));
  expect_none("bytes on 1", devices.allocated(1));
  return wrong;
}
FARSPAN_REGISTER_AS("device.wrong_here", wrong_here);

using Reach = DeviceRoom::Reach;
struct Way {
  const char* name;
  Reach reach;
};
inline void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

// Two workers of this process, or of two.
class DeviceTensors : public ::testing::TestWithParam<Way> {
 protected:
  DeviceTensors() {
    simulated_accelerator();
    if (GetParam().reach == Reach::kByName) {
      processes_ = in_processes("shm").make({.workers = 2});
    } else {
      use({}, {});
    }
  }
  ~DeviceTensors() override {
    using ::testing::IsEmpty;
    if (processes_ && processes_->serves(1)) {
      EXPECT_TRUE(eventually([&] { return w0().rpc_sync(1, wrong_here).empty(); }));
      EXPECT_THAT(w0().rpc_sync(1, wrong_here), IsEmpty());
      processes_->shutdown();
    }
    processes_.reset();
    workers_.reset();
    EXPECT_THAT(wrong_here(), IsEmpty());
    EXPECT_EQ(simulated_accelerator().opened(), 0u);
    EXPECT_EQ(simulated_accelerator().events(), 0u);
  }

  // Workers of this process with these maps; what they tell of themselves decides about the way.
  void use(DeviceRecord::Maps of_w0, DeviceRecord::Maps of_w1) {
    workers_.reset();
    workers_ = std::make_unique<Workers>(
        WorkersOptions{.transport = "unix", .settings = {}, .reactor = {}});
    std::vector<DeviceRecord> records;
    for (auto* const maps : {&of_w0, &of_w1}) {
      records.push_back(DeviceRecord::of_this_process(std::move(*maps)));
      if (GetParam().reach != Reach::kByHost) continue;
      const std::string which = std::to_string(records.size());
      records.back().process += which;
      records.back().host += which;
    }
    for (int rank = 0; rank < 2; ++rank) DeviceRoom::install((*workers_)[rank], records);
  }
  Worker& w0() { return processes_ ? processes_->driver() : (*workers_)[0]; }
  Worker& w1() { return (*workers_)[1]; }
  void lose_w1() {
    if (processes_) {
      processes_->kill(1);
    } else {
      w1().shutdown(false);
    }
  }

 private:
  std::unique_ptr<Workers> workers_;
  std::unique_ptr<Cluster> processes_;
};
class DeviceMaps : public DeviceTensors {};
// Where they stay with the caller until they have been copied.
class LentDeviceTensors : public DeviceTensors {};

TEST_P(DeviceTensors, ArriveOnTheDeviceOfTheSameNumberAndSoDoAnswers) {
  for (int round = 0; round < repetitions(50); ++round) {
    for (const int device : {0, 1}) {
      const Tensor x = numbers(round).to(simulated(device));
      EXPECT_EQ(w0().rpc_sync(1, device_of, x), device);
      EXPECT_TRUE(w0().rpc_sync(1, is_numbers, x, round));
      for (const auto fn : {same, copied}) {
        const Tensor back = w0().rpc_sync(1, fn, x);
        EXPECT_EQ(back.device(), simulated(device));
        EXPECT_TRUE(is(back, numbers(round)));
      }
    }
  }
}

TEST_P(DeviceTensors, OfEachShapeArriveAsTheyAre) {
  const Tensor base = at::arange(120, at::kFloat).reshape({2, 3, 4, 5});
  for (const Tensor& x : {base, base.permute({0, 2, 3, 1}), at::empty({0, 7}), at::scalar_tensor(3),
                          at::arange(300'000, at::kDouble)}) {
    const Tensor there =
        at::empty_strided(x.sizes(), x.strides(), x.options().device(simulated(1)));
    there.copy_(x);
    const Tensor back = w0().rpc_sync(1, copied, there);
    EXPECT_EQ(back.device(), simulated(1));
    if (x.numel() > 0) {
      EXPECT_EQ(back.strides(), x.strides());
    }
    EXPECT_TRUE(at::equal(back.cpu(), x));
  }
}

TEST_P(DeviceTensors, MayBeOverwrittenOrReleasedAsSoonAsTheCallIsOver) {
  for (int round = 0; round < repetitions(100); ++round) {
    Tensor x = numbers(round).to(simulated(0));
    auto first = w0().rpc_async(1, copied, x);
    const Tensor back = first.wait();
    x.copy_(numbers(-round));
    auto second = w0().rpc_async(1, is_numbers, x, -round);
    x = Tensor();  // the call has it still
    EXPECT_TRUE(is(back, numbers(round)));
    EXPECT_TRUE(second.wait());
  }
}

TEST_P(DeviceTensors, AreSentAsTheCurrentStreamHasWrittenThem) {
  for (int round = 0; round < repetitions(50); ++round) {
    const OnAnotherStream stream(simulated(0));
    const Tensor x = numbers(round).to(simulated(0));
    const Tensor twice = x.clone();  // not done when it is sent
    const Tensor back = w0().rpc_sync(1, copied, twice).clone();
    EXPECT_TRUE(is(back, numbers(round)));
  }
}

TEST_P(DeviceTensors, ThatAFunctionKeepsMayChangeAfterItsAnswer) {
  const Tensor back = w0().rpc_sync(1, keep, numbers(1).to(simulated(0)));
  w0().rpc_sync(1, overwrite_kept, numbers(100).to(simulated(0)));
  EXPECT_TRUE(is(back, numbers(1)));
}

TEST_P(DeviceMaps, AreFollowedAndTheirInverses) {
  use({{"w1", {{cuda(0), cuda(1)}, {cuda(1), cuda(0)}}}}, {});
  const Tensor x = numbers(3).to(simulated(0));
  EXPECT_EQ(w0().rpc_sync(1, device_of, x), 1);
  const Tensor back = w0().rpc_sync(1, copied, x);
  EXPECT_EQ(back.device(), simulated(0));
  EXPECT_TRUE(is(back, numbers(3)));
  EXPECT_EQ(w0().rpc_sync(1, on_device, 0, 5).device(), simulated(1));
  EXPECT_EQ(w1().rpc_sync(0, device_of, x), 0) << "a map of the other's own";
}

TEST_P(DeviceMaps, MayNameTheCpu) {
  use({{"w1", {{cuda(0), cpu}, {cpu, cuda(1)}}}}, {});
  EXPECT_EQ(w0().rpc_sync(1, device_of, numbers(3).to(simulated(0))), -1);
  EXPECT_TRUE(w0().rpc_sync(1, is_numbers, numbers(3).to(simulated(0)), 3));
  EXPECT_EQ(w0().rpc_sync(1, device_of, numbers(4)), 1);
  const Tensor back = w0().rpc_sync(1, copied, numbers(4));
  EXPECT_TRUE(back.is_cpu());
  EXPECT_TRUE(is(back, numbers(4)));
}

TEST_P(DeviceMaps, RefuseADeviceWithoutAnEntryWithTheLineToAdd) {
  use({{"w1", {{cuda(0), cuda(1)}}}}, {});
  const Tensor x = numbers(3).to(simulated(1));
  EXPECT_THAT(error_of([&] { w0().rpc_sync(1, take, x); }).what(),
              AllOf(HasSubstr("cuda:1"), HasSubstr("device_maps[\"w1\"].set(cuda(1), ")));
  EXPECT_THAT(error_of([&] { w0().rpc_sync(1, on_device, 0, 5); }).what(),
              HasSubstr("device_maps[\"w1\"].set(cuda(..), cuda(0))"));
}

TEST_P(DeviceTensors, AreTheCallersAgainAfterACallThatFails) {
  for (int round = 0; round < repetitions(20); ++round) {
    Tensor x = numbers(round).to(simulated(0));
    EXPECT_THROW(w0().rpc_sync(1, refuse, x), Error);
    x.copy_(numbers(7));
  }
}

// Holds up the calling thread's current stream of device 0.
class StalledStream {
 public:
  StalledStream() {
    simulated_accelerator().then(current_stream(simulated(0)), [go = go_] { go.future().wait(); });
  }
  ~StalledStream() { go_.set_value(); }
  StalledStream(const StalledStream&) = delete;
  StalledStream& operator=(const StalledStream&) = delete;

 private:
  const Promise<void> go_;
};

TEST_P(LentDeviceTensors, ACallIsOverOnlyWhenItsArgumentsAreTheCallersAgain) {
  const Tensor x = numbers(1).to(simulated(0));
  std::optional<StalledStream> stalled(std::in_place);
  const auto answer = w0().rpc_async(1, take, x);
  EXPECT_FALSE(answer.wait_for(50ms)) << "x has not been read yet";
  stalled.reset();
  answer.wait();
}

TEST_P(DeviceTensors, ACallWhoseArgumentsAreNotReadyEndsAtItsDeadline) {
  const Tensor x = numbers(1).to(simulated(0));
  const StalledStream stalled;
  const TimePoint begun = Clock::now();
  const auto call = [&] { w0().rpc_sync(1, CallOptions{.timeout = Millis(100)}, take, x); };
  EXPECT_EQ(code_of(call), Code::kTimeout);
  EXPECT_LT(Clock::now() - begun, 10s);
}

TEST_P(LentDeviceTensors, ACallFailsWhenItsLineEndsBeforeItsArgumentsWereRead) {
  const Tensor x = numbers(1).to(simulated(0));
  std::optional<StalledStream> stalled(std::in_place);
  const auto answer = w0().rpc_async(1, take, x);
  EXPECT_FALSE(answer.wait_for(50ms));
  lose_w1();
  EXPECT_TRUE(answer.wait_for(10s));
  EXPECT_TRUE(answer.has_error()) << "nobody knows what has become of it";
  stalled.reset();
}

TEST_P(DeviceTensors, ManyThreadsAtOnce) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      const OnAnotherStream stream(simulated(thread % 2));
      for (int round = 0; round < repetitions(50); ++round) {
        const int64_t seed = thread * 1000 + round;
        const Tensor x = numbers(seed).to(simulated(thread % 2));
        EXPECT_TRUE(is(w0().rpc_sync(1, copied, x), numbers(seed)));
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

const auto name_of_way = [](const auto& way) { return std::string(way.param.name); };
INSTANTIATE_TEST_SUITE_P(EachWay, DeviceTensors,
                         ::testing::Values(Way{"SameProcess", Reach::kSameProcess},
                                           Way{"ByName", Reach::kByName},
                                           Way{"ByHost", Reach::kByHost}),
                         name_of_way);
INSTANTIATE_TEST_SUITE_P(EachWay, LentDeviceTensors,
                         ::testing::Values(Way{"SameProcess", Reach::kSameProcess},
                                           Way{"ByName", Reach::kByName}),
                         name_of_way);
INSTANTIATE_TEST_SUITE_P(EachWay, DeviceMaps,
                         ::testing::Values(Way{"SameProcess", Reach::kSameProcess},
                                           Way{"ByHost", Reach::kByHost}),
                         name_of_way);

int be_worker_with_devices() {
  simulated_accelerator({.seed = 2});
  return be_worker();
}

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) {
  return farspan::testing::run_tests(argc, argv,
                                     {{"worker", farspan::testing::be_worker_with_devices}});
}
