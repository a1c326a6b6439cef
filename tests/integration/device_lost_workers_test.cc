// Workers with devices that are killed: nothing of theirs is left behind, on either side.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <farspan/autograd/context.h>
#include <farspan/rpc/rpc.h>
#include <farspan/rref/remote.h>

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

constexpr int64_t kCount = 50'000;
Tensor square(const Tensor& x) { return x * x; }
FARSPAN_REGISTER_AS("lost.square", square);

// What a thread does with another worker, again and again.
using Traffic = std::function<void(Worker& w0, int rank, int thread)>;
void tensors(Worker& w0, int rank, int thread) {
  w0.rpc_sync(rank, copied, numbers(thread, kCount).to(accelerator_of(thread % 2)));
}
void tensors_of_unnamed_memory(Worker& w0, int rank, int thread) {
  const InUnnamedMemory unnamed;
  tensors(w0, rank, thread);
}
void references(Worker& w0, int rank, int thread) {
  const Tensor x = numbers(thread, kCount).to(accelerator_of(thread % 2));
  const RRef<Tensor> there = w0.remote(rank, copied, x);
  EXPECT_EQ(there.to_here().numel(), kCount);
}
void gradients(Worker& w0, int rank, int thread) {
  const at::Device device = accelerator_of(thread % 2);
  const Tensor x = numbers(thread, kCount).to(at::kDouble).to(device).requires_grad_();
  dist_autograd::Context context(w0);
  const Tensor y = w0.rpc_sync(rank, square, x);
  context.backward({y}, {at::ones({kCount}, at::kDouble).to(device)});
  EXPECT_TRUE(context.gradient(x).defined());
}

// Three threads, which have to do with a worker until they notice that it is lost.
class Callers {
 public:
  Callers(Worker& w0, int rank, const Traffic& traffic = tensors) {
    for (int thread = 0; thread < kThreads; ++thread) {
      threads_.emplace_back([this, &w0, rank, thread, traffic] {
        try {
          for (;; ++calls_) traffic(w0, rank, thread);
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

struct KilledIn {
  const char* name;
  Traffic traffic;
  DeviceToDevice by_w0 = DeviceToDevice::kAllowed;
};
const KilledIn kKilledIn[] = {
    {"tensors", tensors},
    {"tensors of memory that others cannot open", tensors_of_unnamed_memory},
    {"tensors through the processor", tensors, DeviceToDevice::kForbidden},
    {"references", references},
    {"gradients", gradients},
};

// Whichever of the two has memory of the other's open, or lends it its own.
TEST_P(LostDeviceWorkers, LeaveNothingBehindWhenTheyAreKilledAtAnyMoment) {
  SeededRandom random(seed_of_run("kills"));
  for (const int device : some_devices()) numbers(0).to(accelerator(device));  // real ones begin
  for (const KilledIn& what : kKilledIn) {
    SCOPED_TRACE(what.name);
    for (int round = 0; round < repetitions(10); ++round) {
      start_processes({.workers = 2, .device_to_device = what.by_w0});
      auto& room = dynamic_cast<DeviceRoom&>(*w0().device_carrier());
      Callers callers(w0(), 1, what.traffic);
      std::this_thread::sleep_for(random.up_to(60ms));
      lose_w1();
      const TimePoint lost = Clock::now();
      callers.join();
      EXPECT_TRUE(eventually([&] {
        settle_accelerator();
        const AcceleratorUse use = accelerator_use();
        return use.opened + use.bytes + room.exports().kept() == 0 &&
               use.events == room.exports().events();
      })) << ::testing::PrintToString(accelerator_use());
      EXPECT_LT(Clock::now() - lost, 2s * (kAddressSanitizer ? 5 : 1));
      EXPECT_THAT(accelerator_use().faults, ::testing::IsEmpty());
    }
  }
}

TEST_P(LostDeviceWorkers, LeaveTheirEventsToTheNextCallsOfWhoIsLeft) {
  start_processes({.workers = 4});
  auto& room = dynamic_cast<DeviceRoom&>(*w0().device_carrier());
  // As many as may have been in use at once: one for each that lends, and one for each way that was
  // tried when the workers got their lines.
  const size_t most = Callers::kThreads + 3 * static_cast<size_t>(accelerators());
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
    EXPECT_LE(room.exports().events(), most);
  }
}

// Of w2.
void keep_there(const Tensor& x) { keep_here(x); }
int64_t kept_there() { return static_cast<int64_t>(kept_here().size()); }
// Of w1, which lends w2 a tensor, and lets go of it when the call has ended.
std::optional<Future<void>> lent;
void lend_w2(int64_t seed) {
  lent = rpc_async(2, keep_there, numbers(seed, kCount).to(accelerator(0)));
}
std::string why_it_ended() {
  const Error why = error_of([] { lent->wait(); });
  lent.reset();
  return std::string(name_of(why.code()));
}
// In memory that is used again, if it is free.
void use_devices() {
  settle_accelerator();
  numbers(1'000'000, kCount).to(accelerator(0)).cpu();
}
int64_t exports_kept() {
  auto& room = dynamic_cast<DeviceRoom&>(*current_worker().device_carrier());
  return static_cast<int64_t>(room.exports().kept());
}
int64_t process_here() { return getpid(); }
// Both ends of each line to that process hear of its end.
void break_lines_to(int64_t process) {
  for (int descriptor = 3; descriptor < 1024; ++descriptor) {
    int is_listening = 1;
    ucred peer{};
    socklen_t size = sizeof is_listening, peer_size = sizeof peer;
    getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &size);
    getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &peer_size);
    if (is_listening == 0 && peer.pid == process) shutdown(descriptor, SHUT_RDWR);
  }
}
FARSPAN_REGISTER_AS("lost.keep_there", keep_there);
FARSPAN_REGISTER_AS("lost.kept_there", kept_there);
FARSPAN_REGISTER_AS("lost.lend_w2", lend_w2);
FARSPAN_REGISTER_AS("lost.why_it_ended", why_it_ended);
FARSPAN_REGISTER_AS("lost.use_devices", use_devices);
FARSPAN_REGISTER_AS("lost.exports_kept", exports_kept);
FARSPAN_REGISTER_AS("lost.process_here", process_here);
FARSPAN_REGISTER_AS("lost.break_lines_to", break_lines_to);

// A function that has begun sees what was sent whenever its device gets to it.
TEST_P(LostDeviceWorkers, HaveTheMemoryThatTheyWereLentWhenOnlyTheLineEnds) {
  start_processes({.workers = 3});
  const int64_t w1 = w0().rpc_sync(1, process_here);
  const auto exports = [&] { return w0().rpc_sync(1, exports_kept); };
  for (int round = 0; round < repetitions(5); ++round) {
    w0().rpc_sync(2, stall_there);
    w0().rpc_sync(1, lend_w2, round);
    EXPECT_TRUE(eventually([&] { return w0().rpc_sync(2, kept_there) == round + 1; }));
    w0().rpc_sync(2, break_lines_to, w1);
    EXPECT_EQ(w0().rpc_sync(1, why_it_ended), "DISCONNECTED");
    w0().rpc_sync(1, use_devices);
    EXPECT_EQ(exports(), 1);
    w0().rpc_sync(2, go_on_there);
    EXPECT_TRUE(w0().rpc_sync(2, last_kept_is, round));
    EXPECT_TRUE(eventually([&] { return exports() == 0; }));
  }
}

INSTANTIATE_TEST_SUITE_P(EachWay, LostDeviceWorkers, ::testing::Values(kByName), name_of_way);

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) { return farspan::testing::run_device_tests(argc, argv); }
