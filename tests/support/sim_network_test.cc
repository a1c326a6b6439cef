// The rules under test: support/sim_network.h and support/faults.h.
#include "support/sim_network.h"

#include <gmock/gmock.h>

#include <optional>

#include "support/sim_calls.h"

namespace farspan::testing {
namespace {

using agent::Messenger;
using agent::Request;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr auto kInline = Messenger::Run::kInline;
constexpr auto kAsTask = Messenger::Run::kAsTask;

Deadline in(SimNetwork& net, Clock::duration d) { return Deadline(net.scheduler().now() + d); }

// Who hears of whose loss, "w0: w1", or goodbye, "w0: w1 ended".
std::shared_ptr<std::vector<std::string>> losses(SimNetwork& net) {
  auto heard = std::make_shared<std::vector<std::string>>();
  for (const WorkerInfo& worker : net.workers()) {
    net.at(worker.rank)->on_worker_lost([&net, heard, worker](int rank, const Error& why) {
      heard->push_back(worker.name + ": " + net.workers()[static_cast<size_t>(rank)].name +
                       (why.code() == Code::kShutdown ? " ended" : ""));
    });
  }
  return heard;
}

TEST(SimNetwork, FramesOfOneLineKeepTheirOrder) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimNetwork net({.seed = seed, .max_latency = milliseconds(5)});
    Echo echo(net, "w1", wire::Kind::kRRefControl, kInline);
    for (uint64_t i = 0; i < 10; ++i) send_post(net, "w0", "w1", i);
    net.scheduler().drain();
    EXPECT_THAT(echo.heard(), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  }
}

TEST(SimNetwork, TheSeedDecidesHowLinesInterleave) {
  std::set<std::vector<uint64_t>> orders;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SimNetwork net({.workers = 3, .seed = seed});
    Echo echo(net, "w2", wire::Kind::kRRefControl, kInline);
    for (const uint64_t i : {1, 2}) {
      send_post(net, "w0", "w2", i);
      send_post(net, "w1", "w2", 10 + i);
    }
    net.scheduler().drain();
    orders.insert(echo.heard());
  }
  EXPECT_THAT(orders, SizeIs(6));  // 4 over 2
}

TEST(SimNetwork, LatencyIsBoundedAndMovesTime) {
  SimNetwork net({.max_latency = milliseconds(3)});
  Echo echo(net, "w1");
  const TimePoint begun = net.scheduler().now();
  send_call(net, "w0", "w1").wait();
  EXPECT_GT(net.scheduler().now(), begun);
  EXPECT_LE(net.scheduler().now(), begun + milliseconds(6));
}

TEST(SimNetworkFaults, ASilentlyLostRequestEndsAtItsDeadline) {
  SimNetwork net;
  Echo echo(net, "w1");
  const auto fault = net.faults().drop(wire::Kind::kCall, {.from = "w0", .to = "w1", .times = 1});
  const auto lost = send_call(net, "w0", "w1", 1, in(net, seconds(1)));
  const auto next = send_call(net, "w0", "w1", 2, in(net, seconds(1)));
  net.scheduler().advance(seconds(2));
  EXPECT_EQ(code_of(lost), Code::kTimeout);
  EXPECT_EQ(code_of(next), Code::kOk);
  EXPECT_THAT(echo.heard(), ElementsAre(2));
  EXPECT_EQ(net.faults().hits(fault), 1);
}

TEST(SimNetworkFaults, ALostRequestMayFailItsCall) {
  SimNetwork net;
  Echo echo(net, "w1");
  const auto lost = losses(net);
  net.faults().drop(wire::Kind::kCall, {.times = 1}, Loss::kFailsCall);
  const auto first = send_call(net, "w0", "w1", 1), second = send_call(net, "w0", "w1", 2);
  net.scheduler().drain();
  EXPECT_EQ(code_of(first), Code::kDisconnected);
  EXPECT_EQ(code_of(second), Code::kOk);
  EXPECT_THAT(*lost, IsEmpty());
}

TEST(SimNetworkFaults, ALostRequestMayBreakItsLine) {
  SimNetwork net;
  Echo echo(net, "w1");
  const auto lost = losses(net);
  net.faults().drop(wire::Kind::kCall, {.nth = 2, .times = 1}, Loss::kBreaksLine);
  const auto first = send_call(net, "w0", "w1", 1), second = send_call(net, "w0", "w1", 2);
  net.scheduler().drain();
  EXPECT_EQ(code_of(first), Code::kDisconnected);  // it was on the same line
  EXPECT_EQ(code_of(second), Code::kDisconnected);
  EXPECT_THAT(echo.heard(), IsEmpty());
  EXPECT_EQ(lost->size(), 2u);
  EXPECT_EQ(word_at(send_call(net, "w0", "w1", 3).wait().meta, 0), 3u);
}

TEST(SimNetworkFaults, ALostReplyLeavesTheWorkDone) {
  SimNetwork net;
  Echo echo(net, "w1");
  net.faults().drop_reply(wire::Kind::kCall, {.from = "w1", .to = "w0", .times = 1});
  net.faults().drop_reply(wire::Kind::kCall, {.from = "w1", .nth = 2, .times = 1},
                          Loss::kFailsCall);
  const auto first = send_call(net, "w0", "w1", 1, in(net, seconds(1)));
  net.scheduler().drain();
  const auto second = send_call(net, "w0", "w1", 2, in(net, seconds(1)));
  net.scheduler().advance(seconds(2));
  EXPECT_EQ(code_of(first), Code::kTimeout);
  EXPECT_EQ(code_of(second), Code::kDisconnected);
  EXPECT_THAT(echo.heard(), ElementsAre(1, 2));
}

TEST(SimNetworkFaults, ARequestInFlightArrivesAfterItsCallHasFailed) {
  SimNetwork net;
  Echo echo(net, "w1");
  std::vector<uint64_t> late;
  net.at("w0")->on_late_reply(
      [&](int, wire::InFrame&& reply) { late.push_back(word_at(reply.meta, 0)); });
  net.faults().fail_in_flight(wire::Kind::kCall, {.times = 1}, seconds(1));
  const auto first = send_call(net, "w0", "w1", 1), retry = send_call(net, "w0", "w1", 2);
  net.scheduler().advance(milliseconds(1));
  EXPECT_EQ(code_of(first), Code::kDisconnected);
  EXPECT_EQ(code_of(retry), Code::kOk);
  net.scheduler().drain();
  EXPECT_THAT(echo.heard(), ElementsAre(2, 1));
  EXPECT_THAT(late, ElementsAre(1));
}

TEST(SimNetworkFaults, ADuplicateIsServedTwiceAndAnsweredOnce) {
  SimNetwork net;
  Echo echo(net, "w1", wire::Kind::kCall, kInline);
  net.faults().duplicate(wire::Kind::kCall, {.nth = 2, .times = 1});
  net.faults().duplicate(wire::Kind::kCall, {.nth = 3, .times = 1}, seconds(1));
  std::vector<Answered> answers;
  for (uint64_t i = 1; i <= 4; ++i) answers.push_back(send_call(net, "w0", "w1", i));
  net.scheduler().advance(milliseconds(1));
  EXPECT_THAT(echo.heard(), ElementsAre(1, 2, 2, 3, 4));
  for (const Answered& answer : answers) EXPECT_EQ(code_of(answer), Code::kOk);
  // Expect: a late copy does not hold up what is behind it.
  net.scheduler().drain();
  EXPECT_THAT(echo.heard(), ElementsAre(1, 2, 2, 3, 4, 3));
}

TEST(SimNetworkFaults, ADuplicateOfAReplyIsIgnored) {
  SimNetwork net;
  Echo echo(net, "w1");
  net.at("w0")->on_late_reply([](int, wire::InFrame&&) { ADD_FAILURE() << "it was answered"; });
  const auto fault = net.faults().duplicate_reply(wire::Kind::kCall);
  EXPECT_EQ(word_at(send_call(net, "w0", "w1", 1).wait().meta, 0), 1u);
  net.scheduler().drain();
  EXPECT_EQ(net.faults().hits(fault), 1);
}

TEST(SimNetworkFaults, ADelayHoldsUpWhatIsBehindItOnItsLine) {
  SimNetwork net({.workers = 3});
  Echo echo(net, "w1");
  net.faults().delay(wire::Kind::kCall, seconds(1), {.from = "w0", .times = 1});
  const auto first = send_call(net, "w0", "w1", 1), second = send_call(net, "w0", "w1", 2);
  const auto other = send_call(net, "w2", "w1", 3);
  net.scheduler().advance(milliseconds(999));
  EXPECT_FALSE(first.ready());
  EXPECT_FALSE(second.ready());
  EXPECT_EQ(code_of(other), Code::kOk);
  net.scheduler().advance(milliseconds(1));
  EXPECT_EQ(code_of(first), Code::kOk);
  EXPECT_EQ(code_of(second), Code::kOk);
}

TEST(SimNetworkFaults, HitOnlyWhatTheyMatch) {
  SimNetwork net({.workers = 3});
  Echo call(net, "w1"), fetch(net, "w1", wire::Kind::kRRefFetch), other(net, "w2");
  const auto fault = net.faults().drop(wire::Kind::kCall, {.to = "w1", .nth = 2, .times = 2});
  for (uint64_t i = 1; i <= 5; ++i) {
    send_call(net, "w0", "w1", i);
    send_call(net, "w0", "w2", i);
    send_call(net, "w0", "w1", i, Deadline::never(), wire::Kind::kRRefFetch);
  }
  net.scheduler().drain();
  EXPECT_THAT(call.heard(), ::testing::UnorderedElementsAre(1, 4, 5));
  EXPECT_THAT(other.heard(), SizeIs(5));
  EXPECT_THAT(fetch.heard(), SizeIs(5));
  // Expect: removed, it hits nothing more; its count stays.
  net.faults().remove(fault);
  EXPECT_EQ(net.faults().hits(fault), 2);
}

TEST(SimNetworkFaults, HitByChanceAsOftenAsTheyShould) {
  SimNetwork net;
  Echo echo(net, "w1", wire::Kind::kRRefControl, kInline);
  const auto fault = net.faults().drop(kAnyKind, {.probability = 0.25});
  for (uint64_t i = 0; i < 4000; ++i) send_post(net, "w0", "w1", i);
  net.scheduler().drain();
  EXPECT_NEAR(net.faults().hits(fault), 1000, 150);  // 5 standard deviations
  EXPECT_EQ(echo.heard().size() + static_cast<size_t>(net.faults().hits(fault)), 4000u);
}

TEST(SimNetworkKill, CallsUnderWayFailAndTheLossIsTold) {
  SimNetwork net({.workers = 3});
  const auto lost = losses(net);
  Echo echo(net, "w1");
  send_call(net, "w0", "w1").wait();
  net.clog("w1");
  const auto first = send_call(net, "w0", "w1"), second = send_call(net, "w0", "w1");
  net.kill("w1");
  EXPECT_FALSE(first.ready());  // nobody has heard of it
  net.unclog("w1");
  net.scheduler().drain();
  EXPECT_EQ(code_of(first), Code::kDisconnected);
  EXPECT_EQ(code_of(second), Code::kDisconnected);
  EXPECT_THAT(*lost, ElementsAre("w0: w1"));  // w2 had no line to it
  // Expect: a later call says that nobody is there, and so are those told who send without one.
  const auto later = send_call(net, "w0", "w1");
  net.scheduler().drain();
  EXPECT_EQ(code_of(later), Code::kUnavailable);
  EXPECT_THAT(*lost, ElementsAre("w0: w1", "w0: w1"));
}

TEST(SimNetworkKill, WhatItSentBeforeArrivesOrIsLost) {
  for (const Sent sent : {Sent::kArrives, Sent::kLost}) {
    SimNetwork net;
    Echo echo(net, "w0", wire::Kind::kRRefControl, kInline);
    std::vector<size_t> heard_at_loss;
    net.at("w0")->on_worker_lost(
        [&](int, const Error&) { heard_at_loss.push_back(echo.heard().size()); });
    send_post(net, "w1", "w0", 1);
    send_post(net, "w1", "w0", 2);
    net.kill("w1", sent);
    net.scheduler().drain();
    EXPECT_THAT(heard_at_loss, ElementsAre(sent == Sent::kArrives ? 2 : 0));
    EXPECT_EQ(echo.heard().size(), sent == Sent::kArrives ? 2u : 0u);
  }
}

TEST(SimNetworkKill, NothingOfTheDeadWorkerHappens) {
  SimNetwork net;
  Echo echo(net, "w0");
  net.at("w1")->handle(wire::Kind::kCall, kAsTask,
                       [](Request) { ADD_FAILURE() << "served by the dead"; });
  net.at("w1")->call_at(net.scheduler().now(), [] { ADD_FAILURE() << "a timer of the dead"; });
  net.at("w1")->run([] { ADD_FAILURE() << "a task of the dead"; });
  send_call(net, "w0", "w1");
  const auto its_call = send_call(net, "w1", "w0");
  const auto dead = net.at("w1");
  net.kill("w1");
  EXPECT_FALSE(dead->alive());
  EXPECT_EQ(code_of(its_call), Code::kShutdown);
  net.scheduler().advance(seconds(1));
  EXPECT_EQ(code_of(send_call(net, "w1", "w0")), Code::kShutdown);
  EXPECT_EQ(dead->call_at(dead->now(), [] {}), 0u);
  EXPECT_FALSE(dead->cancel(1));
}

TEST(SimNetworkKill, ItsThreadsStopWaiting) {
  SimNetwork net({.workers = 3});
  std::optional<bool> waited;
  Promise<void> never;
  net.at("w1")->handle(wire::Kind::kCall, kAsTask, [&](Request request) {
    waited = never.future().wait_for(seconds(100));
    EXPECT_FALSE(never.future().wait_for(seconds(100)));
    request.reply({});
  });
  const auto answer = send_call(net, "w0", "w1");
  net.scheduler().drain();
  net.kill("w1");
  net.scheduler().drain();
  EXPECT_EQ(waited, false);
  EXPECT_EQ(code_of(answer), Code::kDisconnected);
  EXPECT_EQ(net.scheduler().elapsed().count(), 0);
}

TEST(SimNetworkKill, AHandlerMayKillItsOwnWorker) {
  SimNetwork net;
  net.at("w1")->handle(wire::Kind::kCall, kAsTask, [&](Request request) {
    net.kill("w1");
    request.reply({});
  });
  const auto answer = send_call(net, "w0", "w1");
  net.scheduler().drain();
  EXPECT_EQ(code_of(answer), Code::kDisconnected);
}

TEST(SimNetworkRestart, BringsANewInstanceThatKnowsNothing) {
  SimNetwork net;
  const auto lost = losses(net);
  Echo echo(net, "w1");
  send_call(net, "w0", "w1").wait();
  const auto before = net.at("w0")->instance_of(1);
  const auto pending = send_call(net, "w0", "w1");
  net.kill("w1");
  EXPECT_NE(net.restart("w1")->instance(), before);
  const auto unnoticed = send_call(net, "w0", "w1");  // on the line to the dead one
  EXPECT_EQ(net.at("w0")->instance_of(1), before);
  net.scheduler().drain();
  EXPECT_EQ(code_of(pending), Code::kDisconnected);
  EXPECT_EQ(code_of(unnoticed), Code::kDisconnected);
  EXPECT_THAT(echo.heard(), SizeIs(1));
  // Expect: it has no handlers until somebody gives it some.
  const auto refused = send_call(net, "w0", "w1");
  net.scheduler().drain();
  EXPECT_EQ(code_of(refused), Code::kNotRegistered);
  EXPECT_EQ(net.at("w0")->instance_of(1), net.at("w1")->instance());
  Echo again(net, "w1");
  EXPECT_EQ(word_at(send_call(net, "w0", "w1", 4).wait().meta, 0), 4u);
  // Expect: it can be lost again.
  net.kill("w1");
  net.scheduler().drain();
  EXPECT_THAT(*lost, ElementsAre("w0: w1", "w0: w1"));
}

TEST(SimNetworkRestart, AnswersForThePastDoNotReachTheNewInstance) {
  SimNetwork net;
  std::optional<Request> kept;
  net.at("w1")->handle(wire::Kind::kCall, kAsTask,
                       [&](Request request) { kept.emplace(std::move(request)); });
  send_call(net, "w0", "w1");
  net.scheduler().drain();
  net.kill("w0");
  net.restart("w0");
  net.at("w0")->on_late_reply([](int, wire::InFrame&&) { ADD_FAILURE() << "for the past"; });
  kept->reply({});
  net.scheduler().drain();
}

TEST(SimNetworkLeave, IsToldAsAnEnd) {
  SimNetwork net;
  const auto lost = losses(net);
  Echo echo(net, "w1");
  send_call(net, "w0", "w1").wait();
  net.clog("w0", "w1");
  const auto pending = send_call(net, "w0", "w1");
  net.leave("w1");
  net.scheduler().drain();
  EXPECT_EQ(code_of(pending), Code::kDisconnected);
  EXPECT_THAT(*lost, ElementsAre("w0: w1 ended"));
}

TEST(SimNetworkLine, BothEndsHearOfItsEndAndTheNextOneWorks) {
  SimNetwork net;
  const auto lost = losses(net);
  Echo w0(net, "w0"), w1(net, "w1");
  const auto there = send_call(net, "w0", "w1"), back = send_call(net, "w1", "w0");
  net.break_line("w0", "w1");
  const auto on_the_old_line = send_call(net, "w0", "w1");
  net.scheduler().drain();
  EXPECT_EQ(code_of(there), Code::kDisconnected);
  EXPECT_EQ(code_of(back), Code::kDisconnected);
  EXPECT_EQ(code_of(on_the_old_line), Code::kDisconnected);
  EXPECT_THAT(*lost, ::testing::UnorderedElementsAre("w0: w1", "w1: w0"));
  EXPECT_EQ(word_at(send_call(net, "w0", "w1", 2).wait().meta, 0), 2u);
  // Expect: told of each line.
  net.break_line("w0", "w1");
  net.scheduler().drain();
  EXPECT_THAT(*lost, SizeIs(4));
}

TEST(SimNetworkLine, AnswersTakeTheLineThatTheRequestCameOn) {
  SimNetwork net;
  std::optional<Request> kept;
  net.at("w1")->handle(wire::Kind::kCall, kAsTask,
                       [&](Request request) { kept.emplace(std::move(request)); });
  net.at("w0")->on_late_reply([](int, wire::InFrame&&) { ADD_FAILURE() << "on which line?"; });
  const auto answer = send_call(net, "w0", "w1");
  net.scheduler().drain();
  net.break_line("w0", "w1");
  net.scheduler().drain();
  kept->reply({});
  net.scheduler().drain();
  EXPECT_EQ(code_of(answer), Code::kDisconnected);
}

TEST(SimNetworkLine, StragglersOfABrokenLineMayArriveAfterTheNextLinesFrames) {
  int behind = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SimNetwork net({.seed = seed, .stragglers = true});
    Echo echo(net, "w1", wire::Kind::kRRefControl, kInline);
    send_post(net, "w0", "w1", 1);
    net.break_line("w0", "w1");
    while (net.scheduler().step() && net.at("w0")->counters().connections == 0) {
      send_post(net, "w0", "w1", 2);  // lost, until w0 has heard
    }
    net.scheduler().drain();
    EXPECT_THAT(echo.heard(), AnyOf(ElementsAre(2), ElementsAre(1, 2), ElementsAre(2, 1)));
    behind += echo.heard() == std::vector<uint64_t>{2, 1};
  }
  EXPECT_GT(behind, 0);
}

TEST(SimNetworkClog, HoldsFramesAndLosesNone) {
  SimNetwork net({.workers = 3});
  Echo w1(net, "w1"), w2(net, "w2");
  net.clog("w1");
  const auto held = send_call(net, "w0", "w1"), other = send_call(net, "w0", "w2");
  net.scheduler().advance(seconds(100));
  EXPECT_FALSE(held.ready());
  EXPECT_EQ(code_of(other), Code::kOk);
  net.unclog("w1");
  net.scheduler().drain();
  EXPECT_EQ(code_of(held), Code::kOk);
}

TEST(SimNetworkClog, OfOneDirectionLetsTheOtherPass) {
  SimNetwork net;
  Echo w0(net, "w0", wire::Kind::kRRefControl, kInline);
  Echo w1(net, "w1", wire::Kind::kRRefControl, kInline);
  net.clog("w0", "w1");
  send_post(net, "w0", "w1", 1);
  send_post(net, "w1", "w0", 2);
  net.scheduler().drain();
  EXPECT_THAT(w1.heard(), IsEmpty());
  EXPECT_THAT(w0.heard(), ElementsAre(2));
  net.unclog("w0", "w1");
  net.scheduler().drain();
  EXPECT_THAT(w1.heard(), ElementsAre(1));
}

TEST(SimNetworkClog, SwizzledItEndsByItself) {
  int held = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimNetwork net({.workers = 4, .seed = seed});
    std::vector<Echo> echoes;
    for (const WorkerInfo& worker : net.workers()) echoes.emplace_back(net, worker.name);
    net.swizzle_clog(seconds(1));
    net.scheduler().advance(milliseconds(500));
    std::vector<Answered> answers;
    for (const char* to : {"w1", "w2", "w3"}) answers.push_back(send_call(net, "w0", to));
    net.scheduler().drain();
    for (const Answered& answer : answers) held += !answer.ready();
    net.scheduler().advance(milliseconds(500));
    for (const Answered& answer : answers) EXPECT_EQ(code_of(answer), Code::kOk);
  }
  EXPECT_GT(held, 0);
}

TEST(SimNetworkFreeze, NothingRunsAndTimersComeLate) {
  SimNetwork net;
  Echo echo(net, "w1");
  const TimePoint begun = net.scheduler().now();
  std::optional<Clock::duration> rang;
  net.at("w1")->call_at(begun + seconds(1), [&] { rang = net.scheduler().now() - begun; });
  const auto cancelled = net.at("w1")->call_at(begun + seconds(2), [] { ADD_FAILURE(); });
  net.freeze("w1");
  const auto answer = send_call(net, "w0", "w1");
  net.scheduler().advance(seconds(5));
  EXPECT_FALSE(answer.ready());
  EXPECT_FALSE(rang);
  EXPECT_TRUE(net.at("w1")->cancel(cancelled));
  net.thaw("w1");
  net.scheduler().drain();
  EXPECT_EQ(code_of(answer), Code::kOk);
  EXPECT_EQ(rang, seconds(5));
}

TEST(SimNetworkFreeze, AFrozenWorkerCanBeKilled) {
  SimNetwork net;
  Echo echo(net, "w1");
  const auto answer = send_call(net, "w0", "w1");
  net.freeze("w1");
  net.scheduler().advance(seconds(1));
  net.kill("w1");
  net.scheduler().drain();
  EXPECT_EQ(code_of(answer), Code::kDisconnected);
  net.restart("w1");
  Echo again(net, "w1");
  EXPECT_EQ(word_at(send_call(net, "w0", "w1", 2).wait().meta, 0), 2u);
}

TEST(SimNetworkPartition, IsSilentUntilItHeals) {
  SimNetwork net({.workers = 3});
  const auto lost = losses(net);
  Echo w1(net, "w1"), w2(net, "w2");
  net.partition({"w0", "w2"}, {"w1"});
  const auto crossing = send_call(net, "w0", "w1", 1, in(net, seconds(1)));
  const auto inside = send_call(net, "w0", "w2", 1, in(net, seconds(1)));
  net.scheduler().advance(seconds(2));
  EXPECT_EQ(code_of(crossing), Code::kTimeout);
  EXPECT_EQ(code_of(inside), Code::kOk);
  net.heal();
  EXPECT_EQ(word_at(send_call(net, "w0", "w1", 2).wait().meta, 0), 2u);
  EXPECT_THAT(*lost, IsEmpty());
}

TEST(SimNetworkPartition, MayBeNoticedByBothSides) {
  SimNetwork net;
  const auto lost = losses(net);
  Echo echo(net, "w1");
  const auto pending = send_call(net, "w0", "w1");
  net.partition({"w0"}, {"w1"}, Cut::kNoticed);
  net.scheduler().drain();
  EXPECT_EQ(code_of(pending), Code::kDisconnected);
  EXPECT_THAT(*lost, SizeIs(2));
  const auto refused = send_call(net, "w0", "w1");
  net.scheduler().drain();
  EXPECT_EQ(code_of(refused), Code::kUnavailable);
  net.heal();
  EXPECT_EQ(word_at(send_call(net, "w0", "w1", 2).wait().meta, 0), 2u);
}

TEST(SimNetworkPartition, HidesDeathUntilItHeals) {
  SimNetwork net;
  const auto lost = losses(net);
  Echo echo(net, "w1");
  send_call(net, "w0", "w1").wait();
  net.partition({"w0"}, {"w1"});
  net.kill("w1");
  net.scheduler().advance(seconds(10));
  EXPECT_THAT(*lost, IsEmpty());
  net.heal();
  net.scheduler().drain();
  EXPECT_THAT(*lost, ElementsAre("w0: w1"));
}

// Random nested calls among four workers, with every kind of fault, as one run of a seed.
struct Storm {
  explicit Storm(uint64_t seed)
      : net({.workers = 4, .seed = seed, .max_latency = milliseconds(2), .stragglers = true}) {
    for (const WorkerInfo& worker : net.workers()) serve(worker.name);
    net.faults().drop(kAnyKind, {.probability = 0.02});
    net.faults().drop_reply(kAnyKind, {.probability = 0.02}, Loss::kFailsCall);
    net.faults().drop(kAnyKind, {.probability = 0.01}, Loss::kBreaksLine);
    net.faults().fail_in_flight(kAnyKind, {.probability = 0.02}, milliseconds(5));
    net.faults().duplicate(kAnyKind, {.probability = 0.05}, milliseconds(1));
    net.faults().delay(kAnyKind, milliseconds(10), {.probability = 0.05});
    for (int round = 0; round < 12; ++round) {
      for (int i = 0; i < 8; ++i) call_somebody(any_worker(), 4);
      if (round % 4 == 1) net.swizzle_clog(milliseconds(20));
      if (round % 4 == 2) restart(any_worker());
      if (round % 4 == 3) net.break_line("w0", any_worker());
      net.scheduler().advance(milliseconds(15));
    }
    net.scheduler().advance(seconds(10));
  }

  std::string any_worker() {
    return net.workers()[net.random().below(static_cast<size_t>(net.size()))].name;
  }
  void serve(const std::string& name) {
    net.at(name)->handle(wire::Kind::kCall, kAsTask, [this, name](Request request) {
      const uint64_t depth = word_at(request.frame().meta, 0);
      if (depth > 0) call_somebody(name, depth - 1).wait_for(seconds(2));
      request.reply(words(1, depth).span());
    });
  }
  void restart(const std::string& name) {
    net.kill(name, net.random().chance(0.5) ? Sent::kArrives : Sent::kLost);
    net.restart(name);
    serve(name);
  }
  Answered call_somebody(const std::string& from, uint64_t depth) {
    answers.push_back(send_call(net, from, any_worker(), depth, in(net, seconds(1))));
    return answers.back();
  }

  SimNetwork net;
  std::vector<Answered> answers;
};

TEST(SimNetworkStorm, TheSameSeedGivesTheSameTrace) {
  std::set<uint64_t> hashes;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    const Storm first(seed), second(seed);
    EXPECT_GT(first.net.trace().count(), 500u);
    EXPECT_EQ(first.net.trace().lines(), second.net.trace().lines());
    EXPECT_EQ(first.net.trace().hash(), second.net.trace().hash());
    hashes.insert(first.net.trace().hash());
  }
  EXPECT_THAT(hashes, SizeIs(10));
}

TEST(SimNetworkStorm, EveryCallEnds) {
  for (uint64_t seed = 100; seed < 120; ++seed) {
    Storm storm(seed);
    std::map<Code, int> codes;
    for (const Answered& answer : storm.answers) ++codes[code_of(answer)];
    EXPECT_EQ(codes[Code::kUnknown], 0) << storm.net.describe();  // not ready
    EXPECT_GT(codes[Code::kOk], 20);
    EXPECT_THAT(storm.net.scheduler().complaints(), IsEmpty());
    for (const WorkerInfo& worker : storm.net.workers()) {
      EXPECT_EQ(storm.net.at(worker.rank)->counters().in_flight, 0);
      EXPECT_EQ(storm.net.at(worker.rank)->counters().threads, 0);
    }
  }
}

}  // namespace
}  // namespace farspan::testing
