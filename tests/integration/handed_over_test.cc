// The rules under test: rpc/shared_tensor.h, and rpc/wire/WIRE.md, "Handing over"; and what becomes
// of the memory of tensors that are not handed over (rpc/messenger.h, MessengerCounters).
#include <farspan/rpc/rpc.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <farspan/c10d/base/freed_memory.h>

#include "support/errors.h"
#include "support/eventually.h"
#include "support/process_use.h"
#include "support/workers.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using at::Tensor;

constexpr int64_t kMiB = 1 << 20;

// What functions have kept, by the worker.
std::mutex kept_mutex;
std::map<int, std::vector<Tensor>> kept;

Tensor shared_pattern(int64_t seed, int64_t bytes) {
  Tensor tensor = empty_shared({bytes / 8}, at::kLong);
  at::arange_out(tensor, seed, seed + bytes / 8, 1);
  return tensor;
}
bool is_pattern(const Tensor& x, int64_t seed) {
  return at::equal(x, at::arange(seed, seed + x.numel(), at::kLong));
}

bool keep(const Tensor& x, int64_t seed) {
  std::lock_guard lock(kept_mutex);
  kept[current_worker().rank()].push_back(x);
  return is_pattern(x, seed);
}
bool keep_second(const Tensor&, const Tensor& x, int64_t seed) { return keep(x, seed); }
void keep_both(const std::vector<Tensor>& x) {
  std::lock_guard lock(kept_mutex);
  for (const Tensor& each : x) kept[current_worker().rank()].push_back(each);
}
void let_go() {
  std::lock_guard lock(kept_mutex);
  kept.erase(current_worker().rank());
}
Tensor make(int64_t seed, int64_t bytes) { return shared_pattern(seed, bytes); }
Tensor make_own(int64_t seed, int64_t bytes) {
  return at::arange(seed, seed + bytes / 8, at::kLong);
}
Tensor make_and_keep(int64_t seed, int64_t bytes) {
  Tensor made = shared_pattern(seed, bytes);
  std::lock_guard lock(kept_mutex);
  kept[current_worker().rank()].push_back(made);
  return made;
}
Future<Tensor> make_later(int64_t seed, int64_t bytes) {
  Promise<Tensor> promise;
  promise.set_value(shared_pattern(seed, bytes));
  return promise.future();
}
// That others may have, and change, when it has been returned.
const Promise<Tensor>& kept_later() {
  static const Promise<Tensor> promise;
  return promise;
}
Future<Tensor> make_for_all(int64_t seed, int64_t bytes) {
  if (!kept_later().future().ready()) kept_later().set_value(shared_pattern(seed, bytes));
  return kept_later().future();
}
// Answers when all may; it has no use for its argument by then.
Promise<void>& all_may_answer() {
  static Promise<void> promise;
  return promise;
}
Future<int64_t> sum_later(const Tensor& x) {
  return all_may_answer().future().then([sum = x.sum().item<int64_t>()] { return sum; });
}
int64_t sum(const Tensor& x) { return x.sum().item<int64_t>(); }
void sleep_for(const Tensor&, int64_t ms) { std::this_thread::sleep_for(Millis(ms)); }
FARSPAN_REGISTER_AS("handed.keep", keep);
FARSPAN_REGISTER_AS("handed.keep_second", keep_second);
FARSPAN_REGISTER_AS("handed.keep_both", keep_both);
FARSPAN_REGISTER_AS("handed.let_go", let_go);
FARSPAN_REGISTER_AS("handed.make", make);
FARSPAN_REGISTER_AS("handed.make_own", make_own);
FARSPAN_REGISTER_AS("handed.make_and_keep", make_and_keep);
FARSPAN_REGISTER_AS("handed.make_later", make_later);
FARSPAN_REGISTER_AS("handed.make_for_all", make_for_all);
FARSPAN_REGISTER_AS("handed.sum_later", sum_later);
FARSPAN_REGISTER_AS("handed.sum", sum);
FARSPAN_REGISTER_AS("handed.sleep_for", sleep_for);

class HandedOver : public ::testing::TestWithParam<const char*> {
 protected:
  HandedOver() { use({}); }
  ~HandedOver() override {
    std::lock_guard lock(kept_mutex);
    kept.clear();
  }
  void use(agent::ConnectionOptions limits) {
    set_current_worker(nullptr);
    WorkersOptions options;
    options.transport = GetParam();
    options.limits = std::move(limits);
    workers_.emplace(std::move(options));
    set_current_worker(&(*workers_)[0]);
    (*workers_)[0].rpc_sync("w1", sum, at::ones(1, at::kLong));
    // Before a line has been tried out, everything travels.
    EXPECT_TRUE(eventually([&] { return !w0().routes().empty() && !w1().routes().empty(); }));
  }
  void TearDown() override { set_current_worker(nullptr); }
  Worker& w0() { return (*workers_)[0]; }
  Worker& w1() { return (*workers_)[1]; }
  static uint64_t handed_over_to(Worker& worker) { return worker.routes().at(0).bytes_handed_over; }
  static Tensor& kept_by(int rank, size_t index = 0) {
    std::lock_guard lock(kept_mutex);
    return kept[rank].at(index);
  }

  std::optional<Workers> workers_;
};
INSTANTIATE_TEST_SUITE_P(Transports, HandedOver, ::testing::Values("shm", "unix"),
                         [](const auto& transport) { return std::string(transport.param); });

TEST_P(HandedOver, AnArgumentThatIsGivenUpIsNotCopied) {
  Tensor x = shared_pattern(3, 8 * kMiB);
  EXPECT_TRUE(w0().rpc_sync("w1", keep, std::move(x), 3));
  EXPECT_FALSE(x.defined());
  EXPECT_EQ(handed_over_to(w1()), 8u * kMiB);
  EXPECT_EQ(w1().routes().at(0).bytes_read, 0u);
  EXPECT_EQ(w0().counters().handed_over_memory, 8u * kMiB);
  EXPECT_GE(w0().counters().shared_memory, 8u * kMiB);
  EXPECT_EQ(w1().counters().received_memory, 0u);
  EXPECT_GE(w1().counters().mapped_memory, 8u * kMiB);
  // Expect: it can be written, and lives on with its line.
  kept_by(1).add_(1);
  EXPECT_TRUE(is_pattern(kept_by(1), 4));

  w0().rpc_sync("w1", let_go);
  EXPECT_TRUE(eventually([&] { return w0().counters().handed_over_memory == 0; }));
  EXPECT_TRUE(eventually([&] { return w0().counters().shared_memory == 0; }));
  EXPECT_TRUE(eventually([&] { return w0().counters().idle_shared_memory >= 8u * kMiB; }));
  EXPECT_EQ(w1().counters().mapped_memory, 0u);
  EXPECT_TRUE(eventually([&] { return w1().counters().idle_mapped_memory >= 8u * kMiB; }));
}

TEST_P(HandedOver, TheSameMemoryGoesToAndFro) {
  const void* place = nullptr;
  for (int64_t call = 0; call < 20; ++call) {
    Tensor x = shared_pattern(call, kMiB);
    EXPECT_TRUE(!place || x.data_ptr() == place);
    place = x.data_ptr();
    EXPECT_TRUE(w0().rpc_sync("w1", keep, std::move(x), call));
    w0().rpc_sync("w1", let_go);
    ASSERT_TRUE(eventually([&] { return w0().counters().shared_memory == 0; }));
  }
  EXPECT_EQ(handed_over_to(w1()), 20u * kMiB);
}

TEST_P(HandedOver, AResultThatNobodyKeepsIsNotCopied) {
  const Tensor x = w0().rpc_sync("w1", make, 5, 4 * kMiB);
  EXPECT_TRUE(is_pattern(x, 5));
  EXPECT_EQ(handed_over_to(w0()), 4u * kMiB);
  const Tensor y = w0().rpc_sync("w1", make, 6, 4 * kMiB);
  EXPECT_TRUE(is_pattern(x, 5));
  EXPECT_TRUE(is_pattern(y, 6));
}

TEST_P(HandedOver, WhatSomebodyKeepsIsCopied) {
  const Tensor x = w0().rpc_sync("w1", make_and_keep, 5, 4 * kMiB);
  EXPECT_TRUE(is_pattern(x, 5));
  kept_by(1).zero_();
  EXPECT_TRUE(is_pattern(x, 5));
  const Tensor y = w0().rpc_sync("w1", make_for_all, 5, 4 * kMiB);
  EXPECT_TRUE(is_pattern(y, 5));
  EXPECT_EQ(handed_over_to(w0()), 0u);
  // Expect: a Future that nobody else has any more is no reason.
  EXPECT_TRUE(is_pattern(w0().rpc_sync("w1", make_later, 5, 4 * kMiB), 5));
  EXPECT_EQ(handed_over_to(w0()), 4u * kMiB);

  // Expect: an argument that the caller keeps, or has a view of, is his.
  Tensor mine = shared_pattern(1, kMiB);
  EXPECT_TRUE(w0().rpc_sync("w1", keep, mine, 1));
  const Tensor view = mine.slice(0, 0, 10);
  EXPECT_TRUE(w0().rpc_sync("w1", keep, std::move(mine), 1));
  kept_by(1, 1).zero_();
  kept_by(1, 2).zero_();
  EXPECT_TRUE(is_pattern(view, 1));
  EXPECT_EQ(handed_over_to(w1()), 0u);
}

TEST_P(HandedOver, PartsOfABlockAndSeveralAtOnce) {
  Tensor part = shared_pattern(0, 2 * kMiB);
  part.set_(part.storage(), 1000, {199'000}, {1});
  EXPECT_TRUE(w0().rpc_sync("w1", keep, std::move(part), 1000));
  EXPECT_EQ(handed_over_to(w1()), 8u * 199'000);

  std::vector<Tensor> several{shared_pattern(7, kMiB), at::ones(100'000), shared_pattern(8, kMiB),
                              at::ones(3)};
  w0().rpc_sync("w1", keep_both, std::move(several));
  EXPECT_EQ(handed_over_to(w1()), 8u * 199'000 + 2u * kMiB);
  EXPECT_TRUE(is_pattern(kept_by(1, 1), 7));
  EXPECT_EQ(kept_by(1, 2).sum().item<float>(), 100'000);
  EXPECT_TRUE(is_pattern(kept_by(1, 3), 8));
  EXPECT_EQ(kept_by(1, 4).numel(), 3);
}

// What the peer still has may not be used for other tensors when nobody will say when it is done.
TEST_P(HandedOver, StaysWithWhoHasItWhenTheLineEnds) {
  EXPECT_TRUE(w0().rpc_sync("w1", keep, shared_pattern(3, kMiB), 3));
  const Tensor mine = w0().rpc_sync("w1", make, 4, kMiB);
  workers_->agent(1).stop();
  EXPECT_TRUE(eventually([&] { return w0().counters().handed_over_memory == 0; }));
  EXPECT_TRUE(eventually([&] { return w0().counters().shared_memory == 0; }));
  EXPECT_TRUE(eventually([&] { return w0().counters().idle_shared_memory == 0; }));
  for (int64_t i = 0; i < 4; ++i) shared_pattern(100, kMiB);
  EXPECT_TRUE(is_pattern(kept_by(1), 3));
  EXPECT_TRUE(is_pattern(mine, 4));
}

TEST_P(HandedOver, WhatALineHasMovedCountsWhenItHasEnded) {
  EXPECT_EQ(w0().rpc_sync("w1", sum, at::ones({kMiB}, at::kLong)), kMiB);
  EXPECT_TRUE(w0().rpc_sync("w1", keep, shared_pattern(3, 8 * kMiB), 3));
  workers_->agent(0).stop();
  EXPECT_TRUE(eventually([&] { return w1().counters().connections == 0; }));
  const auto counters = w1().counters();
  EXPECT_EQ(counters.bytes_read, 8u * kMiB);
  EXPECT_EQ(counters.bytes_handed_over, 8u * kMiB);
  EXPECT_GT(counters.bytes_received, 0u);
  EXPECT_EQ(counters.bytes_come(), 16u * kMiB + counters.bytes_received);
}

TEST_P(HandedOver, ACallThatIsOverLeavesNothingBehind) {
  for (int i = 0; i < 20; ++i) {
    const auto answer =
        w0().rpc_async("w1", CallOptions{Millis(i % 4)}, sleep_for, shared_pattern(i, kMiB), 2);
    try {
      answer.wait();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kTimeout);
    }
  }
  EXPECT_TRUE(eventually([&] { return w0().counters().handed_over_memory == 0; }));
  EXPECT_TRUE(eventually([&] { return w0().counters().shared_memory == 0; }));
}

TEST_P(HandedOver, WhereMemoryMayNotBeReadEverythingTravels) {
  use({.cross_memory_attach = CrossMemoryAttach::kForbidden});
  EXPECT_TRUE(w0().rpc_sync("w1", keep, shared_pattern(3, kMiB), 3));
  EXPECT_EQ(handed_over_to(w1()), 0u);
  EXPECT_TRUE(eventually([&] { return w0().counters().shared_memory == 0; }));
}

// Tensors that were read out of the sender's memory, or have travelled.
class ReceivedMemory : public HandedOver {
 protected:
  static uint64_t received_by(Worker& worker) { return worker.counters().received_memory; }
  static uint64_t idle_at(Worker& worker) { return worker.counters().idle_memory; }
  static bool is_let_go_by(Worker& worker) {
    return eventually([&] { return received_by(worker) == 0; });
  }
};
INSTANTIATE_TEST_SUITE_P(Transports, ReceivedMemory, ::testing::Values("shm", "unix", "tcp"),
                         [](const auto& transport) { return std::string(transport.param); });

TEST_P(ReceivedMemory, CountsForAsLongAsTheTensorLives) {
  EXPECT_EQ(received_by(w1()), 0u);
  EXPECT_TRUE(w0().rpc_sync("w1", keep, make_own(3, 8 * kMiB), 3));
  EXPECT_GE(received_by(w1()), 8u * kMiB);
  EXPECT_LE(received_by(w1()), 10u * kMiB);
  EXPECT_EQ(received_by(w0()), 0u);
  w0().rpc_sync("w1", let_go);
  EXPECT_TRUE(is_let_go_by(w1()));
  EXPECT_TRUE(eventually([&] { return idle_at(w1()) >= 8u * kMiB; }));

  // Expect: a result's likewise, also where only a part of it is left.
  Tensor result = w0().rpc_sync("w1", make_own, 5, 4 * kMiB);
  EXPECT_TRUE(is_pattern(result, 5));
  EXPECT_GE(received_by(w0()), 4u * kMiB);
  Tensor part = result.slice(0, 0, 10);
  result = Tensor();
  EXPECT_GE(received_by(w0()), 4u * kMiB);
  part = Tensor();
  EXPECT_TRUE(is_let_go_by(w0()));
}

TEST_P(ReceivedMemory, IsLetGoOfByACallThatHasNoUseForItAnyMore) {
  all_may_answer() = Promise<void>();
  const auto answer = w0().rpc_async("w1", sum_later, make_own(3, 8 * kMiB));
  EXPECT_TRUE(eventually([&] { return idle_at(w1()) >= 8u * kMiB; }));
  EXPECT_EQ(received_by(w1()), 0u);
  EXPECT_FALSE(answer.ready());
  all_may_answer().set_value();
  EXPECT_EQ(answer.wait(), make_own(3, 8 * kMiB).sum().item<int64_t>());
}

TEST_P(ReceivedMemory, IsNotKeptForMoreAfterTheEnd) {
  EXPECT_TRUE(w0().rpc_sync("w1", keep, make_own(3, 8 * kMiB), 3));
  EXPECT_TRUE(w0().rpc_sync("w1", sum, make_own(3, 8 * kMiB)) > 0);
  EXPECT_TRUE(eventually([&] { return idle_at(w1()) >= 8u * kMiB; }));
  workers_->agent(1).stop();
  EXPECT_EQ(idle_at(w1()), 0u);
  EXPECT_GE(received_by(w1()), 8u * kMiB);
  kept_by(1) = Tensor();
  EXPECT_EQ(received_by(w1()), 0u);
  EXPECT_EQ(idle_at(w1()), 0u);
}

// What others can still change is copied before it is read.
TEST_P(ReceivedMemory, AResultsIsItsOwnWhereSomebodyElseHasIt) {
  EXPECT_TRUE(is_pattern(w0().rpc_sync("w1", make_own, 5, 4 * kMiB), 5));
  EXPECT_EQ(idle_at(w1()), 0u) << "nobody else has it";
  const Tensor first = w0().rpc_sync("w1", make_for_all, 5, 4 * kMiB);
  EXPECT_TRUE(is_pattern(first, 5));
  EXPECT_TRUE(eventually([&] { return idle_at(w1()) >= 4u * kMiB; }));
}

TEST_P(ReceivedMemory, IsEachTensorsOwn) {
  EXPECT_TRUE(w0().rpc_sync("w1", keep_second, make_own(3, 8 * kMiB), make_own(4, 8 * kMiB), 4));
  EXPECT_TRUE(eventually([&] { return received_by(w1()) <= 10u * kMiB; }));
  EXPECT_GE(received_by(w1()), 8u * kMiB);
  w0().rpc_sync("w1", let_go);
  EXPECT_TRUE(is_let_go_by(w1()));
}

TEST_P(ReceivedMemory, IsUsedAgainForTheNextTensor) {
  for (int64_t call = 0; call < 20; ++call) {
    EXPECT_TRUE(w0().rpc_sync("w1", keep, make_own(call, 8 * kMiB), call));
    w0().rpc_sync("w1", let_go);
    ASSERT_TRUE(is_let_go_by(w1()));
    EXPECT_LE(idle_at(w1()), 10u * kMiB) << "call " << call;
  }
}

// Also where malloc keeps what it is given back.
TEST(IdleMemory, GoesBackToTheSystemAfterAWhile) {
  keep_freed_memory();
  Workers workers{WorkersOptions{}};
  const CurrentWorker current(workers[0]);
  constexpr int64_t kBytes = 64 * kMiB;
  const Tensor ones = at::ones({kBytes / 8}, at::kLong);
  const auto idle = [&] { return static_cast<int64_t>(workers[1].counters().idle_memory); };
  const int64_t before = memory_bytes("VmRSS");
  EXPECT_EQ(workers[0].rpc_sync("w1", sum, ones), kBytes / 8);
  EXPECT_TRUE(eventually([&] { return idle() >= kBytes; }));
  EXPECT_GE(memory_bytes("VmRSS") - before, kBytes);
  EXPECT_TRUE(eventually([&] { return idle() == 0; }, 60s)) << idle();
  const auto held = [&] { return memory_bytes("VmRSS") - before; };
  EXPECT_TRUE(eventually([&] { return held() < kBytes / 2; })) << held();
}

TEST(IdleMemory, ThatCouldBeSharedGoesBackToTheSystem) {
  Workers workers{WorkersOptions{}};
  const CurrentWorker current(workers[0]);
  const auto idle = [&] { return static_cast<int64_t>(workers[0].counters().idle_shared_memory); };
  empty_shared({64 * kMiB}, at::kByte).fill_(1);
  EXPECT_GE(idle(), 64 * kMiB);
  EXPECT_TRUE(eventually([&] { return idle() == 0; }, 60s)) << idle();
}

TEST(EmptyShared, IsATensorLikeOthers) {
  Workers workers{WorkersOptions{}};
  const CurrentWorker current(workers[0]);
  const Tensor x = empty_shared({3, 70'000}, at::TensorOptions(at::kFloat).requires_grad(true));
  EXPECT_EQ(x.sizes(), (at::IntArrayRef{3, 70'000}));
  EXPECT_TRUE(x.requires_grad());
  EXPECT_EQ(empty_shared({3}, at::kHalf).nbytes(), 6u);
  EXPECT_EQ(empty_shared({0, 5}).numel(), 0);
  EXPECT_EQ(empty_shared({}).numel(), 1);
  EXPECT_EQ(code_of([] { empty_shared({-1, 5}); }), Code::kInvalidArgument);
  EXPECT_EQ(code_of([] {
              empty_shared({int64_t{1} << 40, int64_t{1} << 40});
            }),
            Code::kInvalidArgument);
  EXPECT_EQ(code_of([] { empty_shared({5}, at::TensorOptions(at::kCUDA)); }),
            Code::kInvalidArgument);
  Tensor grown = empty_shared({100'000}, at::kByte);
  grown.fill_(7);
  grown.resize_({1'000'000});
  EXPECT_EQ(grown[99'999].item<int>(), 7);
}

TEST(EmptyShared, OutlivesItsWorker) {
  Tensor x;
  {
    Workers workers{WorkersOptions{}};
    x = empty_shared(workers[0], {100'000}, at::kByte);
  }
  EXPECT_EQ(x.fill_(1).sum().item<int64_t>(), 100'000);
}

}  // namespace
}  // namespace farspan::testing
