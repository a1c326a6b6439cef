// The rules under test: rref/PROTOCOL.md where calls fail half-way and workers end, over real
// connections.
#include <farspan/rpc/init/init.h>
#include <farspan/rpc/rpc.h>
#include <farspan/rref/remote.h>
#include <farspan/rref/rref.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <thread>

#include <farspan/rpc/init/rooms.h>

#include "support/agents.h"
#include "support/errors.h"
#include "support/held.h"
#include "support/workers.h"

namespace farspan::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Part {
  Part() { ++alive; }
  ~Part() { --alive; }
  std::shared_ptr<Part> another() { return std::make_shared<Part>(); }
  int64_t number() { return 7; }
  int64_t number_later();
  int64_t nest(int64_t depth);
  static std::atomic<int> alive;
};
std::atomic<int> Part::alive{0};
using PartRef = RRef<std::shared_ptr<Part>>;

// What functions wait for, until the test opens it.
Promise<void> gate;

std::shared_ptr<Part> make_part() { return std::make_shared<Part>(); }
Future<std::shared_ptr<Part>> make_part_later() {
  return gate.future().then([] { return std::make_shared<Part>(); });
}
std::shared_ptr<Part> fail_later() {
  gate.future().wait();
  throw std::runtime_error("no parts");
}
std::shared_ptr<Part> join_parts(const PartRef&, const PartRef&) { return make_part(); }
std::shared_ptr<Part> numbered_part(const PartRef&, int64_t) { return make_part(); }
int64_t count_parts(const PartRef&, const PartRef&) { return 2; }
std::vector<PartRef> good_and_bad() { return {PartRef(make_part()), PartRef()}; }
void await_part(const PartRef& ref) { ref.local_value(); }
std::atomic<int> counting{0};
Future<int64_t> count_later() {
  ++counting;
  return gate.future().then([]() -> int64_t { return 1; });
}

// What threads wait for, until the test opens it.
Promise<void> second_gate;
int64_t Part::number_later() {
  second_gate.future().wait();
  return 7;
}
// Calls a value of the other worker that is made only when the call is there.
Future<std::shared_ptr<Part>> make_part_when_asked() {
  Promise<std::shared_ptr<Part>> part;
  const auto worker = current_worker().shared_from_this();
  const auto look = [worker, part](const auto& self) -> void {
    if (RRefTable::of(*worker).counters().waits > 0) {
      part.set_value(make_part());
    } else {
      worker->messenger().call_at(Clock::now() + milliseconds(1), [self] { self(self); });
    }
  };
  look(look);
  return part.future();
}
int64_t Part::nest(int64_t depth) {
  if (depth == 0) return 0;
  Worker& here = current_worker();
  const auto next = here.remote(1 - here.rank(), make_part_when_asked);
  return 1 + next.rpc_sync(&Part::nest, depth - 1);
}

// A result that says when it is written into an answer.
struct Written {};
std::atomic<int> written{0};
Future<Written> written_later() {
  ++counting;
  return gate.future().then([] { return Written(); });
}

}  // namespace
}  // namespace farspan::testing

template <>
struct farspan::Codec<farspan::testing::Written> {
  static std::string type_name() { return "written"; }
  static void write(schema::Value::Builder, const testing::Written&, Writer&) {
    ++testing::written;
  }
  static testing::Written read(schema::Value::Reader, Reader&) { return {}; }
};

namespace farspan::testing {
namespace {

FARSPAN_REGISTER(make_part, make_part_later, fail_later, join_parts, numbered_part, count_parts,
                 good_and_bad, await_part, count_later, written_later, make_part_when_asked);
FARSPAN_REGISTER_METHODS(Part, another, number, number_later, nest);

// Converts to an argument, or fails to.
struct Unwilling {
  operator int64_t() const { throw std::runtime_error("not convertible"); }  // NOLINT
};

class RRefFailureTest : public ::testing::Test {
 protected:
  RRefFailureTest() {
    gate = {};
    for (int rank = 0; rank < workers.count(); ++rank) furnish(workers[rank]);
  }
  // Each test ends with every value released and nothing pending.
  void TearDown() override {
    expect_nothing_held(workers);
    // Its table has forgotten a value before the last of it goes.
    const Deadline deadline = Deadline::after(seconds(20));
    while (Part::alive > 0 && !deadline.expired()) std::this_thread::yield();
    EXPECT_EQ(Part::alive, 0);
  }
  Workers workers{{.count = 2, .transport = "unix", .settings = {}, .reactor = {}}};
};

// ---- messages that are never sent ----

TEST_F(RRefFailureTest, ACallThatCannotBeWrittenTakesItsReferencesBack) {
  const auto theirs = workers[0].remote("w1", make_part);
  const PartRef ours(workers[0], make_part());
  for (const PartRef& good : {theirs, ours}) {
    EXPECT_THROW(workers[0].rpc_sync("w1", count_parts, good, PartRef()), Error);
    EXPECT_THROW(workers[0].rpc_sync("w0", count_parts, good, PartRef()), Error);
    EXPECT_THROW(workers[0].remote("w1", join_parts, good, PartRef()), Error);
  }
}

TEST_F(RRefFailureTest, AResultThatCannotTravelTakesItsReferencesBack) {
  EXPECT_THROW(workers[0].rpc_sync("w1", good_and_bad), Error);
}

TEST_F(RRefFailureTest, ACreationThatIsNeverSentLeavesNothing) {
  const auto theirs = workers[0].remote("w1", make_part);
  for (int to = 0; to < 2; ++to) {
    EXPECT_THROW(workers[0].remote(to, join_parts, theirs, PartRef()), Error);
    EXPECT_THROW(workers[0].remote(to, numbered_part, theirs, Unwilling()), std::exception);
  }
}

// ---- values that are never made ----

TEST_F(RRefFailureTest, WhatAMethodOfAFailedValueWasToMakeFails) {
  for (int to = 0; to < 2; ++to) {
    gate = {};
    const auto failed = workers[0].remote(to, fail_later);
    const auto next = failed.remote(&Part::another);
    const auto last = next.remote(&Part::another);
    const auto use = last.rpc_async(&Part::number);
    gate.set_value();
    ASSERT_TRUE(use.wait_for(seconds(10)));
    ASSERT_TRUE(use.has_error());
    EXPECT_NE(std::string(use.error().what()).find("no parts"), std::string::npos);
  }
}

// ---- ends ----

TEST_F(RRefFailureTest, WaitsForAValueEndWithTheWorker) {
  const auto worker = workers.share(0);
  const auto pending = worker->remote("w0", make_part_later);
  const PartRef ready(*worker, make_part());
  std::thread waits([&] {
    EXPECT_EQ(code_of([&] { pending.local_value(CallOptions{.timeout = kNoTimeout}); }),
              Code::kShutdown);
  });
  while (RRefTable::of(*worker).counters().waits == 0) std::this_thread::yield();
  worker->shutdown(/*graceful=*/false);
  waits.join();
  EXPECT_EQ(code_of([&] { pending.local_value(); }), Code::kShutdown);
  EXPECT_EQ(code_of([&] { ready.local_value(); }), Code::kShutdown);
  gate.set_value();
}

TEST_F(RRefFailureTest, AShutdownThatWaitsForOthersEndsWithTheWorker) {
  const auto worker = workers.share(0);
  std::thread polite([&] { EXPECT_EQ(code_of([&] { worker->shutdown(); }), Code::kShutdown); });
  while (workers[1].counters().connections == 0) std::this_thread::yield();  // it has asked
  worker->shutdown(/*graceful=*/false);
  polite.join();
}

TEST_F(RRefFailureTest, AFunctionThatWaitsForAValueDoesNotHoldUpTheEnd) {
  const auto worker = workers.share(1);
  const auto pending = worker->remote("w1", make_part_later);
  const auto call =
      worker->rpc_async("w1", CallOptions{.timeout = kNoTimeout}, await_part, pending);
  while (RRefTable::of(*worker).counters().waits == 0) std::this_thread::yield();
  worker->shutdown(/*graceful=*/false);
  EXPECT_TRUE(call.has_error());
  gate.set_value();
}

TEST_F(RRefFailureTest, AValueThatComesAfterTheEndGoes) {
  const auto made = workers[0].remote("w1", make_part_later);
  const auto counted = workers[0].rpc_async("w1", count_later);
  const auto fetched = made.rpc_async(&Part::number);
  while (RRefTable::of(workers[1]).counters().waits == 0) std::this_thread::yield();
  workers[1].shutdown(/*graceful=*/false);
  EXPECT_TRUE(counted.wait_for(seconds(10)) && counted.has_error());
  EXPECT_TRUE(fetched.wait_for(seconds(10)) && fetched.has_error());
  gate.set_value();
}

// Two workers of which the test holds the only handles.
struct Pair {
  Pair() {
    gate = {};
    for (int rank = 0; rank < 2; ++rank) {
      const std::shared_ptr<agent::Messenger> messenger(std::shared_ptr<void>(), &agents[rank]);
      workers.push_back(Worker::make(messenger, {}));
      workers.back()->set_stop([this, rank] { agents[rank].stop(); });
      furnish(*workers.back());
    }
  }
  Agents agents;
  std::vector<std::shared_ptr<Worker>> workers;
};

TEST(RRefEnd, ARequestThatIsServedWhileTheWorkerGoesFails) {
  Pair pair;
  const auto made = pair.workers[0]->remote("w1", make_part_later);
  const auto use = made.rpc_async(&Part::number);
  while (RRefTable::of(*pair.workers[1]).counters().waits == 0) std::this_thread::yield();
  pair.workers[1]->set_stop([&] {
    gate.set_value();
    EXPECT_TRUE(use.wait_for(seconds(10)));
    pair.agents[1].stop();
  });
  pair.workers[1] = nullptr;
  ASSERT_TRUE(use.has_error());
  EXPECT_EQ(use.error().code(), Code::kShutdown);  // it was answered, not dropped
}

TEST(RRefEnd, AResultThatComesWhenTheWorkerIsGoneIsDropped) {
  Pair pair;
  counting = written = 0;
  const auto made = pair.workers[0]->remote("w1", make_part_later);
  const auto counted = pair.workers[0]->rpc_async("w1", written_later);
  while (counting == 0 || RRefTable::of(*pair.workers[1]).counters().owned == 0) {
    std::this_thread::yield();
  }
  pair.workers[1] = nullptr;
  gate.set_value();
  EXPECT_TRUE(counted.wait_for(seconds(10)) && counted.has_error());
  EXPECT_EQ(written, 0);  // that takes the worker
  EXPECT_EQ(Part::alive, 0);
}

// ---- the limit of threads ----

struct FewThreads {
  FewThreads() {
    gate = {};
    second_gate = {};
    for (int rank = 0; rank < workers.count(); ++rank) furnish(workers[rank]);
  }
  Workers workers{{.count = 2,
                   .transport = "unix",
                   .settings = {.rpc_timeout = Millis(15'000)},
                   .reactor = {.threads = 2, .max_threads = 4}}};
  NothingHeldAfter after{workers};
};

TEST(RRefLimit, CallsNestThroughValuesThatAreStillBeingMade) {
  FewThreads few;
  const auto first = few.workers[0].remote("w1", make_part_when_asked);
  EXPECT_EQ(first.rpc_sync(&Part::nest, 60), 60);
}

TEST(RRefLimit, CallsOfAValueThatComesLateGetOverloadedLikeOthers) {
  FewThreads few;
  RRefTable& owner = RRefTable::of(few.workers[1]);
  const auto late = few.workers[0].remote("w1", make_part_later);
  std::vector<Future<int64_t>> calls;
  for (int i = 0; i < 12; ++i) calls.push_back(late.rpc_async(&Part::number_later));
  while (owner.counters().waits < 12) std::this_thread::yield();
  const auto next = late.remote(&Part::another);
  while (owner.counters().waits < 13) std::this_thread::yield();
  gate.set_value();
  // Expect: all are turned away but those that have a thread.
  const auto ended = [](const Future<int64_t>& call) { return call.ready(); };
  const Deadline limit = Deadline::after(seconds(10));
  while (std::count_if(calls.begin(), calls.end(), ended) < 8 && !limit.expired()) {
    std::this_thread::yield();
  }
  second_gate.set_value();
  int answered = 0;
  for (const auto& call : calls) {
    ASSERT_TRUE(call.wait_for(seconds(10)));
    answered += !call.has_error();
    if (!call.has_error()) continue;
    EXPECT_EQ(call.error().code(), Code::kOverloaded) << call.error().what();
    EXPECT_EQ(call.error().worker(), "w1");
  }
  EXPECT_EQ(answered, 4);
  // Expect: a value that was to be made is never made, and says why.
  EXPECT_EQ(code_of([&] { next.rpc_sync(&Part::number); }), Code::kOverloaded);
}

// ---- timers ----

// Whoever performs what came of an earlier event last must not take a later one's timer away. The
// reader holds the table's lock most of the time, so that those who perform overtake each other.
TEST_F(RRefFailureTest, EveryWaitHasItsTimer) {
  RRefTable& table = RRefTable::of(workers[0]);
  const auto pending = workers[0].remote("w0", make_part_later);
  const RRefId id = pending.handle()->id().rref;
  std::vector<PartRef> held;
  for (int i = 0; i < 10; ++i) held.emplace_back(workers[0], nullptr);
  constexpr int kRounds = 1000, kOthers = 3;
  std::atomic<bool> over{false};
  std::barrier<> round(kOthers + 1);
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    while (!over) table.holdings();
  });
  for (int other = 0; other < kOthers; ++other) {
    threads.emplace_back([&] {
      for (round.arrive_and_wait(); !over; round.arrive_and_wait()) PartRef(workers[0], nullptr);
      round.arrive_and_drop();
    });
  }
  bool stuck = false;
  for (int i = 0; i < kRounds && !stuck; ++i) {
    round.arrive_and_wait();
    const auto value = table.local_value(id, 0, Deadline::after(std::chrono::microseconds(300)));
    stuck = !value.wait_for(seconds(2));
  }
  over = true;
  round.arrive_and_wait();
  for (auto& thread : threads) thread.join();
  EXPECT_FALSE(stuck);
  gate.set_value();
}

}  // namespace
}  // namespace farspan::testing
