// The rules under test: rpc/wire/WIRE.md, seen by somebody who speaks it without farspan's help: a
// raw stream to an agent.
#include <farspan/rpc/agent/agent.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include <farspan/c10d/base/log.h>

#include "rpc/agent/stranger.h"
#include "support/agents.h"

namespace farspan::testing {
namespace {

using agent::Messenger;
using agent::Request;
using std::chrono::seconds;
using ::testing::HasSubstr;

// An agent "ps" of rank 0 that knows of a rank 1, whom the tests play.
class StrangerTest : public ::testing::Test {
 protected:
  StrangerTest() : agent_(options()) {
    agent_.handle(wire::Kind::kCall, Messenger::Run::kAsTask, [](Request request) {
      const wire::InFrame frame = request.frame();
      request.reply(frame.meta.span(), frame.segments);
    });
    agent_.handle(wire::Kind::kRRefControl, Messenger::Run::kInline,
                  [this](Request) { ++arrived_; });
    agent_.handle(wire::Kind::kBuiltinCall, Messenger::Run::kInline,
                  [this](Request request) { request.reply(large_); });
    agent_.on_worker_lost([this](int, const Error& why) { lost_.set_value(why); });
    const agent::PeerRecord me{{"trainer", 1}, hello().instance, {}};
    agent_.set_workers({agent_.record(), me});  // from here on requests may come
  }
  ~StrangerTest() override { agent_.stop(); }

  static agent::AgentOptions options() {
    agent::AgentOptions options;
    options.self = {"ps", 0};
    options.generation = "g1";
    options.transports = {"unix"};
    options.functions = {{42, "f", "()"}};
    return options;
  }
  static wire::Hello hello() {
    wire::Hello hello;
    hello.name = "trainer";
    hello.rank = 1;
    hello.instance = {1, 2};
    hello.generation = "g1";
    return hello;
  }
  std::string endpoint() const { return agent_.record().endpoints.at(0); }

  void expect_refused(const wire::Hello& mine, Code code, const char* part) {
    Stranger stranger(endpoint());
    stranger.say(hello_frame(mine));
    const auto answer = stranger.hear();
    ASSERT_TRUE(answer) << part;
    EXPECT_EQ(answer->header.kind, wire::Kind::kRefuse);
    EXPECT_EQ(answer->header.flags, 0);
    EXPECT_EQ(answer->header.request_id, 0u);
    const Error why = wire::decode_error(answer->meta.span());
    EXPECT_EQ(why.code(), code);
    EXPECT_THAT(why.message(), HasSubstr(part));
    EXPECT_FALSE(stranger.hear()) << "the connection ends";
  }
  void welcome(Stranger& stranger) {
    stranger.say(hello_frame(hello()));
    const auto answer = stranger.hear();
    ASSERT_TRUE(answer);
    ASSERT_EQ(answer->header.kind, wire::Kind::kWelcome);
  }
  // What is said breaks the protocol: the line ends, and the loss is announced with kCorrupt.
  void expect_hangs_up_on(Stranger& stranger, const Bytes& bytes) {
    stranger.say(bytes);
    if (const auto last = stranger.hear()) {  // none where the line was not quite open yet
      EXPECT_EQ(last->header.kind, wire::Kind::kLineEnd);
      EXPECT_EQ(wire::decode_error(last->meta.span()).code(), Code::kCorrupt);
      EXPECT_FALSE(stranger.hear());
    }
    ASSERT_TRUE(lost_.future().wait_for(Millis(20'000)));
    EXPECT_EQ(lost_.future().value().code(), Code::kCorrupt);
  }

  Promise<Error> lost_;
  std::atomic<int> arrived_{0};                // requests of kind kRRefControl
  const Bytes large_ = Bytes((16 << 20) + 8);  // more than a frame's metadata may be
  agent::Agent agent_;
};

TEST_F(StrangerTest, WhoIsKnownIsWelcomed) {
  Stranger stranger(endpoint());
  stranger.say(hello_frame(hello()));
  const auto answer = stranger.hear();
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->header.kind, wire::Kind::kWelcome);
  EXPECT_EQ(answer->header.flags, 0);
  EXPECT_EQ(answer->header.request_id, 0u);
  EXPECT_TRUE(answer->segments.empty());
  const wire::Hello theirs = wire::decode_hello(answer->meta.span());
  EXPECT_EQ(theirs.name, "ps");
  EXPECT_EQ(theirs.rank, 0);
  EXPECT_EQ(theirs.generation, "g1");
  EXPECT_EQ(theirs.min_version, 1);
  EXPECT_EQ(theirs.max_version, 1);
  EXPECT_EQ(theirs.functions.at(0).id, 42u);
  EXPECT_EQ(theirs.authentication, "");
}

TEST_F(StrangerTest, WhoDoesNotBelongHereIsRefusedWithTheReason) {
  wire::Hello other = hello();
  other.min_version = other.max_version = 3;
  expect_refused(other, Code::kInvalidArgument, "wire versions 3 to 3");
  other = hello();
  other.generation = "g0";
  expect_refused(other, Code::kInvalidArgument, "another run of the job");
  other = hello();
  other.instance.low += 1;
  expect_refused(other, Code::kInvalidArgument, "worker 'trainer' was restarted");
  other = hello();
  other.name = "ps";
  expect_refused(other, Code::kInvalidArgument, "rank 1 is called 'ps', not 'trainer'");
  for (const int rank : {-1, 2, 1 << 30}) {
    other = hello();
    other.rank = rank;
    expect_refused(other, Code::kUnavailable, "does not know rank");
  }
  // Expect: none of them keeps the right one out.
  Stranger stranger(endpoint());
  welcome(stranger);
}

TEST_F(StrangerTest, ASecondConnectionIsRefused) {
  Stranger stranger(endpoint());
  welcome(stranger);
  expect_refused(hello(), Code::kAlreadyExists, "there is a line already");
  // Expect: the first one is as good as before.
  stranger.say(RawFrame{.request_id = 5, .meta = pattern(8)});
  EXPECT_EQ(stranger.hear().value().header.request_id, 5u);
}

TEST_F(StrangerTest, WhoseLineWasLostMayComeAgain) {
  for (int round = 0; round < 5; ++round) {
    const Deadline deadline = Deadline::after(seconds(20));
    for (bool is_welcome = false; !is_welcome; std::this_thread::yield()) {
      ASSERT_FALSE(deadline.expired());
      Stranger stranger(endpoint());
      stranger.say(hello_frame(hello()));
      const auto answer = stranger.hear();
      ASSERT_TRUE(answer);
      is_welcome = answer->header.kind == wire::Kind::kWelcome;
      if (is_welcome) continue;
      // The agent has not noticed yet that the line before has ended.
      EXPECT_EQ(wire::decode_error(answer->meta.span()).code(), Code::kAlreadyExists);
    }
  }
}

TEST_F(StrangerTest, GarbageInPlaceOfAHelloEndsTheConnectionWithoutAWord) {
  for (const Bytes& bytes : {pattern(64), to_bytes({.kind = 0x10, .meta = pattern(8)}),
                             to_bytes({.kind = 1, .meta = pattern(64)}),
                             to_bytes({.kind = 1, .segments = {pattern(8)}})}) {
    Stranger stranger(endpoint());
    stranger.say(bytes);
    EXPECT_FALSE(stranger.hear());
  }
  Stranger stranger(endpoint());
  welcome(stranger);
}

TEST_F(StrangerTest, AReplyRepeatsIdKindAndChain) {
  Stranger stranger(endpoint());
  welcome(stranger);
  stranger.say(RawFrame{.request_id = 0xfedcba9876543210,
                        .remaining_us = 60'000'000,
                        .chain = 0x0002'0000'0000'0007,
                        .meta = pattern(16),
                        .segments = {pattern(30'000), {}, pattern(3)}});
  const auto reply = stranger.hear();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->header.kind, wire::Kind::kCall);
  EXPECT_EQ(reply->header.flags, 1);
  EXPECT_EQ(reply->header.request_id, 0xfedcba9876543210u);
  EXPECT_EQ(reply->header.chain, 0x0002'0000'0000'0007u);
  EXPECT_EQ(reply->header.remaining_us, 0u);
  EXPECT_TRUE(same(reply->meta.span(), pattern(16)));
  EXPECT_TRUE(same(reply->segments.at(0).span(), pattern(30'000)));
}

TEST_F(StrangerTest, AKindThatNobodyHandlesIsAnsweredAndAOneWayOneIsNot) {
  Stranger stranger(endpoint());
  welcome(stranger);
  // Also those of the handshake, which is over.
  for (const uint8_t kind : {0x01, 0x02, 0x03, 0x0f, 0x20, 0xff}) {
    stranger.say(RawFrame{.kind = kind, .flags = 4, .request_id = 1});
    stranger.say(RawFrame{.kind = kind, .request_id = 2});
    const auto reply = stranger.hear();
    ASSERT_TRUE(reply) << int{kind};
    EXPECT_EQ(reply->header.flags, 3);
    EXPECT_EQ(reply->header.request_id, 2u);
    EXPECT_EQ(static_cast<uint8_t>(reply->header.kind), kind);
    EXPECT_EQ(wire::decode_error(reply->meta.span()).code(), Code::kNotRegistered);
  }
}

TEST_F(StrangerTest, FlagsThatAreNotKnownAreIgnored) {
  Stranger stranger(endpoint());
  welcome(stranger);
  stranger.say(RawFrame{.flags = 0xffd0, .request_id = 3});
  EXPECT_EQ(stranger.hear().value().header.flags, 1);
}

TEST_F(StrangerTest, RepliesThatNobodyWaitsForAreLetGo) {
  Stranger stranger(endpoint());
  welcome(stranger);
  for (const uint64_t id : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32 | 1, ~uint64_t{0}}) {
    stranger.say(RawFrame{.flags = 1, .request_id = id, .meta = pattern(8)});
    stranger.say(RawFrame{.flags = 3, .request_id = id, .meta = pattern(8)});
  }
  stranger.say(RawFrame{.request_id = 4});
  EXPECT_EQ(stranger.hear().value().header.request_id, 4u);
}

TEST_F(StrangerTest, ABrokenFrameEndsTheConnectionAfterTheWholeOnesBeforeIt) {
  Stranger stranger(endpoint());
  welcome(stranger);
  Bytes bytes = to_bytes({.kind = 0x23, .flags = 4});
  append(bytes, to_bytes({.kind = 0x23, .flags = 4}));
  append(bytes, to_bytes({.magic = 0x12345678}));
  expect_hangs_up_on(stranger, bytes);
  EXPECT_EQ(arrived_, 2);
}

TEST_F(StrangerTest, AFrameAboveTheLimitsEndsTheConnection) {
  Stranger stranger(endpoint());
  welcome(stranger);
  expect_hangs_up_on(stranger, to_bytes({.meta_bytes = (16u << 20) + 8}));
}

TEST_F(StrangerTest, CallsThatWaitFailWhenTheOtherSideBreaksTheProtocol) {
  Stranger stranger(endpoint());
  welcome(stranger);
  auto answer = std::make_shared<Answer>();
  wire::OutFrame frame;
  agent_.call(1, frame, Deadline::never(), answer, false);
  const auto request = stranger.hear();
  ASSERT_TRUE(request);
  EXPECT_NE(request->header.request_id, 0u);
  EXPECT_EQ(request->header.remaining_us, 0u);
  EXPECT_EQ(request->header.chain >> 48, 1u) << "its rank + 1";
  expect_hangs_up_on(stranger, pattern(48));
  ASSERT_TRUE(answer->future().wait_for(Millis(20'000)));
  EXPECT_EQ(answer->future().error().code(), Code::kCorrupt);
}

TEST_F(StrangerTest, TheTimeThatIsLeftTravelsWithARequest) {
  Stranger stranger(endpoint());
  welcome(stranger);
  auto answer = std::make_shared<Answer>();
  wire::OutFrame frame;
  agent_.call(1, frame, Deadline::after(seconds(30)), answer, false);
  const auto request = stranger.hear();
  ASSERT_TRUE(request);
  EXPECT_LE(request->header.remaining_us, 30'000'000u);
  EXPECT_GT(request->header.remaining_us, 10'000'000u);
  stranger.say(RawFrame{.flags = 1, .request_id = request->header.request_id});
  EXPECT_TRUE(answer->future().wait_for(Millis(20'000)));
  EXPECT_FALSE(answer->future().has_error());
}

TEST_F(StrangerTest, WhatIsTooLargeForTheWireIsNotSent) {
  Stranger stranger(endpoint());
  welcome(stranger);
  auto answer = std::make_shared<Answer>();
  wire::OutFrame frame;
  frame.meta = large_;
  agent_.call(1, frame, Deadline::never(), answer, false);
  ASSERT_TRUE(answer->future().ready());
  EXPECT_EQ(answer->future().error().code(), Code::kInvalidArgument);
  EXPECT_EQ(agent_.counters().in_flight, 0);
  set_log_sink([](LogLevel, std::string_view, std::string_view) {});
  agent_.post(1, frame);  // dropped, and logged
  set_log_sink(nullptr);
  // Expect: a failed answer in place of one that is too large, and nothing else before it.
  stranger.say(RawFrame{.kind = 0x11, .request_id = 9, .chain = 3});
  const auto reply = stranger.hear();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->header.flags, 3);
  EXPECT_EQ(reply->header.request_id, 9u);
  EXPECT_EQ(reply->header.chain, 3u);
  EXPECT_EQ(wire::decode_error(reply->meta.span()).code(), Code::kInvalidArgument);
}

TEST_F(StrangerTest, AfterAGoodbyeTheEndIsToldAsOne) {
  {
    Stranger stranger(endpoint());
    welcome(stranger);
    stranger.say(RawFrame{.kind = 6, .flags = 4});
    stranger.say(RawFrame{.request_id = 1});  // so that the goodbye was read before the end is
    EXPECT_TRUE(stranger.hear());
  }
  const Deadline deadline = Deadline::after(seconds(20));
  while (agent_.counters().connections > 0 && !deadline.expired()) std::this_thread::yield();
  EXPECT_EQ(agent_.counters().connections, 0);
  ASSERT_TRUE(lost_.future().wait_for(Millis(20'000)));
  EXPECT_EQ(lost_.future().value().code(), Code::kShutdown);
}

TEST_F(StrangerTest, WithoutAGoodbyeTheEndIsALoss) {
  {
    Stranger stranger(endpoint());
    welcome(stranger);
  }
  ASSERT_TRUE(lost_.future().wait_for(Millis(20'000)));
  EXPECT_EQ(lost_.future().value().code(), Code::kDisconnected);
}

TEST_F(StrangerTest, EachLineThatEndsIsTold) {
  std::atomic<int> told{0};
  agent_.on_worker_lost([&](int, const Error&) { ++told; });
  for (int lines = 1; lines <= 3; ++lines) {
    {
      Stranger stranger(endpoint());
      welcome(stranger);
    }
    const Deadline deadline = Deadline::after(seconds(20));
    while (told < lines && !deadline.expired()) std::this_thread::yield();
    ASSERT_EQ(told, lines);
  }
}

TEST_F(StrangerTest, AnAgentThatStopsSaysGoodbye) {
  Stranger stranger(endpoint());
  welcome(stranger);
  stranger.say(RawFrame{.request_id = 1});
  ASSERT_TRUE(stranger.hear()) << "the line is open on both sides";
  agent_.stop();
  const auto last = stranger.hear();
  ASSERT_TRUE(last);
  EXPECT_EQ(last->header.kind, wire::Kind::kGoodbye);
  EXPECT_EQ(last->header.flags, 4);
  EXPECT_FALSE(stranger.hear());
}

}  // namespace
}  // namespace farspan::testing
