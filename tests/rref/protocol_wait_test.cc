// The rules under test: rref/PROTOCOL.md, "Waiting".
#include "rref/protocol_cluster.h"

namespace farspan::rref::testing {
namespace {

TEST(RRefConfirmation, AFunctionWaitsForAllItsReferences) {
  Cluster net(4);
  const HandleId a = net.make(0, 1), b = net.make(0, 3);
  const HandleId handles[] = {net.pass(a, 0, 2), net.pass(b, 0, 2)};
  const WaitId wait = net[2].wait_confirmed(handles, Deadline::never(), net.now());
  net.collect();
  const std::vector<ControlFrame> frames = std::exchange(net.wire, {});
  ASSERT_EQ(frames.size(), 2u);
  net.arrive(frames[0]);
  net.deliver();
  EXPECT_FALSE(net.result(2, wait));
  net.arrive(frames[1]);
  net.deliver();
  EXPECT_EQ(net.result(2, wait), Code::kOk);
}

TEST(RRefConfirmation, OfConfirmedHandlesIsThereAtOnce) {
  Cluster net(2);
  const HandleId handles[] = {net[0].create_local("int"), net.make(0, 1)};
  const WaitId wait = net[0].wait_confirmed(handles, Deadline::never(), net.now());
  EXPECT_EQ(net.result(0, wait), Code::kOk);
  EXPECT_EQ(net.result(0, net[0].wait_confirmed({}, Deadline::never(), net.now())), Code::kOk);
}

TEST(RRefConfirmation, IsNeverWaitedForForEver) {
  Cluster net(3);
  const HandleId there = net.pass(net.make(0, 1), 0, 2);
  const WaitId wait = net[2].wait_confirmed(std::span(&there, 1), Deadline::never(), net.now());
  const TimePoint begun = net.now();
  while (net[2].counters().waits > 0 && net[2].wake_at().at() <= begun + 2min) {
    net.lose_wire();
    net[2].on_timer(net[2].wake_at().at());
  }
  EXPECT_EQ(net.result(2, wait), Code::kTimeout);
  EXPECT_EQ(net.error(2, wait).worker(), "w1");
  EXPECT_EQ(net.error(2, wait).elapsed(), 60s);
}

TEST(RRefConfirmation, EndsAtItsDeadline) {
  Cluster net(3);
  const HandleId there = net.pass(net.make(0, 1), 0, 2);
  const WaitId wait =
      net[2].wait_confirmed(std::span(&there, 1), Deadline(net.now() + 50ms), net.now());
  net.lose_wire();
  net[2].on_timer(net.now() + 49ms);
  EXPECT_FALSE(net.result(2, wait));
  net[2].on_timer(net.now() + 50ms);
  EXPECT_EQ(net.result(2, wait), Code::kTimeout);
}

TEST(RRefConfirmation, OfOnesOwnCreationWaitsAsLongAsItTakes) {
  Cluster net(2);
  const HandleId id = net[0].create(net.run(1), "int", net.now());
  const WaitId wait = net[0].wait_confirmed(std::span(&id, 1), Deadline::never(), net.now());
  net.advance(1h);
  EXPECT_FALSE(net.result(0, wait));
  net[0].creation_done(id, net.now());
  EXPECT_EQ(net.result(0, wait), Code::kOk);
}

TEST(RRefConfirmation, OfAFailedCreationFails) {
  Cluster net(2);
  const HandleId id = net[0].create(net.run(1), "int", net.now());
  const WaitId wait = net[0].wait_confirmed(std::span(&id, 1), Deadline::never(), net.now());
  net[0].creation_failed(id, Error(Code::kRemote, "it threw"), net.now());
  EXPECT_EQ(net.result(0, wait), Code::kRemote);
}

TEST(RRefConfirmation, OfADroppedHandleIsCancelled) {
  Cluster net(3);
  const HandleId there = net.pass(net.make(0, 1), 0, 2);
  const WaitId wait = net[2].wait_confirmed(std::span(&there, 1), Deadline::never(), net.now());
  net.drop(2, there);
  EXPECT_EQ(net.result(2, wait), Code::kCancelled);
}

TEST(RRefValue, IsWaitedForUntilItIsSet) {
  Cluster net(2);
  const HandleId id = net[0].create(net.run(1), "int", net.now());
  net[1].on_creation(net.run(0), id, "int", net.now());
  const WaitId far = net[1].wait_value(net.run(0), id.rref, Deadline::never(), net.now());
  const WaitId near = net[1].wait_value(net.run(1), id.rref, Deadline::never(), net.now());
  EXPECT_FALSE(net.result(1, far));
  net[1].value_set(id.rref, std::nullopt, net.now());
  EXPECT_EQ(net.result(1, far), Code::kOk);
  EXPECT_EQ(net.result(1, near), Code::kOk);
  const WaitId later = net[1].wait_value(net.run(0), id.rref, Deadline::never(), net.now());
  EXPECT_EQ(net.result(1, later), Code::kOk);
}

TEST(RRefValue, ThatFailedGivesItsError) {
  Cluster net(2);
  const HandleId id = net[0].create(net.run(1), "int", net.now());
  net[1].on_creation(net.run(0), id, "int", net.now());
  const WaitId before = net[1].wait_value(net.run(0), id.rref, Deadline::never(), net.now());
  net[1].value_set(id.rref, Error(Code::kRemote, "it threw"), net.now());
  const WaitId after = net[1].wait_value(net.run(0), id.rref, Deadline::never(), net.now());
  EXPECT_EQ(net.result(1, before), Code::kRemote);
  EXPECT_EQ(net.result(1, after), Code::kRemote);
}

TEST(RRefValue, FetchedBeforeItsCreationWaitsAndLeavesNothingBehind) {
  Cluster net(2);
  const HandleId id = net[0].create(net.run(1), "int", net.now());
  const WaitId gone = net[1].wait_value(net.run(0), id.rref, Deadline(net.now() + 1s), net.now());
  EXPECT_EQ(net[1].counters().unborn, 1u);
  net.advance(1s);
  EXPECT_EQ(net.result(1, gone), Code::kTimeout);
  // Expect: nobody waits for it and nobody holds it, so it is forgotten until it is made.
  EXPECT_EQ(net[1].counters().owned, 0u);
  const WaitId wait = net[1].wait_value(net.run(0), id.rref, Deadline::never(), net.now());
  net[1].on_creation(net.run(0), id, "int", net.now());
  net[1].value_set(id.rref, std::nullopt, net.now());
  EXPECT_EQ(net.result(1, wait), Code::kOk);
}

TEST(RRefValue, CancelledWaitsSayNothing) {
  Cluster net(2);
  const HandleId id = net[0].create(net.run(1), "int", net.now());
  const WaitId wait = net[1].wait_value(net.run(0), id.rref, Deadline::never(), net.now());
  net[1].cancel_wait(wait, net.now());
  net[1].cancel_wait(wait, net.now());
  EXPECT_EQ(net[1].counters().owned, 0u);
  EXPECT_FALSE(net.result(1, wait));
}

TEST(RRefValue, PolledWithShortDeadlinesTakesNoMemory) {
  Cluster net(2);
  const HandleId id = net[0].create(net.run(1), "int", net.now());
  net[1].on_creation(net.run(0), id, "int", net.now());
  for (int i = 0; i < 1000; ++i) {
    net[1].wait_value(net.run(0), id.rref, Deadline(net.now() + 1ms), net.now());
    net.advance(1ms);
  }
  EXPECT_EQ(net[1].counters().waits, 0u);
  EXPECT_EQ(net[1].counters().timers, 0u);
}

TEST(RRefValue, OfAnotherWorkerOrReleasedIsAnErrorAtOnce) {
  Cluster net(2);
  const HandleId id = net.make(0, 1);
  const WaitId elsewhere = net[0].wait_value(net.run(1), id.rref, Deadline::never(), net.now());
  EXPECT_EQ(net.result(0, elsewhere), Code::kNotOwner);
  net.drop(0, id);
  net.deliver();
  const WaitId gone = net[1].wait_value(net.run(0), id.rref, Deadline::never(), net.now());
  EXPECT_EQ(net.result(1, gone), Code::kNotFound);
}

}  // namespace
}  // namespace farspan::rref::testing
