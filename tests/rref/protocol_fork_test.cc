// The rules under test: rref/PROTOCOL.md, "Sharing".
#include "rref/protocol_cluster.h"

namespace farspan::rref::testing {
namespace {

using Carrier = RRefProtocol::Carrier;
using Value = RRefProtocol::Value;

TEST(RRefFork, UserToUserCostsTwoRoundTrips) {
  Cluster net(3);
  const HandleId id = net.make(0, 1);
  const HandleId there = net.pass(id, 0, 2);
  EXPECT_EQ(net.deliver(), 4u);
  EXPECT_TRUE(net[2].confirmed(there));
  net.advance(1h);
  // Expect: nothing else is sent later.
  EXPECT_EQ(net.deliver(), 0u);
  net.drop(0, id);
  net.drop(2, there);
  net.deliver();
  net.expect_empty();
}

TEST(RRefFork, TheOwnerHearsLastYetKeepsTheValue) {
  Cluster net(3);
  const HandleId id = net.make(0, 1);
  const HandleId there = net.pass(id, 0, 2);
  net.drop(0, id);
  EXPECT_GT(net.lose_wire(), 0u);  // the new handle's notice to the owner
  // Expect: the parent says nothing to the owner while the child may be unknown to it.
  EXPECT_EQ(net[0].counters().users, 1u);
  EXPECT_EQ(net[1].counters().forks, 1u);
  net.advance(1s);
  EXPECT_EQ(net[0].counters().users, 0u);
  EXPECT_FALSE(net.released(1, id));
  net.drop(2, there);
  net.deliver();
  EXPECT_TRUE(net.released(1, id));
  net.expect_empty();
}

TEST(RRefFork, AChainOfUnconfirmedHandlesKeepsTheValue) {
  Cluster net(4);
  const HandleId a = net.make(0, 1);
  const HandleId b = net.pass(a, 0, 2);
  const HandleId c = net.pass(b, 2, 3);
  net.drop(0, a);
  net.drop(2, b);
  net.deliver();
  EXPECT_TRUE(net[3].confirmed(c));
  EXPECT_EQ(net[1].value(a.rref), Value::kReady);
  net.drop(3, c);
  net.deliver();
  EXPECT_TRUE(net.released(1, a));
  net.expect_empty();
}

TEST(RRefFork, OwnerToUserIsConfirmedAtOnce) {
  Cluster net(2);
  const HandleId id = net[0].create_local("int");
  const HandleId there = net.pass(id, 0, 1);
  EXPECT_TRUE(net[1].confirmed(there));
  net.drop(0, id);
  EXPECT_FALSE(net.released(0, id));
  EXPECT_EQ(net.deliver(), 2u);
  net.drop(1, there);
  net.deliver();
  EXPECT_TRUE(net.released(0, id));
  net.expect_empty();
}

TEST(RRefFork, UserToOwnerGivesALocalHandle) {
  Cluster net(2);
  const HandleId id = net.make(0, 1);
  const HandleId there = net.pass(id, 0, 1);
  EXPECT_TRUE(there.at_owner());
  net.drop(0, id);
  EXPECT_EQ(net.deliver(), 3u);  // accepted; answered, and deleted in the same frame; answered
  EXPECT_FALSE(net.released(1, id));
  net.drop(1, there);
  EXPECT_TRUE(net.released(1, id));
  net.expect_empty();
}

TEST(RRefFork, ToItselfCostsNoFrames) {
  Cluster net(2);
  const HandleId own = net[0].create_local("int");
  const HandleId far = net.make(0, 1);
  const HandleId own2 = net.pass(own, 0, 0);
  const HandleId far2 = net.pass(far, 0, 0);
  net.drop(0, own);
  net.drop(0, far);
  EXPECT_EQ(net.deliver(), 0u);
  EXPECT_FALSE(net.released(0, own));
  EXPECT_TRUE(net[0].confirmed(far2));
  net.drop(0, own2);
  net.drop(0, far2);
  net.deliver();
  EXPECT_TRUE(net.released(0, own));
  EXPECT_TRUE(net.released(1, far));
  net.expect_empty();
}

TEST(RRefFork, ToItselfIsTakenBackWhenItsCallFails) {
  Cluster net(1);
  const HandleId id = net[0].create_local("int");
  const ForkData data = net[0].fork(id, net.run(0), net.now());
  net.end_carrier(0, 0, data, Carrier::kFailed);
  EXPECT_EQ(code_of([&] { net[0].received(net.run(0), data, net.now()); }), Code::kCancelled);
  net.drop(0, id);
  net.expect_empty();
}

TEST(RRefFork, IsTakenBackWhenItsCallFailed) {
  for (const bool owner_sends : {false, true}) {
    Cluster net(3);
    const HandleId id = owner_sends ? net[0].create_local("int") : net.make(0, 1);
    const ForkData data = net[0].fork(id, net.run(2), net.now());
    net.drop(0, id);
    net.deliver();
    EXPECT_FALSE(net.released(owner_sends ? 0 : 1, id));
    net.end_carrier(0, 2, data, Carrier::kFailed);
    net.deliver();
    EXPECT_TRUE(net.released(owner_sends ? 0 : 1, id));
    net.expect_empty();
    // Expect: a copy that comes late is refused, and refused copies leave nothing.
    EXPECT_EQ(code_of([&] { net[2].received(net.run(0), data, net.now()); }), Code::kCancelled);
    net.advance(10min);
    EXPECT_EQ(net[2].counters().taken_back, 0u);
    net.expect_empty();
  }
}

TEST(RRefFork, IsNotTakenBackFromACalleeThatHasIt) {
  for (const bool owner_sends : {false, true}) {
    Cluster net(3);
    const int owner = owner_sends ? 0 : 1;
    const HandleId id = owner_sends ? net[0].create_local("int") : net.make(0, 1);
    const ForkData data = net[0].fork(id, net.run(2), net.now());
    const HandleId there = net[2].received(net.run(0), data, net.now());
    net.end_carrier(0, 2, data, Carrier::kFailed);  // the caller's deadline has passed
    net.drop(0, id);
    net.deliver();
    EXPECT_TRUE(net[2].confirmed(there));
    EXPECT_FALSE(net.released(owner, id));
    net.drop(2, there);
    net.deliver();
    EXPECT_TRUE(net.released(owner, id));
    net.expect_empty();
  }
}

TEST(RRefFork, InAnAnswerThatNobodyReadIsTakenBackAfterAWhile) {
  Cluster net(2);
  const HandleId id = net[0].create_local("int");
  const ForkData data = net[0].fork(id, net.run(1), net.now());
  net.end_carrier(0, 1, data, Carrier::kArrived);
  net.drop(0, id);
  net.advance(29s);
  EXPECT_FALSE(net.released(0, id));
  net.advance(2s);
  EXPECT_TRUE(net.released(0, id));
  net.expect_empty();
}

TEST(RRefFork, DeclinedItIsFreeAtOnce) {
  for (const bool owner_sends : {false, true}) {
    Cluster net(3);
    const int owner = owner_sends ? 0 : 1;
    const HandleId id = owner_sends ? net[0].create_local("int") : net.make(0, 1);
    const ForkData data = net[0].fork(id, net.run(2), net.now());
    net.end_carrier(0, 2, data, Carrier::kArrived);
    net.drop(0, id);
    net[2].declined(net.run(0), data, net.now());
    net.deliver();
    EXPECT_TRUE(net.released(owner, id));
    net.expect_empty();
  }
}

TEST(RRefFork, ThatArrivesTwiceCountsTwiceHere) {
  Cluster net(3);
  const HandleId id = net.make(0, 1);
  const ForkData data = net[0].fork(id, net.run(2), net.now());
  const HandleId one = net[2].received(net.run(0), data, net.now());
  const HandleId two = net[2].received(net.run(0), data, net.now());
  EXPECT_EQ(one, two);
  net.end_carrier(0, 2, data, Carrier::kArrived);
  net.drop(0, id);
  net.drop(2, one);
  net.deliver();
  EXPECT_FALSE(net.released(1, id));
  net.drop(2, two);
  net.deliver();
  EXPECT_TRUE(net.released(1, id));
  net.expect_empty();
}

TEST(RRefFork, ThatArrivesAgainAfterItsDropIsRegisteredAnew) {
  Cluster net(3);
  const HandleId id = net.make(0, 1);
  const ForkData data = net[0].fork(id, net.run(2), net.now());
  net.drop(2, net[2].received(net.run(0), data, net.now()));
  const HandleId again = net[2].received(net.run(0), data, net.now());
  // Expect: the answer to the first registration is not taken for the second's.
  net.collect();
  ControlFrame first = net.wire.front();
  ASSERT_EQ(first.items.size(), 3u);  // register, delete, register
  first.items.resize(1);
  net.wire.clear();
  net.arrive(first);
  net.deliver();
  EXPECT_FALSE(net[2].confirmed(again));
  net.advance(1s);
  EXPECT_TRUE(net[2].confirmed(again));
  net.drop(0, id);
  net.drop(2, again);
  net.deliver();
  EXPECT_TRUE(net.released(1, id));
  net.expect_empty();
}

TEST(RRefFork, OfAReleasedValueIsRefusedAndSaysSo) {
  Cluster net(3);
  const HandleId id = net.make(0, 1);
  const ForkData data = net[0].fork(id, net.run(2), net.now());
  net.drop(2, net[2].received(net.run(0), data, net.now()));
  net.drop(0, id);
  net.deliver();
  EXPECT_TRUE(net.released(1, id));

  const HandleId late = net[2].received(net.run(0), data, net.now());
  net.deliver();
  ASSERT_TRUE(net[2].failure_of(late));
  EXPECT_EQ(net[2].failure_of(late)->code(), Code::kNotFound);
  EXPECT_EQ(net[2].failure_of(late)->worker(), "w1");
  net.drop(2, late);
  net.deliver();
  net.expect_empty();
}

TEST(RRefFork, ByAWorkerThatDidNotMakeItIsCorrupt) {
  Cluster net(3);
  const HandleId id = net.make(0, 1);
  const ForkData data = net[0].fork(id, net.run(2), net.now());
  EXPECT_EQ(code_of([&] { net[2].received(net.run(1), data, net.now()); }), Code::kCorrupt);
  ForkData nameless = data;
  nameless.fork.serial = 0;
  EXPECT_EQ(code_of([&] { net[2].received(net.run(0), nameless, net.now()); }), Code::kCorrupt);
}

TEST(RRefFork, ManyDeletesGoInOneFrame) {
  Cluster net(2);
  std::vector<HandleId> handles;
  for (int i = 0; i < 1000; ++i) handles.push_back(net.make(0, 1));
  for (const HandleId& handle : handles) net.drop(0, handle);
  EXPECT_EQ(net.deliver(), 2u);
  net.expect_empty();
}

TEST(RRefFork, DropsOfUnknownHandlesAreIgnored) {
  Cluster net(2);
  const HandleId id = net.make(0, 1);
  net.drop(0, id);
  net.drop(0, id);
  net.drop(1, id);
  net.drop(1, {id.rref, {}});
  net.deliver();
  net.expect_empty();
}

TEST(RRefControl, LiesOfAPeerHarmOnlyItself) {
  Cluster net(3);
  const HandleId id = net.make(0, 1);
  ControlFrame frame;
  frame.from = net.run(2);
  frame.to = net.run(1);
  // A user that deletes another's fork, gives up another's creation, asks for what never was.
  frame.items = {{ControlKind::kUserDelete, id.rref, id.fork},
                 {ControlKind::kCreatorDelete, id.rref, id.fork},
                 {ControlKind::kForkRequest, {net.run(1), net.run(1), 99}, {net.run(2), 1}},
                 {ControlKind::kForkRequest, {net.run(1), net.run(0), 1}, {net.run(2), 2}},
                 {static_cast<ControlKind>(99), id.rref, id.fork}};
  net.arrive(frame);
  net.collect();
  ASSERT_EQ(net.wire.size(), 1u);
  using Refused = std::vector<RefusedItem>;
  EXPECT_EQ(
      net.wire[0].refused,
      (Refused{{3, Refusal::kReleased}, {4, Refusal::kNotOwner}, {5, Refusal::kNotUnderstood}}));
  EXPECT_EQ(net[1].value(id.rref), Value::kReady);
  net.wire.clear();
  net.drop(0, id);
  net.deliver();
  EXPECT_TRUE(net.released(1, id));
}

TEST(RRefControl, FramesForAnotherRunAreRejected) {
  Cluster net(2);
  const HandleId id = net.make(0, 1);
  ControlFrame frame;
  frame.from = net.run(0);
  frame.to = {1, 77};
  frame.items = {{ControlKind::kCreatorDelete, id.rref, id.fork}};
  net.arrive(frame);
  EXPECT_FALSE(net.released(1, id));
  EXPECT_EQ(net[1].counters().rejected_frames, 1u);
  frame.to = net.run(1);
  frame.ack = 1000;
  net.arrive(frame);
  EXPECT_FALSE(net.released(1, id));
  EXPECT_EQ(net[1].counters().rejected_frames, 2u);
}

}  // namespace
}  // namespace farspan::rref::testing
