// The rules under test: rpc/wire/WIRE.md, "The handshake".
#include <farspan/rpc/agent/handshake.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/seeded_random.h"

namespace farspan::testing {
namespace {

using agent::Handshake;
using ::testing::HasSubstr;
using wire::Kind;

constexpr wire::InstanceId kRun{17, 4};

wire::Hello hello_of(int rank) {
  wire::Hello hello;
  hello.name = "w" + std::to_string(rank);
  hello.rank = rank;
  hello.instance = {kRun.high, kRun.low + static_cast<uint64_t>(rank)};
  hello.generation = "g1";
  hello.functions = {{uint64_t(rank) + 100, "f", "()"}};
  return hello;
}

wire::InFrame frame_of(Kind kind, Buffer meta) {
  wire::InFrame frame;
  frame.header.kind = kind;
  frame.meta = std::move(meta);
  return frame;
}
wire::InFrame frame_of(const Handshake::Action::Send& sent) {
  return frame_of(sent.kind, sent.meta);
}

// Worker 1 dials worker 0, as it knows it.
Handshake opener(const wire::Hello& mine = hello_of(1)) {
  return Handshake::opener(mine, {"w0", 0}, hello_of(0).instance);
}
Handshake accepter(Handshake::Admit admit = nullptr) {
  return Handshake::accepter(hello_of(0), std::move(admit));
}

// What both sides have come to.
struct Ends {
  Handshake::Action accepter, opener;
};
Ends shake(Handshake opening, Handshake accepting) {
  Ends ends;
  const auto first = opening.begin();
  EXPECT_FALSE(accepting.begin().send) << "the accepter says nothing unasked";
  ends.accepter = accepting.on_frame(frame_of(first.send.value()));
  if (ends.accepter.send) ends.opener = opening.on_frame(frame_of(*ends.accepter.send));
  return ends;
}

// Refused: the accepter says why, and the opener hears the same.
void expect_refused(const Ends& ends, Code code, const char* part) {
  ASSERT_TRUE(ends.accepter.failure);
  EXPECT_EQ(ends.accepter.send.value().kind, Kind::kRefuse);
  EXPECT_FALSE(ends.accepter.peer);
  ASSERT_TRUE(ends.opener.failure);
  EXPECT_FALSE(ends.opener.peer);
  EXPECT_FALSE(ends.opener.send);
  EXPECT_EQ(ends.accepter.failure->code(), code);
  EXPECT_THAT(ends.accepter.failure->message(), HasSubstr(part));
  EXPECT_STREQ(ends.opener.failure->what(), ends.accepter.failure->what());
}

// Failed without a word to the other side.
void expect_failed(const Handshake::Action& action, Code code, const char* part) {
  ASSERT_TRUE(action.failure);
  EXPECT_FALSE(action.peer);
  EXPECT_FALSE(action.send);
  EXPECT_EQ(action.failure->code(), code) << action.failure->what();
  EXPECT_THAT(action.failure->message(), HasSubstr(part));
}

TEST(Handshake, IntroducesBothSides) {
  const Ends ends = shake(opener(), accepter());
  ASSERT_TRUE(ends.accepter.peer);
  ASSERT_TRUE(ends.opener.peer);
  EXPECT_FALSE(ends.accepter.failure);
  EXPECT_FALSE(ends.opener.failure);
  EXPECT_EQ(ends.accepter.send.value().kind, Kind::kWelcome);
  EXPECT_EQ(ends.accepter.peer->name, "w1");
  EXPECT_EQ(ends.opener.peer->name, "w0");
  EXPECT_EQ(ends.accepter.peer->instance, hello_of(1).instance);
  EXPECT_EQ(ends.accepter.peer->functions.at(0).id, 101u);
  EXPECT_EQ(ends.opener.peer->functions.at(0).id, 100u);
}

TEST(Handshake, BeginsWithAHello) {
  const auto first = opener().begin();
  ASSERT_TRUE(first.send);
  EXPECT_EQ(first.send->kind, Kind::kHello);
  EXPECT_EQ(wire::decode_hello(first.send->meta.span()).name, "w1");
}

TEST(Handshake, TheAccepterMayRefuse) {
  const Error why = Error(Code::kAlreadyExists, "there is a line already").advice("use it");
  const Ends ends = shake(opener(), accepter([&](const wire::Hello& peer) {
                            EXPECT_EQ(peer.rank, 1);
                            return std::optional(why);
                          }));
  expect_refused(ends, Code::kAlreadyExists, "there is a line already");
  EXPECT_EQ(ends.opener.failure->advice(), "use it");
}

TEST(Handshake, NoCommonVersionIsRefusedWithBothRanges) {
  wire::Hello newer = hello_of(1);
  newer.min_version = 2;
  newer.max_version = 7;
  bool asked = false;
  const Ends ends = shake(opener(newer), accepter([&](const wire::Hello&) {
                            asked = true;
                            return std::optional<Error>();
                          }));
  expect_refused(ends, Code::kInvalidArgument, "worker 'w1' speaks wire versions 2 to 7");
  EXPECT_THAT(ends.opener.failure->message(), HasSubstr("worker 'w0' 1 to 1"));
  EXPECT_FALSE(asked) << "who cannot be talked to is not admitted";
}

TEST(Handshake, VersionsThatOverlapWillDo) {
  wire::Hello both = hello_of(1);
  both.max_version = 9;
  const Ends ends = shake(opener(both), accepter());
  EXPECT_TRUE(ends.accepter.peer);
  EXPECT_TRUE(ends.opener.peer);
}

TEST(Handshake, AnotherGenerationIsRefusedWithBothNames) {
  wire::Hello old = hello_of(1);
  old.generation = "g0";
  const Ends ends = shake(opener(old), accepter());
  expect_refused(ends, Code::kInvalidArgument, "('g0', not 'g1')");
}

TEST(Handshake, TheOpenerChecksTheAccepterToo) {
  const auto welcomed_by = [](const wire::Hello& other) {
    Handshake opening = opener();
    opening.begin();
    return opening.on_frame(frame_of(Kind::kWelcome, wire::encode(other)));
  };
  EXPECT_TRUE(welcomed_by(hello_of(0)).peer);
  wire::Hello other = hello_of(0);
  other.min_version = other.max_version = 2;
  expect_failed(welcomed_by(other), Code::kInvalidArgument, "wire versions 2 to 2");
  other = hello_of(0);
  other.generation = "g2";
  expect_failed(welcomed_by(other), Code::kInvalidArgument, "another run of the job");
  other = hello_of(0);
  other.rank = 2;
  expect_failed(welcomed_by(other), Code::kInvalidArgument,
                "rank 2 answered where rank 0 should be");
  other = hello_of(0);
  other.name = "ps";
  expect_failed(welcomed_by(other), Code::kInvalidArgument, "rank 0 is called 'ps', not 'w0'");
  other = hello_of(0);
  other.instance.low += 1;
  expect_failed(welcomed_by(other), Code::kInvalidArgument, "worker 'w0' was restarted");
}

TEST(Handshake, AnIdentityIsNameAndRun) {
  const WorkerInfo known{"w1", 1};
  EXPECT_FALSE(agent::objection_to_identity(hello_of(1), known, hello_of(1).instance));
  wire::Hello twin = hello_of(1);
  twin.name = "w7";
  EXPECT_TRUE(agent::objection_to_identity(twin, known, twin.instance));
  EXPECT_TRUE(agent::objection_to_identity(hello_of(1), known, kRun));
}

TEST(Handshake, OnlyAHelloBeginsIt) {
  for (int kind = 0; kind < 256; ++kind) {
    if (kind == static_cast<int>(Kind::kHello)) continue;
    Handshake accepting = accepter();
    expect_failed(accepting.on_frame(frame_of(static_cast<Kind>(kind), wire::encode(hello_of(1)))),
                  Code::kCorrupt, "the first frame is no hello");
  }
}

TEST(Handshake, OnlyWelcomeOrRefuseAnswerIt) {
  for (int kind = 0; kind < 256; ++kind) {
    const auto what = static_cast<Kind>(kind);
    if (what == Kind::kWelcome || what == Kind::kRefuse) continue;
    Handshake opening = opener();
    opening.begin();
    expect_failed(opening.on_frame(frame_of(what, wire::encode(hello_of(0)))), Code::kCorrupt,
                  "a hello was answered by something else");
  }
}

TEST(Handshake, GarbageIsCorruptOnBothSides) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    SeededRandom random(seed);
    Buffer garbage = Buffer::allocate(8 * random.below(20));
    for (std::byte& byte : garbage.span()) byte = static_cast<std::byte>(random.next());
    for (const Kind kind : {Kind::kHello, Kind::kWelcome, Kind::kRefuse}) {
      Handshake side = kind == Kind::kHello ? accepter() : opener();
      side.begin();
      const auto action = side.on_frame(frame_of(kind, garbage));
      ASSERT_TRUE(action.failure) << "seed " << seed;
      EXPECT_FALSE(action.peer);
    }
  }
}

TEST(Handshake, ARefusalWithoutACodeIsAFailureAllTheSame) {
  Handshake opening = opener();
  opening.begin();
  const Error odd(Code::kOk, "?");
  expect_failed(opening.on_frame(frame_of(Kind::kRefuse, wire::encode(odd))), Code::kUnknown, "?");
}

}  // namespace
}  // namespace farspan::testing
