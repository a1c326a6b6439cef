// The rules under test: rref/rref.h and rref/PROTOCOL.md, over every way in which workers can live
// and reach each other.
#include <ATen/ATen.h>

#include <mutex>
#include <thread>

#include <farspan/rref/remote.h>
#include <farspan/rref/rref.h>

#include "conformance/cluster_suite.h"
#include "support/processes.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

struct Counter {
  explicit Counter(int64_t start) : value(start) { ++alive; }
  ~Counter() { --alive; }
  int64_t add(int64_t n) { return value += n; }
  int64_t get() const { return value; }
  std::shared_ptr<Counter> copy() const { return std::make_shared<Counter>(value); }
  void break_down() { throw std::logic_error("worn out"); }
  std::atomic<int64_t> value;
  static std::atomic<int> alive;
};
std::atomic<int> Counter::alive{0};

std::shared_ptr<Counter> make_counter(int64_t start) { return std::make_shared<Counter>(start); }
std::shared_ptr<Counter> cannot_make() { throw std::runtime_error("no parts"); }
Tensor ones(int64_t n) { return at::ones({n}); }
using CounterRef = RRef<std::shared_ptr<Counter>>;
int64_t add_through(const CounterRef& ref, int64_t n) { return ref.rpc_sync(&Counter::add, n); }
int64_t add_through_all(const std::vector<CounterRef>& refs) {
  int64_t sum = 0;
  for (const auto& ref : refs) sum += ref.rpc_sync(&Counter::add, 1);
  return sum;
}
std::mutex held_mutex;
std::vector<CounterRef> held;
void hold(const CounterRef& ref) {
  std::lock_guard lock(held_mutex);
  held.push_back(ref);
}
int64_t release() {
  std::lock_guard lock(held_mutex);
  int64_t last = -1;
  for (const auto& ref : held) last = ref.rpc_sync(&Counter::get);
  held.clear();
  return last;
}
void release_all() {
  std::vector<CounterRef> last;  // destroyed outside the lock
  std::lock_guard lock(held_mutex);
  last.swap(held);
}
CounterRef pass_back(const CounterRef& ref) { return ref; }
CounterRef make_here(int64_t start) { return CounterRef(make_counter(start)); }
Tensor twice_of(const RRef<Tensor>& ref) { return ref.to_here() * 2; }
int64_t counters_alive() { return Counter::alive; }
// Made when the gate opens.
std::shared_ptr<Counter> make_at_gate(int64_t start) {
  pass_gate();
  return make_counter(start);
}
FARSPAN_REGISTER(make_counter, cannot_make, ones, add_through, add_through_all, hold, release,
                 pass_back, make_here, twice_of, counters_alive, make_at_gate);
FARSPAN_REGISTER_METHODS(Counter, add, get, copy, break_down);

class RRefSuite : public ClusterSuite {
 protected:
  // Each test ends with every value released; but in the World a dead worker's stay in its memory,
  // which is this process's.
  void TearDown() override {
    release_all();
    for (int rank = 0; started() && rank < 3; ++rank) {
      if (!cluster().serves(rank) || !cluster().serves(1)) continue;
      EXPECT_TRUE(eventually([&] { return w0().rpc_sync(rank, counters_alive) == 0; }))
          << "a value is left on w" << rank;
    }
    ClusterSuite::TearDown();
  }
};

}  // namespace

TEST_P(RRefSuite, MethodsRunWhereTheValueLives) {
  start();
  auto ref = w0().remote("w1", make_counter, 5);
  EXPECT_EQ(ref.rpc_sync(&Counter::add, 2), 7);
  EXPECT_EQ(ref.rpc_async(&Counter::add, 1).wait(), 8);
  EXPECT_EQ(ref.owner().name, "w1");
  EXPECT_FALSE(ref.is_owner());
  EXPECT_TRUE(eventually([&] { return ref.confirmed_by_owner(); }));
  EXPECT_THROW(ref.local_value(), Error);
}

TEST_P(RRefSuite, ValuesAreCopiedHere) {
  start();
  EXPECT_TRUE(at::equal(w0().remote("w1", ones, 4).to_here(), at::ones({4})));
  EXPECT_TRUE(at::equal(w0().remote("w0", ones, 4).to_here(), at::ones({4})));
}

TEST_P(RRefSuite, AWorkerMayOwnWhatItRefersTo) {
  start();
  CounterRef ref(w0(), make_counter(3));
  EXPECT_TRUE(ref.is_owner());
  EXPECT_EQ(ref.local_value()->value, 3);
  EXPECT_EQ(w0().rpc_sync("w1", add_through, ref, 4), 7);
  EXPECT_EQ(ref.rpc_sync(&Counter::get), 7);
}

TEST_P(RRefSuite, ReferencesTravelFromUserToUserOwnerAndBack) {
  start();
  auto ref = w0().remote("w1", make_counter, 0);
  EXPECT_EQ(w0().rpc_sync("w2", add_through, ref, 1), 1);  // user to user
  EXPECT_EQ(w0().rpc_sync("w1", add_through, ref, 1), 2);  // user to owner
  EXPECT_EQ(w0().rpc_sync("w0", add_through, ref, 1), 3);  // to itself
  auto back = w0().rpc_sync("w2", pass_back, ref);
  EXPECT_EQ(back.rpc_sync(&Counter::get), 3);
  EXPECT_TRUE(back == ref);
  auto made = w0().rpc_sync("w2", make_here, 9);  // owner to user, in a result
  EXPECT_EQ(made.owner().name, "w2");
  EXPECT_EQ(made.rpc_sync(&Counter::get), 9);
}

TEST_P(RRefSuite, ReferencesTravelInsideContainers) {
  start();
  std::vector<CounterRef> refs;
  for (int i = 0; i < 20; ++i) refs.push_back(w0().remote(i % 3, make_counter, i));
  EXPECT_EQ(w0().rpc_sync("w2", add_through_all, refs), 20 * 21 / 2);
}

TEST_P(RRefSuite, TheValueLivesAsLongAsAnyHandle) {
  start();
  w0().rpc_sync("w2", hold, w0().remote("w1", make_counter, 11));
  // Expect: the only handle left is on w2, and it works.
  EXPECT_EQ(w0().rpc_sync("w2", release), 11);
}

TEST_P(RRefSuite, MethodsMayMakeFurtherValues) {
  start();
  auto ref = w0().remote("w1", make_counter, 1);
  auto copy = ref.remote(&Counter::copy);
  EXPECT_EQ(copy.rpc_sync(&Counter::get), 1);
  ref.rpc_sync(&Counter::add, 10);
  EXPECT_EQ(copy.rpc_sync(&Counter::get), 1);
  EXPECT_EQ(copy.owner().name, "w1");
}

TEST_P(RRefSuite, WhatCreationThrewComesWithTheFirstUse) {
  start();
  auto ref = w0().remote("w1", cannot_make);
  EXPECT_THAT(error_of([&] { ref.rpc_sync(&Counter::get); }).what(), HasSubstr("no parts"));
}

// Of remote() with a method of a value that cannot be made.
TEST_P(RRefSuite, WhatHasNoObjectIsNotMadeAndLeavesNothing) {
  start();
  auto ref = w0().remote("w1", cannot_make);
  auto copy = ref.remote(&Counter::copy);
  auto copy_of_copy = copy.remote(&Counter::copy);
  EXPECT_THAT(error_of([&] { copy_of_copy.rpc_sync(&Counter::get); }).what(),
              HasSubstr("no parts"));
  EXPECT_THAT(error_of([&] { copy.rpc_sync(&Counter::get); }).what(), HasSubstr("no parts"));
}

TEST_P(RRefSuite, WhatAMethodThrewComesBack) {
  start();
  auto ref = w0().remote("w1", make_counter, 1);
  const Error error = error_of([&] { ref.rpc_sync(&Counter::break_down); });
  EXPECT_EQ(error.remote_type(), "std::logic_error");
  EXPECT_EQ(error.message(), "worn out");
}

TEST_P(RRefSuite, ManyCallsShareOne) {
  start();
  auto ref = w0().remote("w1", make_counter, 0);
  std::vector<Future<int64_t>> calls;
  for (int i = 0; i < 100; ++i) calls.push_back(w0().rpc_async(i % 3, add_through, ref, 1));
  wait_all(calls);
  EXPECT_EQ(ref.rpc_sync(&Counter::get), 100);
}

TEST_P(RRefSuite, ManyThreadsShareOne) {
  if (!GetParam().real) GTEST_SKIP() << "the World has one thread of a test";
  start();
  auto ref = w0().remote("w1", make_counter, 0);
  Worker& here = w0();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 50; ++i) here.rpc_sync(thread % 3, add_through, ref, 1);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ref.rpc_sync(&Counter::get), 200);
}

TEST_P(RRefSuite, ChainsOfReferencesWork) {
  start();
  auto x = w0().remote("w1", ones, 3);
  auto y = w0().remote("w2", twice_of, x);
  auto z = w0().remote("w1", twice_of, y);
  EXPECT_TRUE(at::equal(z.to_here(), at::ones({3}) * 4));
}

TEST_P(RRefSuite, AReferenceIsConfirmedOnceItsValueIsMade) {
  start();
  auto ref = w0().remote("w1", make_at_gate, 2);
  ASSERT_TRUE(eventually([&] { return w0().rpc_sync("w1", waiting_at_gate) == 1; }));
  EXPECT_FALSE(ref.confirmed_by_owner());
  w0().rpc_sync("w1", open_gate);
  EXPECT_TRUE(eventually([&] { return ref.confirmed_by_owner(); }));
  EXPECT_EQ(ref.rpc_sync(&Counter::get), 2);
}

TEST_P(RRefSuite, AReferenceThatIsDroppedBeforeItsValueIsMadeLeavesNothing) {
  start();
  std::ignore = w0().remote("w1", make_at_gate, 2);
  ASSERT_TRUE(eventually([&] { return w0().rpc_sync("w1", waiting_at_gate) == 1; }));
  EXPECT_FALSE(held().empty());
  w0().rpc_sync("w1", open_gate);
}

TEST_P(RRefSuite, WhatADeadWorkerHeldIsReleasedAndWhatItOwnedFailsByName) {
  if (GetParam().real) GTEST_SKIP() << "the lease of a dead worker takes half a minute";
  start();
  spoil();
  auto theirs = w0().remote("w1", make_counter, 1);
  auto of_w2 = w0().remote("w2", make_counter, 2);
  {
    CounterRef own(w0(), make_counter(3));
    w0().rpc_sync("w1", hold, own);
    w0().rpc_sync("w1", hold, of_w2);
  }
  cluster().kill(1);
  const Error error = error_of([&] { theirs.rpc_sync(&Counter::get); });
  EXPECT_EQ(error.worker(), "w1");
  EXPECT_EQ(of_w2.rpc_sync(&Counter::get), 2);
}

namespace {
FARSPAN_OVER_EVERY_CLUSTER(RRefSuite);
}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) {
  return farspan::testing::run_tests(argc, argv, {{"worker", farspan::testing::be_worker}});
}
