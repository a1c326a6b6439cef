// The rules under test: rpc/wire/WIRE.md, "The handshake" and "Limits", and rpc/agent/greeting.h.
#include <farspan/rpc/agent/greeting.h>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/transport/socket_stream.h>

#include "rpc/agent/stranger.h"
#include "rpc/wire/frame_bytes.h"

namespace farspan::testing {
namespace {

using agent::Greeting;
using agent::Handshake;
using std::chrono::milliseconds;
using std::chrono::seconds;

using Ended = std::shared_ptr<Greeting::Outcome>;

// One reactor, and socket pairs with a greeting at one or at both ends.
class GreetingTest : public ::testing::Test {
 protected:
  ~GreetingTest() override {
    reactor_.stop();
    close_ends();
  }
  void SetUp() override { renew(); }

  void close_ends() {
    for (int* fd : {&mine_, &theirs_}) {
      if (*fd >= 0) close(std::exchange(*fd, -1));
    }
  }
  // Another pair of sockets.
  void renew() {
    close_ends();
    int pair[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    mine_ = pair[0];
    theirs_ = pair[1];
  }
  // With a small buffer, so that it is full soon.
  std::unique_ptr<transport::Stream> stream(int& fd) {
    auto over = std::make_unique<transport::SocketStream>(std::exchange(fd, -1), "pair");
    const int small = 64 << 10;
    setsockopt(over->write_descriptor(), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    return over;
  }
  Future<Ended> greet(std::unique_ptr<transport::Stream> over, Handshake handshake,
                      Deadline deadline = Deadline::after(seconds(20))) {
    Promise<Ended> promise;
    auto reader = std::make_unique<wire::FrameReader>(agent::kGreetingLimits, wire::FrameLimits(),
                                                      [this](size_t size) {
                                                        ++allocations_;
                                                        return Buffer::allocate(size);
                                                      });
    auto greeting = std::make_shared<Greeting>(
        reactor_, std::move(over), std::move(reader), std::move(handshake),
        [promise](Greeting::Outcome outcome) {
          promise.set_value(std::make_shared<Greeting::Outcome>(std::move(outcome)));
        });
    greeting->start(deadline);
    greeting_ = greeting;
    return promise.future();
  }
  static Handshake opener(const wire::Hello& mine = hello_of(1)) {
    return Handshake::opener(mine, {"w0", 0}, hello_of(0).instance);
  }
  static Handshake accepter(const wire::Hello& mine = hello_of(0)) {
    return Handshake::accepter(mine, nullptr);
  }
  // Greets what says these bytes.
  Ended greet_with(const Bytes& bytes) {
    EXPECT_EQ(write(theirs_, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    const auto ended = greet(stream(mine_), accepter());
    EXPECT_TRUE(ended.wait_for(seconds(20)));
    return ended.value();
  }

  net::Reactor reactor_;
  int mine_ = -1, theirs_ = -1;
  std::atomic<int> allocations_{0};
  std::shared_ptr<Greeting> greeting_;
};

TEST_F(GreetingTest, HandsTheStreamOnWhenBothAreIntroduced) {
  const auto accepted = greet(stream(mine_), accepter());
  const auto opened = greet(stream(theirs_), opener());
  for (const auto& ended : {accepted, opened}) {
    ASSERT_TRUE(ended.wait_for(seconds(20)));
    const Ended outcome = ended.value();
    EXPECT_FALSE(outcome->failure);
    EXPECT_TRUE(outcome->peer);
    EXPECT_TRUE(outcome->stream);
    EXPECT_TRUE(outcome->reader);
    EXPECT_TRUE(outcome->frames.empty());
    EXPECT_TRUE(outcome->unsent.empty());
  }
}

// The hello is larger than the sockets' buffers.
TEST_F(GreetingTest, ALargeTableOfFunctionsGoesThrough) {
  wire::Hello large = hello_of(1);
  for (uint64_t i = 0; i < 20'000; ++i)
    large.functions.push_back({i, std::string(90, 'f'), "(int)"});
  ASSERT_LE(wire::encode(large).size(), agent::kGreetingLimits.max_meta_bytes);
  ASSERT_GT(wire::encode(large).size(), 2u << 20);
  const auto opened = greet(stream(theirs_), opener(large));
  const auto accepted = greet(stream(mine_), accepter());
  ASSERT_TRUE(accepted.wait_for(seconds(20)));
  ASSERT_TRUE(accepted.value()->peer) << accepted.value()->failure->what();
  EXPECT_EQ(accepted.value()->peer->functions.size(), 20'000u);
  EXPECT_TRUE(opened.wait_for(seconds(20)));
}

TEST_F(GreetingTest, WhatTheWelcomeHasLeftIsHandedOn) {
  wire::Hello large = hello_of(0);
  for (uint64_t i = 0; i < 20'000; ++i)
    large.functions.push_back({i, std::string(90, 'f'), "(int)"});
  const Bytes hello = to_bytes({.kind = 1, .request_id = 0, .meta = [] {
                                  const Buffer meta = wire::encode(hello_of(1));
                                  return Bytes(meta.data(), meta.data() + meta.size());
                                }()});
  ASSERT_EQ(write(theirs_, hello.data(), hello.size()), static_cast<ssize_t>(hello.size()));
  const auto accepted = greet(stream(mine_), accepter(large));
  ASSERT_TRUE(accepted.wait_for(seconds(20)));
  const Ended outcome = accepted.value();
  ASSERT_TRUE(outcome->peer);
  ASSERT_FALSE(outcome->unsent.empty());
  // Expect: what was sent and what is left make the whole WELCOME.
  Bytes all(8 << 20);
  const ssize_t sent = read(theirs_, all.data(), all.size());
  ASSERT_GT(sent, 0);
  all.resize(static_cast<size_t>(sent));
  for (const Buffer& piece : outcome->unsent) append(all, piece.span());
  Reading reading;
  reading.feed(all);
  ASSERT_EQ(reading.frames().size(), 1u);
  EXPECT_EQ(reading.frames()[0].header.kind, wire::Kind::kWelcome);
  EXPECT_EQ(wire::decode_hello(reading.frames()[0].meta.span()).functions.size(), 20'000u);
}

TEST_F(GreetingTest, FramesBehindTheHandshakeAreKept) {
  const Buffer hello = wire::encode(hello_of(1));
  Bytes bytes = to_bytes({.kind = 1, .meta = Bytes(hello.data(), hello.data() + hello.size())});
  append(bytes, to_bytes({.request_id = 7, .segments = {pattern(20)}}));
  const Bytes next = to_bytes({.request_id = 8, .meta = pattern(16)});
  append(bytes, std::span(next).first(50));
  const Ended outcome = greet_with(bytes);
  ASSERT_FALSE(outcome->failure);
  ASSERT_EQ(outcome->frames.size(), 1u);
  EXPECT_EQ(outcome->frames[0].header.request_id, 7u);
  EXPECT_FALSE(outcome->reader->idle()) << "it holds the beginning of the next";
}

TEST_F(GreetingTest, SilenceEndsAtTheDeadline) {
  for (const bool opens : {false, true}) {
    renew();
    const TimePoint begun = Clock::now();
    const auto ended =
        greet(stream(mine_), opens ? opener() : accepter(), Deadline::after(milliseconds(40)));
    ASSERT_TRUE(ended.wait_for(seconds(20)));
    EXPECT_EQ(ended.value()->failure.value().code(), Code::kTimeout);
    EXPECT_GE(Clock::now() - begun, milliseconds(40));
  }
}

TEST_F(GreetingTest, AHelloThatNeverEndsEndsAtTheDeadline) {
  const Bytes half = to_bytes({.kind = 1, .meta = pattern(4000)});
  ASSERT_EQ(write(theirs_, half.data(), 2000), 2000);
  const auto ended = greet(stream(mine_), accepter(), Deadline::after(milliseconds(40)));
  ASSERT_TRUE(ended.wait_for(seconds(20)));
  EXPECT_EQ(ended.value()->failure.value().code(), Code::kTimeout);
}

TEST_F(GreetingTest, CanBeAborted) {
  const auto ended = greet(stream(mine_), accepter(), Deadline::never());
  greeting_->abort();
  ASSERT_TRUE(ended.wait_for(seconds(20)));
  EXPECT_EQ(ended.value()->failure.value().code(), Code::kTimeout);
  greeting_->abort();  // has no effect any more
}

TEST_F(GreetingTest, TheEndOfTheStreamIsDisconnected) {
  const auto ended = greet(stream(mine_), accepter());
  close(std::exchange(theirs_, -1));
  ASSERT_TRUE(ended.wait_for(seconds(20)));
  EXPECT_EQ(ended.value()->failure.value().code(), Code::kDisconnected);
}

TEST_F(GreetingTest, GarbageIsCorruptAndAnsweredByNothing) {
  const Ended outcome = greet_with(pattern(500));
  EXPECT_EQ(outcome->failure.value().code(), Code::kCorrupt);
  std::byte byte;
  EXPECT_EQ(read(theirs_, &byte, 1), -1) << "nothing was sent; the stream is its new owner's";
}

TEST_F(GreetingTest, AStrangerCannotMakeItAllocate) {
  const RawFrame greedy[] = {
      {.kind = 1, .meta_bytes = (4u << 20) + 8},
      {.kind = 1, .segment_count = 1, .payload_bytes = 1 << 30, .lengths = {1 << 30}},
  };
  for (const RawFrame& frame : greedy) {
    renew();
    EXPECT_EQ(greet_with(to_bytes(frame))->failure.value().code(), Code::kCorrupt);
  }
  EXPECT_EQ(allocations_, 0);
}

}  // namespace
}  // namespace farspan::testing
