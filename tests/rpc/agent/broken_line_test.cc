// The rules under test: rpc/agent/README.md, "A line's life": what becomes of calls when their line
// breaks, and by which way the next line goes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <optional>
#include <vector>

#include <farspan/rpc/agent/unsteady_ways.h>

#include "rpc/agent/connection_suite.h"
#include "rpc/agent/impostor.h"

namespace farspan::testing {
namespace {

using agent::UnsteadyWays;
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
  BrokenLine()
      : unix_(std::in_place, unix_streams_.keep()),
        tcp_(tcp_streams_.keep(), true),
        agent_(options()) {
    agent_.set_workers({agent_.record(),
                        {{other_.name, 1}, other_.instance, {unix_->endpoint(), tcp_.endpoint()}}});
  }
  ~BrokenLine() override { agent_.stop(); }
  static agent::AgentOptions options() {
    agent::AgentOptions options = options_of_w0({"unix", "tcp"}, Millis(20'000));
    options.connection.max_in_flight_bytes = kConnectionLimit;
    return options;
  }
  Future<wire::InFrame> call(size_t bytes = 0) {
    const auto answer = std::make_shared<Answer>();
    wire::OutFrame frame;
    frame.segments = {Buffer::allocate(bytes)};
    agent_.call(1, frame, Deadline::after(seconds(60)), answer, false);
    return answer->future();
  }
  // The line that w0 dials next there, open; null: it dials none.
  std::unique_ptr<Stranger> opened(Streams& way) {
    std::shared_ptr<transport::Stream> stream;
    if (!eventually([&] { return (stream = way.take()) != nullptr; }, seconds(30))) return nullptr;
    auto line = std::make_unique<Stranger>(std::move(stream));
    welcome(*line, other_);
    return line;
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

  const wire::Hello other_ = hello_of(1);
  Streams unix_streams_, tcp_streams_;
  std::optional<Impostor> unix_;
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
  open_and_break(unix_streams_);
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
  auto line = opened(unix_streams_);
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
  line = opened(unix_streams_);
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

TEST_F(BrokenLine, AWayThatBreaksAgainAndAgainIsLeftForTheNextOne) {
  open_and_break(unix_streams_);
  open_and_break(unix_streams_);
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
    auto line = opened(unix_streams_);
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
  auto line = opened(unix_streams_);
  ASSERT_TRUE(line);
  answer_one(*line);
  ASSERT_TRUE(first.wait_for(Millis(20'000)));
  EXPECT_FALSE(first.has_error());
  EXPECT_THAT(agent_.routes().front().transport, StartsWith("unix"));

  const auto lost = call();
  ASSERT_TRUE(line->hear());
  unix_.reset();
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
  unix_.reset();
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
