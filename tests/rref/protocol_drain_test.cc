// The rules under test: rref/PROTOCOL.md, "Shutdown".
#include <gmock/gmock.h>

#include <algorithm>

#include "rref/protocol_cluster.h"

namespace farspan::rref::testing {
namespace {

using Loss = RRefProtocol::Loss;
using ::testing::HasSubstr;

TEST(RRefDrain, OfAnIdleWorkerIsOverAtOnce) {
  Cluster net(1);
  net[0].drain(Deadline::never(), net.now());
  ASSERT_TRUE(net.drained(0));
  EXPECT_TRUE(net.drained(0)->clean);
}

TEST(RRefDrain, InAnyOrderLeavesNothing) {
  std::vector<int> order = {0, 1, 2};
  do {
    Cluster net(3);
    // Everybody owns something that the next one uses and has passed on; one is a local value.
    for (int rank = 0; rank < 3; ++rank) {
      const HandleId id = net.make(rank, (rank + 1) % 3);
      net.pass(id, rank, (rank + 2) % 3);
      net.pass(id, rank, (rank + 1) % 3);
      net[rank].create_local("int");
    }
    for (const int rank : order) {
      net[rank].drain(Deadline(net.now() + 10s), net.now());
      net.advance(300ms);
    }
    for (const int rank : order) {
      ASSERT_TRUE(net.drained(rank));
      EXPECT_TRUE(net.drained(rank)->clean);
    }
    net.expect_empty();
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(RRefDrain, EndsTheLastOnesWithAcknowledgements) {
  Cluster net(2);
  net.make(0, 1);
  net[0].drain(Deadline::never(), net.now());
  net[1].drain(Deadline::never(), net.now());
  // Expect: the owner is done with the frame that frees its value, and its answer still goes out.
  EXPECT_EQ(net.deliver(), 2u);
  EXPECT_TRUE(net.drained(0)->clean);
  EXPECT_TRUE(net.drained(1)->clean);
}

TEST(RRefDrain, GivesUpAtItsDeadlineAndSaysWhatIsLeft) {
  Cluster net(3);
  const HandleId id = net[0].create(net.run(1), "Net made by remote(make_net)", net.now());
  net[1].on_creation(net.run(0), id, "Net made by remote(make_net)", net.now());
  net[1].value_set(id.rref, std::nullopt, net.now());
  net[0].creation_done(id, net.now());
  net.pass(id, 0, 2);
  net.deliver();
  net[1].drain(Deadline(net.now() + 1s), net.now());
  net.advance(999ms);
  EXPECT_FALSE(net.drained(1));
  EXPECT_FALSE(net.released(1, id));
  net.advance(1ms);
  ASSERT_TRUE(net.drained(1));
  EXPECT_FALSE(net.drained(1)->clean);
  ASSERT_EQ(net.drained(1)->leak_count, 1u);
  EXPECT_EQ(
      describe(net.drained(1)->leaks[0]),
      to_text(id.rref) + " (Net made by remote(make_net)): kept by handles on rank 0, rank 2");
  EXPECT_EQ(net.drained(1)->elapsed, 1s);
  EXPECT_TRUE(net.released(1, id));
  EXPECT_TRUE(net.empty(1));
}

TEST(RRefDrain, ReportsHandlesThatCouldNotBeGivenBack) {
  Cluster net(2);
  const HandleId id = net.make(0, 1);
  net[0].drain(Deadline(net.now() + 1s), net.now());
  net.lose_wire();
  net[0].on_timer(net.now() + 1s);
  net.lose_wire();
  ASSERT_TRUE(net.drained(0));
  EXPECT_FALSE(net.drained(0)->clean);
  EXPECT_EQ(net.drained(0)->unheard, 1u);
  EXPECT_EQ(code_of([&] { net[0].fork(id, net.run(1), net.now()); }), Code::kShutdown);
}

TEST(RRefDrain, RefusesWhatIsNew) {
  Cluster net(3);
  const HandleId own = net.make(0, 1);
  const HandleId other = net.make(2, 1);
  const ForkData data = net[2].fork(other, net.run(0), net.now());
  const HandleId asked = net[2].create(net.run(0), "int", net.now());
  net[0].drain(Deadline(net.now() + 1s), net.now());
  EXPECT_EQ(code_of([&] { net[0].create_local("int"); }), Code::kShutdown);
  EXPECT_EQ(code_of([&] { net[0].create(net.run(1), "int", net.now()); }), Code::kShutdown);
  EXPECT_EQ(code_of([&] { net[0].fork(own, net.run(1), net.now()); }), Code::kShutdown);
  EXPECT_EQ(code_of([&] { net[0].received(net.run(2), data, net.now()); }), Code::kShutdown);
  EXPECT_EQ(net[0].on_creation(net.run(2), asked, "int", net.now()),
            RRefProtocol::Creation::kRefused);
  net.deliver();
  // Expect: the sender of a reference that was refused hears so without asking.
  EXPECT_EQ(net[2].counters().pending_children, 0u);
}

TEST(RRefDrain, WaitsForCreationsUnderWay) {
  Cluster net(2);
  const HandleId id = net[0].create(net.run(1), "int", net.now());
  net[0].drain(Deadline::never(), net.now());
  net[1].drain(Deadline::never(), net.now());
  net.deliver();
  EXPECT_FALSE(net.drained(0));
  net[0].creation_failed(id, Error(Code::kShutdown, "refused"), net.now());
  net.deliver();
  EXPECT_TRUE(net.drained(0)->clean);
}

TEST(RRefDrain, DoesNotWaitForTheDeadOrLost) {
  for (const Loss loss : {Loss::kUnreachable, Loss::kEnded}) {
    for (const bool before : {false, true}) {
      Cluster net(2);
      const HandleId held = net.make(1, 0);
      net.make(0, 1);
      if (before) net.lose(0, 1, loss);
      net[0].drain(Deadline::never(), net.now());
      net.lose_wire();
      if (!before) net.lose(0, 1, loss);
      ASSERT_TRUE(net.drained(0));
      EXPECT_TRUE(net.released(0, held));
    }
  }
}

TEST(RRefDrain, EndsWaitsWithShutdown) {
  Cluster net(2);
  const HandleId id = net[0].create(net.run(1), "int", net.now());
  net[1].on_creation(net.run(0), id, "int", net.now());
  const WaitId wait = net[1].wait_value(net.run(0), id.rref, Deadline::never(), net.now());
  net[1].drain(Deadline(net.now() + 1s), net.now());
  net.advance(1s);
  EXPECT_EQ(net.result(1, wait), Code::kShutdown);
  // Expect: its function ends later; the value is destroyed then.
  EXPECT_FALSE(net.released(1, id));
  net[1].value_set(id.rref, std::nullopt, net.now());
  EXPECT_TRUE(net.released(1, id));
}

TEST(RRefDrain, TellsLateFramesThatItIsGone) {
  Cluster net(2);
  const HandleId id = net.make(0, 1);
  net[1].drain(Deadline(net.now()), net.now());
  net[1].on_timer(net.now());
  ASSERT_TRUE(net.drained(1));
  net.drop(0, id);
  EXPECT_EQ(net.deliver(), 2u);
  EXPECT_EQ(net[0].counters().unacknowledged, 0u);
  EXPECT_EQ(code_of([&] { net[0].create(net.run(1), "int", net.now()); }), Code::kDisconnected);
}

TEST(RRefDrain, BreaksCyclesBetweenWorkers) {
  Cluster net(2);
  // Each worker's value holds a handle to the other's: no drop will ever come.
  const HandleId a = net[0].create_local("Node"), b = net[1].create_local("Node");
  net.pass(a, 0, 1);
  net.pass(b, 1, 0);
  net.drop(0, a);
  net.drop(1, b);
  net.deliver();
  EXPECT_FALSE(net.released(0, a));
  net[0].drain(Deadline::never(), net.now());
  net[1].drain(Deadline::never(), net.now());
  net.deliver();
  EXPECT_TRUE(net.released(0, a));
  EXPECT_TRUE(net.released(1, b));
  EXPECT_TRUE(net.drained(0)->clean);
  EXPECT_TRUE(net.drained(1)->clean);
}

TEST(RRefHoldings, NameWhatIsHeldAndByWhom) {
  Cluster net(2);
  const HandleId id = net.make(0, 1);
  const ForkData data = net[0].fork(id, net.run(1), net.now());
  const std::vector<Leak> user = net[0].holdings();
  ASSERT_EQ(user.size(), 2u);
  EXPECT_THAT(describe(user[0]), HasSubstr("a handle here, the value is on rank 1"));
  EXPECT_THAT(describe(user[1]), HasSubstr("passed on to rank 1"));
  net[1].received(net.run(0), data, net.now());
  EXPECT_THAT(describe(net[1].holdings().at(0)), HasSubstr("rank 0; handles here: 1"));
}

TEST(RRefCounters, AreExact) {
  Cluster net(3);
  const HandleId id = net.make(0, 1);
  const HandleId there = net.pass(id, 0, 2);
  const HandleId making = net[0].create(net.run(1), "int", net.now());
  EXPECT_EQ(net[0].counters().users, 2u);
  EXPECT_EQ(net[0].counters().pending_users, 1u);
  EXPECT_EQ(net[0].counters().pending_children, 1u);
  EXPECT_EQ(net[1].counters().owned, 1u);
  EXPECT_EQ(net[1].counters().forks, 1u);
  EXPECT_EQ(net[2].counters().pending_users, 1u);
  EXPECT_EQ(net[2].counters().unacknowledged, 1u);
  net.deliver();
  EXPECT_EQ(net[0].counters().pending_children, 0u);
  EXPECT_EQ(net[1].counters().forks, 2u);
  EXPECT_EQ(net[2].counters().pending_users, 0u);
  net[0].creation_failed(making, Error(Code::kTimeout, "no reply"), net.now());
  EXPECT_EQ(net[0].counters().pending_users, 0u);
  net.drop(0, making);
  net.drop(0, id);
  net.drop(2, there);
  net.deliver();
  net.expect_empty();
}

TEST(RRefEnd, EndsAllThatWaitsAndRefusesWhatComes) {
  Cluster net(2);
  const HandleId making = net[0].create(net.run(0), "int", net.now());
  const HandleId ready = net[0].create_local("int"), used = net.make(0, 1);
  const WaitId wait = net[0].wait_value(net.run(0), making.rref, Deadline::never(), net.now());
  net[0].end(net.now());
  EXPECT_EQ(net.result(0, wait), Code::kShutdown);
  EXPECT_TRUE(net.released(0, ready));
  EXPECT_FALSE(net.released(0, making));
  EXPECT_TRUE(net.empty(0));
  EXPECT_TRUE(net[0].wake_at().is_never());
  EXPECT_EQ(net[0].failure_of(used)->code(), Code::kShutdown);
  const WaitId late = net[0].wait_value(net.run(0), ready.rref, Deadline::never(), net.now());
  EXPECT_EQ(net.result(0, late), Code::kShutdown);
  EXPECT_EQ(code_of([&] { net[0].create_local("int"); }), Code::kShutdown);
  // Expect: a value that is made all the same goes at once.
  net[0].value_set(making.rref, std::nullopt, net.now());
  EXPECT_TRUE(net.released(0, making));
}

}  // namespace
}  // namespace farspan::rref::testing
