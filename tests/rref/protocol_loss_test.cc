// The rules under test: rref/PROTOCOL.md, "Links" and "Losing a worker".
#include "rref/protocol_cluster.h"

namespace farspan::rref::testing {
namespace {

using Carrier = RRefProtocol::Carrier;
using Creation = RRefProtocol::Creation;
using Loss = RRefProtocol::Loss;
using Value = RRefProtocol::Value;

TEST(RRefRetry, GoesOnUntilItIsAcknowledgedAndBacksOff) {
  Cluster net(2);
  const HandleId id = net.make(0, 1);
  net.drop(0, id);
  std::vector<Millis> waits;
  TimePoint last = net.now();
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(net.lose_wire(), 1u);
    const TimePoint next = net[0].wake_at().at();
    waits.push_back(std::chrono::duration_cast<Millis>(next - last));
    last = next;
    net[0].on_timer(next);
  }
  EXPECT_EQ(waits, (std::vector<Millis>{200ms, 400ms, 800ms, 1600ms, 3200ms, 5s, 5s, 5s}));
  net.deliver();
  EXPECT_TRUE(net.released(1, id));
  EXPECT_TRUE(net[0].wake_at().is_never());
  net.expect_empty();
}

TEST(RRefRetry, StopsWhenThePeerIsLostAndGoesOnWhenItIsBack) {
  Cluster net(2);
  const HandleId id = net.make(0, 1);
  net.drop(0, id);
  net.lose_wire();
  net.lose(0, 1);
  net[0].on_timer(net[0].wake_at().at());
  net.collect();
  // Expect: no item is repeated, a question goes out.
  ASSERT_EQ(net.wire.size(), 1u);
  EXPECT_TRUE(net.wire[0].probe);
  EXPECT_TRUE(net.wire[0].items.empty());
  net.deliver();
  EXPECT_TRUE(net.released(1, id));
  net.expect_empty();
}

TEST(RRefLoss, ALostWorkerKeepsItsHandlesForItsLease) {
  Cluster net(2);
  const HandleId id = net.make(0, 1);
  net.lose(1, 0);
  for (int second = 0; second < 29; ++second) {
    if (second % 10 == 0) net.lose_wire();
    net.lose_wire();
    net[1].on_timer(net.now() + std::chrono::seconds(second));
  }
  net.lose_wire();
  EXPECT_EQ(net[1].value(id.rref), Value::kReady);
  net[1].on_peer_joined(net.run(0), "w0", net.now() + 29s);
  net[1].on_timer(net.now() + 10min);
  EXPECT_EQ(net[1].value(id.rref), Value::kReady);
}

TEST(RRefLoss, WhoIsHeardOfLateIsAnswered) {
  Cluster net(2);
  const HandleId id = net.make(0, 1);
  net.lose(1, 0);
  EXPECT_EQ(net.lose_wire(), 0u);
  // Its last request, which had to wait for a thread: it may be no more.
  net[1].wait_value(net.run(0), id.rref, Deadline::never(), net.now());
  EXPECT_EQ(net.lose_wire(), 1u);
}

TEST(RRefLoss, ADeadUsersForksAreReclaimedAfterLeaseAndForkTimeout) {
  Cluster net(2);
  const HandleId id = net.make(0, 1);
  net.lose(1, 0);
  const TimePoint lost = net.now();
  net[1].on_timer(lost + 30s);
  net[1].on_timer(lost + 59s);
  EXPECT_EQ(net[1].value(id.rref), Value::kReady);
  net[1].on_timer(lost + 60s);
  EXPECT_TRUE(net.released(1, id));
  EXPECT_TRUE(net.empty(1));
}

TEST(RRefLoss, ACertainDeathNeedsNoLease) {
  Cluster net(2);
  const HandleId id = net.make(0, 1);
  net.lose(1, 0, Loss::kEnded);
  net[1].on_timer(net.now() + 29s);
  EXPECT_EQ(net[1].value(id.rref), Value::kReady);
  net[1].on_timer(net.now() + 30s);
  EXPECT_TRUE(net.released(1, id));
}

TEST(RRefLoss, WhatADyingUserPassedOnIsKept) {
  Cluster net(3);
  const HandleId id = net.make(0, 1);
  const ForkData data = net[0].fork(id, net.run(2), net.now());
  net.lose(1, 0, Loss::kEnded);
  net.lose(2, 0, Loss::kUnreachable);
  net[1].on_timer(net.now() + 29s);
  // Expect: its message may come late; the new handle keeps the value, the dead one does not.
  const HandleId there = net[2].received(net.run(0), data, net.now() + 29s);
  net.collect();
  std::erase_if(net.wire, [&](const ControlFrame& f) { return f.to == net.run(0); });
  net.deliver();
  EXPECT_TRUE(net[2].confirmed(there));
  net[1].on_timer(net.now() + 30s);
  EXPECT_EQ(net[1].value(id.rref), Value::kReady);
  EXPECT_EQ(net[1].counters().forks, 1u);
  net.drop(2, there);
  net.deliver();
  EXPECT_TRUE(net.released(1, id));
}

TEST(RRefLoss, WhatComesTooLateIsRefusedAndSaysReleased) {
  Cluster net(3);
  const HandleId id = net.make(0, 1);
  const ForkData data = net[0].fork(id, net.run(2), net.now());
  net.lose(1, 0, Loss::kEnded);
  net[1].on_timer(net.now() + 31s);
  const HandleId there = net[2].received(net.run(0), data, net.now());
  const WaitId wait = net[2].wait_confirmed(std::span(&there, 1), Deadline::never(), net.now());
  net.deliver();
  EXPECT_EQ(net.result(2, wait), Code::kNotFound);
  EXPECT_NE(net.error(2, wait).message().find("released"), std::string::npos);
}

TEST(RRefLoss, ALostOwnerFailsItsUsersAtOnceAndIsNamed) {
  Cluster net(3);
  const HandleId id = net.make(0, 1);
  const HandleId there = net.pass(id, 0, 2);
  const WaitId wait = net[2].wait_confirmed(std::span(&there, 1), Deadline::never(), net.now());
  net.lose_wire();
  net.lose(2, 1);
  EXPECT_EQ(net.result(2, wait), Code::kDisconnected);
  EXPECT_EQ(net.error(2, wait).worker(), "w1");
  ASSERT_TRUE(net[2].failure_of(there));
  EXPECT_EQ(net[2].failure_of(there)->worker(), "w1");
  EXPECT_EQ(code_of([&] { net[2].fork(there, net.run(0), net.now()); }), Code::kDisconnected);
  const WaitId next = net[2].wait_confirmed(std::span(&there, 1), Deadline::never(), net.now());
  EXPECT_EQ(net.result(2, next), Code::kDisconnected);

  // It is back within its lease.
  net[2].on_peer_joined(net.run(1), "w1", net.now());
  net.advance(1s);
  EXPECT_FALSE(net[2].failure_of(there));
  EXPECT_TRUE(net[2].confirmed(there));
}

TEST(RRefLoss, ADeadOwnerFreesTheParentsOfWhatItWasAskedToCount) {
  Cluster net(3);
  const HandleId id = net.make(0, 1);
  const HandleId there = net.pass(id, 0, 2);
  net.lose_wire();
  net.lose(0, 1, Loss::kEnded);
  net.lose(2, 1, Loss::kEnded);
  net.drop(0, id);
  EXPECT_EQ(net[0].counters().users, 1u);  // it waits for w2's word
  net.deliver();
  EXPECT_EQ(net[0].counters().users, 0u);
  EXPECT_EQ(net[2].failure_of(there)->code(), Code::kDisconnected);
  net.drop(2, there);
  EXPECT_TRUE(net.empty(0));
  EXPECT_TRUE(net.empty(2));
}

TEST(RRefLoss, ADeadReceiverFreesTheHandleThatWaitsForIt) {
  Cluster net(3);
  const HandleId id = net.make(0, 1);
  const ForkData data = net[0].fork(id, net.run(2), net.now());
  net.drop(0, id);
  net.lose(0, 2);
  net.deliver();
  EXPECT_EQ(net[0].counters().users, 1u);  // it may come back
  net.end_carrier(0, 2, data, Carrier::kFailed);
  net.lose(0, 2, Loss::kEnded);
  net.deliver();
  EXPECT_TRUE(net.released(1, id));
  net.expect_empty();
}

TEST(RRefLoss, ACreatorThatDiesFailsThoseWhoWaitForItsValue) {
  Cluster net(3);
  const HandleId id = net[0].create(net.run(1), "int", net.now());
  const HandleId there = net.pass(id, 0, 2);
  net.deliver();
  const WaitId wait = net[1].wait_value(net.run(2), id.rref, Deadline::never(), net.now());
  net.lose(1, 0, Loss::kEnded);
  EXPECT_EQ(net.result(1, wait), Code::kDisconnected);
  EXPECT_EQ(net.error(1, wait).worker(), "w0");
  // Expect: its request is refused, should it come after all.
  EXPECT_EQ(net[1].on_creation(net.run(0), id, "int", net.now()), Creation::kRefused);
  net.drop(2, there);
  net.deliver();
  EXPECT_TRUE(net.empty(1));
}

TEST(RRefLoss, ALostRequesterNoLongerWaits) {
  Cluster net(2);
  const HandleId id = net[0].create(net.run(1), "int", net.now());
  net[1].on_creation(net.run(0), id, "int", net.now());
  const WaitId wait = net[1].wait_value(net.run(0), id.rref, Deadline::never(), net.now());
  net.lose(1, 0);
  EXPECT_EQ(net.result(1, wait), Code::kDisconnected);
  EXPECT_EQ(net[1].counters().waits, 0u);
}

TEST(RRefRestart, ANewRunIsNotTakenForTheOldOne) {
  Cluster net(2);
  const HandleId held = net.make(1, 0);  // w0 owns, w1 holds
  const HandleId holds = net.make(0, 1);
  const WorkerRun old = net.run(1);
  net.restart(1);
  net.introduce(1);
  EXPECT_EQ(net[0].failure_of(holds)->code(), Code::kDisconnected);
  // Expect: what the old run still sends is answered with a fence, and does nothing.
  ControlFrame late;
  late.from = old;
  late.to = net.run(0);
  late.items = {{ControlKind::kCreatorDelete, held.rref, held.fork}};
  net[0].on_control(late, net.now());
  net.collect();
  ASSERT_EQ(net.wire.size(), 1u);
  EXPECT_TRUE(net.wire[0].fence);
  EXPECT_EQ(net.wire[0].to, old);
  net.wire.clear();
  EXPECT_EQ(net[0].value(held.rref), Value::kReady);
  EXPECT_EQ(net[0].on_creation(old, {{old, net.run(0), 9}, {old, 9}}, "int", net.now()),
            Creation::kRefused);
  net.advance(31s);
  EXPECT_TRUE(net.released(0, held));

  const HandleId fresh = net.make(1, 0);
  net.drop(1, fresh);
  net.drop(0, holds);
  net.deliver();
  EXPECT_TRUE(net.released(0, fresh));
  net.expect_empty();
}

TEST(RRefRestart, AReferenceToAnEarlierRunFailsAtItsReceiver) {
  Cluster net(3);
  const HandleId id = net.make(0, 1);
  const ForkData data = net[0].fork(id, net.run(2), net.now());
  net.restart(1);
  net.introduce(1);
  EXPECT_EQ(code_of([&] { net[2].received(net.run(0), data, net.now()); }), Code::kDisconnected);
  net.drop(0, id);
  net.deliver();
  net.expect_empty();
}

TEST(RRefFence, AfterItsLeaseAWorkerIsToldAndItsHandlesFail) {
  Cluster net(2);
  const HandleId id = net.make(0, 1);
  net.lose(1, 0);
  net[1].on_timer(net.now() + 30s);
  net[1].on_timer(net.now() + 60s);
  EXPECT_TRUE(net.released(1, id));
  net.lose_wire();
  // w0 was only out of reach; it noticed nothing, and goes on.
  EXPECT_FALSE(net[0].failure_of(id));
  net.drop(0, id);
  net.deliver();
  net.expect_empty();
  EXPECT_EQ(code_of([&] { net[0].create(net.run(1), "int", net.now()); }), Code::kDisconnected);
}

TEST(RRefFence, IsAnnouncedToAWorkerThatNoticedNothing) {
  Cluster net(2);
  const HandleId id = net.make(0, 1);
  net.lose(0, 1);
  net[0].on_timer(net.now() + 30s);
  net.drop(0, id);
  EXPECT_EQ(net.lose_wire(), 1u);  // the first notice
  // Expect: w1, which never lost w0, is told again, lets go of the handle, and answers once.
  net[0].on_timer(net.now() + 60s);
  EXPECT_EQ(net.deliver(), 2u);
  net[1].on_timer(net.now() + 30s);
  EXPECT_TRUE(net.released(1, id));
  EXPECT_TRUE(net[0].wake_at().is_never());
  net.expect_empty();
}

TEST(RRefFence, IsNotAnnouncedForEver) {
  Cluster net(2);
  net.lose(0, 1);
  int notices = 0;
  while (!net[0].wake_at().is_never()) {
    net[0].on_timer(net[0].wake_at().at());
    net.collect();
    for (const ControlFrame& frame : std::exchange(net.wire, {})) notices += frame.fence;
  }
  EXPECT_GT(notices, 5);
  EXPECT_LT(notices, 20);
}

TEST(RRefFence, ADuplicatedFrameThatRevivesDoesNotResurrectTheDead) {
  Cluster net(2);
  const HandleId id = net.make(0, 1);
  net.drop(0, id);
  net.collect();
  const ControlFrame late = net.wire.at(0);
  net.lose(1, 0, Loss::kEnded);
  net[1].on_timer(net.now() + 30s);
  EXPECT_TRUE(net.released(1, id));
  net.arrive(late);
  EXPECT_TRUE(net.empty(1));
}

}  // namespace
}  // namespace farspan::rref::testing
