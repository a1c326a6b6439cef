// The rules under test: rpc/agent/README.md, "A line's life": what becomes of calls when their line
// breaks, and by which way the next line goes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <future>
#include <optional>
#include <vector>

#include <farspan/rpc/agent/unsteady_ways.h>

#include "rpc/agent/connection_suite.h"
#include "rpc/agent/impostor.h"
#include "support/sanitizers.h"
#include "support/seeded_random.h"

namespace farspan::testing {
namespace {

using agent::UnsteadyWays;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(UnsteadyWays, AreThoseThatBreakTwiceInAShortTime) {
  const TimePoint start = Clock::now();
  const auto at = [&](int second) { return start + seconds(second); };
  UnsteadyWays ways;
  EXPECT_FALSE(ways.is_unsteady("shm", at(0)));
  ways.note_break("shm", at(0));
  EXPECT_FALSE(ways.is_unsteady("shm", at(0)));
  ways.note_break("shm", at(11));
  EXPECT_FALSE(ways.is_unsteady("shm", at(11)));
  ways.note_break("shm", at(20));
  EXPECT_TRUE(ways.is_unsteady("shm", at(20)));
  EXPECT_FALSE(ways.is_unsteady("unix", at(20)));
  EXPECT_TRUE(ways.is_unsteady("shm", at(79)));
  EXPECT_FALSE(ways.is_unsteady("shm", at(80)));
  // Expect: when it breaks once more as soon as it is tried again, it is left again.
  ways.note_break("shm", at(90));
  EXPECT_TRUE(ways.is_unsteady("shm", at(149)));
  ways.note_break("shm", at(161));
  EXPECT_FALSE(ways.is_unsteady("shm", at(161)));
}

// w0 with two ways to w1, whom the test plays at the end of both.
class BrokenLine : public ::testing::Test {
 protected:
  explicit BrokenLine(const wire::Hello& other = hello_of(1), uint64_t limit = kConnectionLimit,
                      const char* local = "unix")
      : other_(other),
        local_(std::in_place, local_streams_.keep(), local),
        tcp_(tcp_streams_.keep(), "tcp"),
        agent_(options(local, limit)) {
    agent_.set_workers(
        {agent_.record(),
         {{other_.name, 1}, other_.instance, {local_->endpoint(), tcp_.endpoint()}}});
  }
  ~BrokenLine() override { agent_.stop(); }
  static agent::AgentOptions options(const char* local, uint64_t limit) {
    agent::AgentOptions options = options_of_w0({local, "tcp"}, Millis(20'000));
    options.connection.max_in_flight_bytes = limit;
    return options;
  }
  Future<wire::InFrame> call(size_t bytes = 0) { return call_with(Buffer::allocate(bytes)); }
  Future<wire::InFrame> call_with(Buffer segment) {
    const auto answer = std::make_shared<Answer>();
    wire::OutFrame frame;
    frame.segments.push_back(std::move(segment));
    agent_.call(1, frame, Deadline::after(seconds(60)), answer, false);
    return answer->future();
  }
  void begin(const std::shared_ptr<Answer>& handler, Millis timeout, size_t bytes = 0) {
    wire::OutFrame frame;
    frame.segments = {Buffer::allocate(bytes)};
    agent_.call(1, frame, Deadline::after(timeout), handler, false);
  }
  // The line that w0 dials next there, open; null: it dials none.
  std::unique_ptr<Stranger> opened(Streams& way) { return opened(way, other_); }
  std::unique_ptr<Stranger> opened(Streams& way, const wire::Hello& other) {
    std::shared_ptr<transport::Stream> stream;
    if (!eventually([&] { return (stream = way.take()) != nullptr; }, seconds(30))) return nullptr;
    auto line = std::make_unique<Stranger>(std::move(stream));
    welcome(*line, other);
    return line;
  }
  // Answers the next request there, which is that of `answer`. Returns its segment.
  static Buffer answered(Stranger* line, const Future<wire::InFrame>& answer) {
    EXPECT_TRUE(line);
    const auto request = line ? line->hear() : std::nullopt;
    EXPECT_TRUE(request);
    if (!request) return {};
    line->say(RawFrame{.flags = 1, .request_id = request->header.request_id});
    EXPECT_TRUE(answer.wait_for(Millis(20'000)));
    EXPECT_FALSE(answer.has_error()) << answer.error().what();
    return request->segments.at(0);
  }
  // The same, after it has carried a call.
  std::unique_ptr<Stranger> used(Streams& way) {
    const auto answer = call();
    auto line = opened(way);
    if (!line) return nullptr;
    answer_one(*line);
    EXPECT_TRUE(answer.wait_for(Millis(20'000)));
    return line;
  }
  // One on which the first frame that w0 writes fails, and with it the line.
  bool fails_at_once(Streams& way) {
    std::shared_ptr<transport::Stream> stream;
    if (!eventually([&] { return (stream = way.take()) != nullptr; }, seconds(30))) return false;
    Stranger line(std::move(stream));
    if (!line.hear()) return false;  // its hello
    line.stop_hearing();
    line.say(hello_frame(other_, 2));
    return true;
  }
  // A line by that way carries a call, and breaks.
  void open_and_break(Streams& way) {
    const auto lost = call();
    auto line = opened(way);
    ASSERT_TRUE(line);
    ASSERT_TRUE(line->hear());
    line.reset();
    ASSERT_TRUE(lost.wait_for(Millis(20'000)));
    EXPECT_EQ(lost.error().code(), Code::kDisconnected);
  }

  const wire::Hello other_;
  Streams local_streams_, tcp_streams_;
  std::optional<Impostor> local_;
  const Impostor tcp_;
  agent::Agent agent_;
};

// Else what comes by the next line may be taken for something of the last one.
TEST_F(BrokenLine, TheNextOneWaitsUntilAllHaveBeenToldOfItsEnd) {
  const Promise<void> told, go_on;
  agent_.on_worker_lost([told, go_on](int, const Error&) {
    told.set_value();
    go_on.future().wait_for(Millis(20'000));
  });
  open_and_break(local_streams_);
  ASSERT_TRUE(told.future().wait_for(Millis(20'000)));
  const auto answer_to_hello = [&] {
    Stranger dialler(agent_.record().endpoints.at(0));
    dialler.say(hello_frame(other_));
    const auto reply = dialler.hear();
    return reply ? reply->header.kind : wire::Kind::kHello;
  };
  EXPECT_EQ(answer_to_hello(), wire::Kind::kRefuse);
  go_on.set_value();
  EXPECT_TRUE(eventually([&] { return answer_to_hello() == wire::Kind::kWelcome; }));
}

TEST_F(BrokenLine, CallsThatHaveNotLeftItGoByTheNextOne) {
  constexpr size_t kWaiting = 4;
  const auto first = call(kConnectionLimit * 9 / 10);
  auto line = opened(local_streams_);
  ASSERT_TRUE(line);
  ASSERT_TRUE(line->hear());
  std::vector<std::future<Future<wire::InFrame>>> waiting;
  for (size_t i = 0; i < kWaiting; ++i) {
    waiting.push_back(std::async(std::launch::async, [&] { return call(kConnectionLimit / 2); }));
  }
  EXPECT_TRUE(eventually([&] { return agent_.counters().calls_sent == 1 + kWaiting; }));
  for (const auto& sent : waiting) {
    EXPECT_EQ(sent.wait_for(milliseconds(20)), std::future_status::timeout) << "there is no room";
  }
  line.reset();
  ASSERT_TRUE(first.wait_for(Millis(20'000)));
  EXPECT_EQ(first.error().code(), Code::kDisconnected) << "it may have been run";
  line = opened(local_streams_);
  ASSERT_TRUE(line);
  for (size_t i = 0; i < kWaiting; ++i) {
    const auto request = line->hear();
    ASSERT_TRUE(request);
    EXPECT_EQ(request->segments.at(0).size(), kConnectionLimit / 2);
    line->say(RawFrame{.flags = 1, .request_id = request->header.request_id});
  }
  for (auto& sent : waiting) {
    const Future<wire::InFrame> answer = sent.get();
    ASSERT_TRUE(answer.wait_for(Millis(20'000)));
    EXPECT_FALSE(answer.has_error()) << answer.error().what();
  }
}

// More lies in its outbox than its way takes.
class BlockedLine : public BrokenLine, public ::testing::WithParamInterface<const char*> {
 protected:
  static constexpr uint64_t kLarge = 32 << 20;
  BlockedLine() : BrokenLine(hello_of(1), 2 * kLarge, GetParam()) {}
};

TEST_P(BlockedLine, CallsThatLieBehindOneThatLeavesGoByTheNextOne) {
  const std::vector<size_t> sizes = {0, 1000, 5000, 100'000};
  auto line = used(local_streams_);
  ASSERT_TRUE(line);
  const auto leaving = call(kLarge);
  std::vector<Future<wire::InFrame>> behind;
  for (const size_t size : sizes) behind.push_back(call(size));
  line.reset();
  ASSERT_TRUE(leaving.wait_for(Millis(20'000)));
  EXPECT_EQ(leaving.error().code(), Code::kDisconnected) << "a part of it has left";
  line = opened(local_streams_);
  ASSERT_TRUE(line);
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_FALSE(behind[i].ready());
    EXPECT_EQ(answered(line.get(), behind[i]).size(), sizes[i]) << "in another order";
  }
}

TEST_F(BrokenLine, ACallThatFindsOutGoesByTheNextOne) {
  for (const size_t size : {size_t{100}, size_t{9000}}) {  // gathered, and in pieces
    auto line = used(local_streams_);
    ASSERT_TRUE(line);
    line->stop_hearing();
    const Bytes bytes = pattern(size);
    const auto answer = call_with(Buffer::copy_of(bytes));
    line = opened(local_streams_);
    EXPECT_TRUE(same(answered(line.get(), answer).span(), bytes));
    ASSERT_TRUE(line);
    line->say(RawFrame{.kind = 6, .flags = 4});  // goodbye: not a break
    line.reset();
    ASSERT_TRUE(eventually([&] { return agent_.counters().connections == 0; }));
  }
}

TEST_P(BlockedLine, ACallThatIsOverGoesByNoOther) {
  auto line = used(local_streams_);
  ASSERT_TRUE(line);
  const auto leaving = call(kLarge);
  const auto handler = std::make_shared<Answer>();
  const auto cancelled = handler->future();
  begin(handler, seconds(60));
  const auto last = call(7);
  EXPECT_TRUE(agent_.cancel(1, *handler));
  ASSERT_TRUE(cancelled.wait_for(Millis(20'000)));
  EXPECT_EQ(cancelled.error().code(), Code::kCancelled);
  line.reset();
  line = opened(local_streams_);
  EXPECT_EQ(answered(line.get(), last).size(), 7u);
}

TEST_P(BlockedLine, CallsOfItEndInTimeThoughTheNextOneMustWait) {
  const Promise<void> told, go_on;
  agent_.on_worker_lost([told, go_on](int, const Error&) {
    told.set_value();
    go_on.future().wait_for(Millis(60'000));
  });
  auto line = used(local_streams_);
  ASSERT_TRUE(line);
  const auto leaving = call(kLarge);
  const auto cancelled = std::make_shared<Answer>(), timed = std::make_shared<Answer>();
  begin(cancelled, seconds(60));
  begin(timed, seconds(5));
  const auto last = call(7);
  line.reset();
  ASSERT_TRUE(told.future().wait_for(Millis(20'000)));
  EXPECT_TRUE(agent_.cancel(1, *cancelled));
  ASSERT_TRUE(cancelled->future().ready());
  EXPECT_EQ(cancelled->future().error().code(), Code::kCancelled);
  ASSERT_TRUE(timed->future().wait_for(Millis(20'000)));
  EXPECT_EQ(timed->future().error().code(), Code::kTimeout);
  go_on.set_value();
  line = opened(local_streams_);
  EXPECT_EQ(answered(line.get(), last).size(), 7u) << "one that is over goes by it";
}

INSTANTIATE_TEST_SUITE_P(By, BlockedLine, ::testing::Values("unix", "shm"),
                         [](const auto& by) { return by.param; });

// It has one way alone.
class BrokenLines : public BrokenLine {
 protected:
  BrokenLines() : BrokenLine(hello_of(1), 64 << 20) {
    agent_.set_workers(
        {agent_.record(), {{other_.name, 1}, other_.instance, {local_->endpoint()}}});
  }
};

TEST_F(BrokenLines, ThreeAreEnough) {
  const auto answer = call();
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(fails_at_once(local_streams_)) << i;
  ASSERT_TRUE(answer.wait_for(Millis(20'000)));
  ASSERT_TRUE(answer.has_error());
  EXPECT_EQ(answer.error().code(), Code::kDisconnected);
  EXPECT_TRUE(local_streams_.all().empty()) << "one more was dialled";
}

// Some calls are cancelled while the line breaks. Expect: none of these goes by the next line, and
// all others do.
TEST_F(BrokenLines, ACallIsCancelledOnWhicheverLineItIs) {
  constexpr size_t kCalls = 20;
  const Bytes large(16 << 20);  // more than the socket takes
  SeededRandom random(seed_of_run("cancelled"));
  auto line = used(local_streams_);
  ASSERT_TRUE(line);
  for (int round = 0; round < repetitions(100); ++round) {
    SCOPED_TRACE(round);
    const auto leaving = call_with(Buffer::borrowed(large.data(), large.size()));
    std::vector<std::shared_ptr<Answer>> calls(kCalls);
    std::vector<bool> is_cancelled(kCalls);
    for (size_t i = 0; i < kCalls; ++i) {
      calls[i] = std::make_shared<Answer>();
      begin(calls[i], seconds(60), 1 + i);
    }
    const auto last = call(kCalls + 1);
    const auto broken = std::async(std::launch::async, [&] { line->hang_up(); });
    const TimePoint then = Clock::now() + random.up_to(microseconds(1000));
    while (Clock::now() < then) std::this_thread::yield();
    for (size_t i = 0; i < kCalls; ++i) {
      is_cancelled[i] = random.chance(0.5);
      if (!is_cancelled[i]) continue;
      EXPECT_TRUE(agent_.cancel(1, *calls[i])) << i;
    }
    broken.wait();
    ASSERT_TRUE(line = opened(local_streams_));
    for (size_t heard = 0; heard != kCalls + 1;) {
      const auto request = line->hear();
      ASSERT_TRUE(request);
      heard = request->segments.at(0).size();
      EXPECT_FALSE(heard <= kCalls && is_cancelled[heard - 1]) << heard;
      line->say(RawFrame{.flags = 1, .request_id = request->header.request_id});
    }
    ASSERT_TRUE(last.wait_for(Millis(20'000)));
    for (size_t i = 0; i < kCalls; ++i) {
      const auto answer = calls[i]->future();
      ASSERT_TRUE(answer.wait_for(Millis(20'000))) << i;
      EXPECT_EQ(answer.has_error(), is_cancelled[i]) << i;
    }
  }
}

// The peer reads and maps memory of this process, which it is a part of; on the next line it does
// not, so that it hears the bytes.
class BlockedLineOfReader : public BrokenLine {
 protected:
  BlockedLineOfReader() : BrokenLine(reader(), 2 * kLarge) {}
  static wire::Hello reader() {
    static const wire::InstanceId probed = hello_of(1).instance;
    wire::Hello hello = hello_of(1);
    hello.features = wire::kReadsOffers | wire::kMapsBlocks;
    hello.probe = reinterpret_cast<uintptr_t>(&probed);
    return hello;
  }
  void block() {
    line_ = used(local_streams_);
    ASSERT_TRUE(line_);
    leaving_ = call_with(Buffer::borrowed(large_.data(), large_.size()));  // which is not offered
  }
  void expect_by_next(const Future<wire::InFrame>& answer, const Bytes& bytes) {
    line_.reset();
    line_ = opened(local_streams_, hello_of(1));
    EXPECT_TRUE(same(answered(line_.get(), answer).span(), bytes));
  }

  static constexpr uint64_t kLarge = 32 << 20;
  const Bytes large_ = Bytes(kLarge);
  const Bytes bytes_ = pattern(300'000);
  std::unique_ptr<Stranger> line_;
  Future<wire::InFrame> leaving_;
};

TEST_F(BlockedLineOfReader, WhatItWasOfferedGoesByTheNextOne) {
  ASSERT_NO_FATAL_FAILURE(block());
  const auto answer = call_with(Buffer::copy_of(bytes_));
  EXPECT_EQ(agent_.counters().offered_memory, bytes_.size());
  expect_by_next(answer, bytes_);
  EXPECT_EQ(agent_.counters().offered_memory, 0u);
}

TEST_F(BlockedLineOfReader, WhatWasHandedOverToItIsStillThisWorkers) {
  ASSERT_NO_FATAL_FAILURE(block());
  Buffer given = agent_.allocate_shared(bytes_.size());
  std::memcpy(given.data(), bytes_.data(), bytes_.size());
  const auto answer = call_with(std::move(given));
  EXPECT_EQ(agent_.counters().handed_over_memory, bytes_.size());
  expect_by_next(answer, bytes_);
  EXPECT_EQ(agent_.counters().handed_over_memory, 0u);
  // Expect: it is used again, which it is not where the peer may have it.
  EXPECT_TRUE(eventually([&] { return agent_.counters().idle_shared_memory >= bytes_.size(); }));
}

TEST_F(BrokenLine, AWayThatBreaksAgainAndAgainIsLeftForTheNextOne) {
  open_and_break(local_streams_);
  open_and_break(local_streams_);
  const auto third = call();
  auto line = opened(tcp_streams_);
  ASSERT_TRUE(line);
  answer_one(*line);
  ASSERT_TRUE(third.wait_for(Millis(20'000)));
  EXPECT_FALSE(third.has_error()) << third.error().what();
  ASSERT_EQ(agent_.routes().size(), 1u);
  EXPECT_THAT(agent_.routes()[0].transport, StartsWith("tcp"));
  EXPECT_THAT(agent_.routes()[0].refused, ElementsAre("unix: lines broke again and again"));
}

TEST_F(BrokenLine, IsNoneThatThePeerHasEndedWithAReason) {
  for (int i = 0; i < 3; ++i) {
    const auto lost = call();
    auto line = opened(local_streams_);
    ASSERT_TRUE(line);
    EXPECT_TRUE(tcp_streams_.all().empty()) << "another way was tried first";
    ASSERT_TRUE(line->hear());
    const Error why = Error(Code::kOverloaded, "no memory for a frame").advice("send less");
    line->say(RawFrame{.kind = 13, .flags = 4, .meta = Bytes(8, std::byte{0xff})});  // is ignored
    line->say(RawFrame{.kind = 13, .flags = 4, .meta = bytes_of(wire::encode(why))});
    line.reset();
    ASSERT_TRUE(lost.wait_for(Millis(20'000)));
    EXPECT_EQ(lost.error().code(), Code::kDisconnected);
    EXPECT_EQ(lost.error().message(), "it has ended the line: no memory for a frame");
    EXPECT_EQ(lost.error().advice(), "send less");
  }
}

TEST_F(BrokenLine, FailsTheCallsOnItAndTheNextOneFindsAWay) {
  const auto first = call();
  auto line = opened(local_streams_);
  ASSERT_TRUE(line);
  answer_one(*line);
  ASSERT_TRUE(first.wait_for(Millis(20'000)));
  EXPECT_FALSE(first.has_error());
  EXPECT_THAT(agent_.routes().front().transport, StartsWith("unix"));

  const auto lost = call();
  ASSERT_TRUE(line->hear());
  local_.reset();
  line.reset();
  ASSERT_TRUE(lost.wait_for(Millis(20'000)));
  EXPECT_EQ(lost.error().code(), Code::kDisconnected);

  const auto next = call();
  line = opened(tcp_streams_);
  ASSERT_TRUE(line);
  answer_one(*line);
  ASSERT_TRUE(next.wait_for(Millis(20'000)));
  EXPECT_FALSE(next.has_error());
  ASSERT_EQ(agent_.routes().size(), 1u);
  EXPECT_THAT(agent_.routes()[0].transport, StartsWith("tcp"));
  EXPECT_THAT(agent_.routes()[0].refused, ElementsAre(StartsWith("unix: ")));
}

// Other reasons than those that were told are news.
TEST_F(BrokenLine, ABetterWayThatIsTriedInVainIsAWarningOnceForAReason) {
  const LinesAboutRoutes logged;
  local_.reset();
  for (size_t i = 1; i <= 3; ++i) {
    const auto answer = call();
    auto line = opened(tcp_streams_);
    ASSERT_TRUE(line);
    answer_one(*line);
    ASSERT_TRUE(answer.wait_for(Millis(20'000)));
    EXPECT_TRUE(eventually([&] { return logged.all().size() == i; }));
    line->say(RawFrame{.kind = 6, .flags = 4});
    line.reset();
    ASSERT_TRUE(eventually([&] { return agent_.counters().connections == 0; }));
  }
  EXPECT_THAT(logged.warnings(),
              ElementsAre(AllOf(StartsWith("worker 'w1' is reached through tcp"),
                                HasSubstr("; not unix: connect: Connection refused"))));
}

}  // namespace
}  // namespace farspan::testing
