// The rules under test: rref/rref.h and rref/PROTOCOL.md, over real connections.
#include <farspan/farspan.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

#include <farspan/rpc/init/rooms.h>

#include "support/workers.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using std::chrono::milliseconds;
using std::chrono::seconds;

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
CounterRef pass_back(const CounterRef& ref) { return ref; }
CounterRef make_here(int64_t start) { return CounterRef(make_counter(start)); }
Tensor twice_of(const RRef<Tensor>& ref) { return ref.to_here() * 2; }
FARSPAN_REGISTER(make_counter, cannot_make, ones, add_through, add_through_all, hold, release,
                 pass_back, make_here, twice_of);
FARSPAN_REGISTER_METHODS(Counter, add, get, copy, break_down);

class RRefTest : public ::testing::TestWithParam<const char*> {
 protected:
  RRefTest() {
    for (int rank = 0; rank < workers.count(); ++rank) furnish(workers[rank]);
  }
  // Each test ends with every value released and nothing pending.
  void TearDown() override {
    const Deadline deadline = Deadline::after(seconds(10));
    const auto left = [&] {
      size_t count = static_cast<size_t>(Counter::alive);
      for (int rank = 0; rank < workers.count(); ++rank) {
        const auto c = RRefTable::of(workers[rank]).counters();
        count += c.owned + c.users + c.forks + c.pending_children;
      }
      return count;
    };
    while (left() > 0 && !deadline.expired()) std::this_thread::sleep_for(milliseconds(2));
    EXPECT_EQ(left(), 0u);
    for (int rank = 0; rank < workers.count(); ++rank) {
      for (const auto& line : RRefTable::of(workers[rank]).holdings()) ADD_FAILURE() << line;
    }
  }
  Workers workers{{.count = 3, .transport = GetParam(), .settings = {}, .reactor = {}}};
};

TEST_P(RRefTest, MethodsRunWhereTheValueLives) {
  auto ref = workers[0].remote("w1", make_counter, 5);
  EXPECT_EQ(ref.rpc_sync(&Counter::add, 2), 7);
  EXPECT_EQ(ref.rpc_async(&Counter::add, 1).wait(), 8);
  EXPECT_EQ(ref.owner().name, "w1");
  EXPECT_FALSE(ref.is_owner());
  EXPECT_TRUE(ref.confirmed_by_owner());
  EXPECT_THROW(ref.local_value(), Error);
}

TEST_P(RRefTest, ValuesAreCopiedHere) {
  EXPECT_TRUE(at::equal(workers[0].remote("w1", ones, 4).to_here(), at::ones({4})));
  EXPECT_TRUE(at::equal(workers[0].remote("w0", ones, 4).to_here(), at::ones({4})));
}

TEST_P(RRefTest, AWorkerMayOwnWhatItRefersTo) {
  CounterRef ref(workers[0], make_counter(3));
  EXPECT_TRUE(ref.is_owner());
  EXPECT_EQ(ref.local_value()->value, 3);
  EXPECT_EQ(workers[0].rpc_sync("w1", add_through, ref, 4), 7);
  EXPECT_EQ(ref.rpc_sync(&Counter::get), 7);
}

TEST_P(RRefTest, ReferencesTravelFromUserToUserOwnerAndBack) {
  auto ref = workers[0].remote("w1", make_counter, 0);
  EXPECT_EQ(workers[0].rpc_sync("w2", add_through, ref, 1), 1);  // user to user
  EXPECT_EQ(workers[0].rpc_sync("w1", add_through, ref, 1), 2);  // user to owner
  EXPECT_EQ(workers[0].rpc_sync("w0", add_through, ref, 1), 3);  // to itself
  auto back = workers[0].rpc_sync("w2", pass_back, ref);
  EXPECT_EQ(back.rpc_sync(&Counter::get), 3);
  EXPECT_TRUE(back == ref);
  auto made = workers[0].rpc_sync("w2", make_here, 9);  // owner to user, in a result
  EXPECT_EQ(made.owner().name, "w2");
  EXPECT_EQ(made.rpc_sync(&Counter::get), 9);
}

TEST_P(RRefTest, ReferencesTravelInsideContainers) {
  std::vector<CounterRef> refs;
  for (int i = 0; i < 20; ++i) refs.push_back(workers[0].remote(i % 3, make_counter, i));
  EXPECT_EQ(workers[0].rpc_sync("w2", add_through_all, refs), 20 * 21 / 2);
}

TEST_P(RRefTest, TheValueLivesAsLongAsAnyHandle) {
  workers[0].rpc_sync("w2", hold, workers[0].remote("w1", make_counter, 11));
  // Expect: the only handle left is on w2, and it works.
  EXPECT_EQ(workers[0].rpc_sync("w2", release), 11);
}

TEST_P(RRefTest, MethodsMayMakeFurtherValues) {
  auto ref = workers[0].remote("w1", make_counter, 1);
  auto copy = ref.remote(&Counter::copy);
  EXPECT_EQ(copy.rpc_sync(&Counter::get), 1);
  ref.rpc_sync(&Counter::add, 10);
  EXPECT_EQ(copy.rpc_sync(&Counter::get), 1);
  EXPECT_EQ(copy.owner().name, "w1");
}

TEST_P(RRefTest, WhatCreationThrewComesWithTheFirstUse) {
  auto ref = workers[0].remote("w1", cannot_make);
  try {
    ref.rpc_sync(&Counter::get);
    FAIL() << "it must throw";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("no parts"), std::string::npos) << e.what();
  }
}

TEST_P(RRefTest, WhatAMethodThrewComesBack) {
  auto ref = workers[0].remote("w1", make_counter, 1);
  try {
    ref.rpc_sync(&Counter::break_down);
    FAIL() << "it must throw";
  } catch (const Error& e) {
    EXPECT_EQ(e.remote_type(), "std::logic_error");
    EXPECT_EQ(e.message(), "worn out");
  }
}

TEST_P(RRefTest, ManyThreadsShareOne) {
  auto ref = workers[0].remote("w1", make_counter, 0);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 50; ++i) workers[0].rpc_sync(thread % 3, add_through, ref, 1);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(ref.rpc_sync(&Counter::get), 200);
}

TEST_P(RRefTest, ChainsOfReferencesWork) {
  auto x = workers[0].remote("w1", ones, 3);
  auto y = workers[0].remote("w2", twice_of, x);
  auto z = workers[0].remote("w1", twice_of, y);
  EXPECT_TRUE(at::equal(z.to_here(), at::ones({3}) * 4));
}

INSTANTIATE_TEST_SUITE_P(Transports, RRefTest, ::testing::Values("unix", "tcp", "loopback"),
                         [](const auto& transport) { return std::string(transport.param); });

}  // namespace
}  // namespace farspan::testing
