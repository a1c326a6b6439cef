// The rules under test: rref/PROTOCOL.md, "Creation".
#include "rref/protocol_cluster.h"

namespace farspan::rref::testing {
namespace {

using Creation = RRefProtocol::Creation;
using Value = RRefProtocol::Value;

TEST(RRefCreation, ALocalValueIsReleasedWithItsLastHandle) {
  Cluster net(1);
  const HandleId id = net[0].create_local("int");
  EXPECT_EQ(net[0].value(id.rref), Value::kReady);
  EXPECT_FALSE(net.released(0, id));
  net.drop(0, id);
  EXPECT_TRUE(net.released(0, id));
  net.expect_empty();
}

TEST(RRefCreation, AValueMadeHereIsPendingUntilItIsSet) {
  Cluster net(1);
  const HandleId id = net[0].create(net.run(0), "int", net.now());
  EXPECT_EQ(net[0].value(id.rref), Value::kPending);
  net.drop(0, id);
  // Expect: its function still runs; the value goes as soon as it is there.
  EXPECT_FALSE(net.released(0, id));
  net[0].value_set(id.rref, std::nullopt, net.now());
  EXPECT_TRUE(net.released(0, id));
  net.expect_empty();
}

TEST(RRefCreation, WhatAWorkerAsksOfItselfIsMadeOnce) {
  Cluster net(1);
  const HandleId id = net[0].create(net.run(0), "int", net.now());
  EXPECT_EQ(net[0].on_creation(net.run(0), id, "int", net.now()), Creation::kRun);
  EXPECT_EQ(net[0].on_creation(net.run(0), id, "int", net.now()), Creation::kDuplicate);
  // Expect: an answer that does not come changes nothing, its function runs.
  net[0].creation_failed(id, Error(Code::kTimeout, "no answer in time"), net.now());
  EXPECT_EQ(net[0].value(id.rref), Value::kPending);
  net[0].value_set(id.rref, std::nullopt, net.now());
  EXPECT_EQ(net[0].value(id.rref), Value::kReady);
  net.drop(0, id);
  EXPECT_TRUE(net.released(0, id));
  net.expect_empty();
}

TEST(RRefCreation, WhatAWorkerAskedOfItselfInVainFails) {
  Cluster net(2);
  const HandleId id = net[0].create(net.run(0), "int", net.now());
  const HandleId there = net.pass(id, 0, 1);
  const WaitId wait = net[0].wait_value(net.run(1), id.rref, Deadline::never(), net.now());
  net[0].creation_failed(id, Error(Code::kTimeout, "no answer in time"), net.now());
  EXPECT_EQ(net.result(0, wait), Code::kTimeout);
  EXPECT_EQ(net[0].on_creation(net.run(0), id, "int", net.now()), Creation::kGone);
  net.drop(0, id);
  net.drop(1, there);
  net.deliver();
  EXPECT_EQ(net[0].on_creation(net.run(0), id, "int", net.now()), Creation::kGone);
  net.expect_empty();
}

TEST(RRefCreation, ARemoteValueLivesUntilItsCreatorDropsIt) {
  Cluster net(2);
  const HandleId id = net.make(0, 1);
  EXPECT_TRUE(net[0].confirmed(id));
  EXPECT_EQ(net[1].counters().forks, 1u);
  EXPECT_EQ(net.deliver(), 0u);  // remote() needs no control frames
  net.drop(0, id);
  EXPECT_EQ(net.deliver(), 2u);
  EXPECT_TRUE(net.released(1, id));
  net.expect_empty();
}

TEST(RRefCreation, ADroppedHandleDoesNotStopTheCreation) {
  Cluster net(2);
  const HandleId id = net[0].create(net.run(1), "int", net.now());
  net.drop(0, id);
  // Expect: nothing is told before the owner has run the function that was asked for.
  EXPECT_EQ(net.deliver(), 0u);
  EXPECT_EQ(net[1].on_creation(net.run(0), id, "int", net.now()), Creation::kRun);
  net[1].value_set(id.rref, std::nullopt, net.now());
  net[0].creation_done(id, net.now());
  net.deliver();
  EXPECT_TRUE(net.released(1, id));
  net.expect_empty();
}

TEST(RRefCreation, HappensOnceHoweverOftenItIsAskedFor) {
  Cluster net(2);
  const HandleId id = net.make(0, 1);
  EXPECT_EQ(net[1].on_creation(net.run(0), id, "int", net.now()), Creation::kDuplicate);
  net.drop(0, id);
  net.deliver();
  // Expect: not even a copy that comes after its release runs it again.
  EXPECT_EQ(net[1].on_creation(net.run(0), id, "int", net.now()), Creation::kGone);
  net.expect_empty();
}

TEST(RRefCreation, ARequestThatComesAfterItsDeleteLeaksNothing) {
  Cluster net(2);
  const HandleId id = net[0].create(net.run(1), "int", net.now());
  net[0].creation_failed(id, Error(Code::kTimeout, "no reply"), net.now());
  net.deliver();
  EXPECT_EQ(net[1].on_creation(net.run(0), id, "int", net.now()), Creation::kGone);
  net.drop(0, id);
  net.expect_empty();
}

TEST(RRefCreation, AFailedOneFailsItsHandleAndFreesTheOwner) {
  Cluster net(2);
  const HandleId id = net[0].create(net.run(1), "int", net.now());
  net[1].on_creation(net.run(0), id, "int", net.now());
  net[1].value_set(id.rref, Error(Code::kRemote, "it threw"), net.now());
  net[0].creation_failed(id, Error(Code::kRemote, "it threw"), net.now());
  net.deliver();
  EXPECT_EQ(net[0].failure_of(id)->code(), Code::kRemote);
  EXPECT_EQ(code_of([&] { net[0].fork(id, net.run(1), net.now()); }), Code::kRemote);
  EXPECT_TRUE(net.released(1, id));  // though the handle is still held
  net.drop(0, id);
  net.expect_empty();
}

TEST(RRefCreation, TimedOutButRunStaysForThoseItWasPassedOnTo) {
  Cluster net(3);
  const HandleId id = net[0].create(net.run(1), "int", net.now());
  net[1].on_creation(net.run(0), id, "int", net.now());
  const ForkData data = net[0].fork(id, net.run(2), net.now());
  net[0].creation_failed(id, Error(Code::kTimeout, "no reply"), net.now());
  net.deliver();
  const HandleId there = net[2].received(net.run(0), data, net.now());
  net.deliver();
  net[1].value_set(id.rref, std::nullopt, net.now());
  // Expect: the creator's own handle is failed, the other one works.
  EXPECT_TRUE(net[0].failure_of(id));
  EXPECT_TRUE(net[2].confirmed(there));
  EXPECT_EQ(net[1].value(id.rref), Value::kReady);
  net.drop(0, id);
  net.drop(2, there);
  net.deliver();
  net.expect_empty();
}

TEST(RRefCreation, HandlesMayComeBeforeTheRequest) {
  Cluster net(3);
  const HandleId id = net[0].create(net.run(1), "int", net.now());
  const HandleId there = net.pass(id, 0, 2);
  net.deliver();
  EXPECT_TRUE(net[2].confirmed(there));
  EXPECT_EQ(net[1].value(id.rref), Value::kUnborn);
  const WaitId wait = net[1].wait_value(net.run(2), id.rref, Deadline::never(), net.now());
  EXPECT_FALSE(net.result(1, wait));

  EXPECT_EQ(net[1].on_creation(net.run(0), id, "int", net.now()), Creation::kRun);
  net[1].value_set(id.rref, std::nullopt, net.now());
  EXPECT_EQ(net.result(1, wait), Code::kOk);
  net[0].creation_done(id, net.now());
  net.drop(0, id);
  net.drop(2, there);
  net.deliver();
  EXPECT_TRUE(net.released(1, id));
  net.expect_empty();
}

TEST(RRefCreation, GivenUpItFailsThoseWhoWaitForIt) {
  Cluster net(3);
  const HandleId id = net[0].create(net.run(1), "int", net.now());
  const HandleId there = net.pass(id, 0, 2);
  const WaitId wait = net[1].wait_value(net.run(2), id.rref, Deadline::never(), net.now());
  net[0].creation_failed(id, Error(Code::kUnavailable, "never sent"), net.now());
  net.deliver();
  EXPECT_EQ(net.result(1, wait), Code::kCancelled);
  EXPECT_EQ(net.error(1, wait).worker(), "w0");
  net.drop(0, id);
  net.drop(2, there);
  net.deliver();
  net.expect_empty();
  EXPECT_FALSE(net.released(1, id));  // there was no value
}

TEST(RRefCreation, IsRefusedFromAnotherWorkersName) {
  Cluster net(3);
  const HandleId id = net[0].create(net.run(1), "int", net.now());
  EXPECT_EQ(net[1].on_creation(net.run(2), id, "int", net.now()), Creation::kRefused);
  EXPECT_EQ(net[2].on_creation(net.run(0), id, "int", net.now()), Creation::kRefused);
  EXPECT_EQ(net[1].counters().owned + net[2].counters().owned, 0u);
}

TEST(RRefCreation, AtAWorkerThatIsGoneFailsAtOnceAndNamesIt) {
  Cluster net(2);
  net.lose(0, 1);
  const Error error = error_of([&] { net[0].create(net.run(1), "int", net.now()); });
  EXPECT_EQ(error.code(), Code::kDisconnected);
  EXPECT_EQ(error.worker(), "w1");
}

}  // namespace
}  // namespace farspan::rref::testing
