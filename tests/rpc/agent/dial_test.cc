// The rules under test: rpc/wire/WIRE.md, "One connection for two workers". An agent dials while
// the other side, played by hand, dials as well.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <farspan/rpc/agent/agent.h>

#include "rpc/agent/stranger.h"
#include "support/agents.h"

namespace farspan::testing {
namespace {

using std::chrono::seconds;

wire::Hello hello_of(int rank) {
  wire::Hello hello;
  hello.name = "w" + std::to_string(rank);
  hello.rank = rank;
  hello.instance = {5, static_cast<uint64_t>(rank)};
  hello.generation = "g1";
  return hello;
}

// The agent's rank is the parameter; the test plays the other of 0 and 1, and listens like it.
class DialTest : public ::testing::TestWithParam<int> {
 protected:
  DialTest() : mine_(GetParam()), theirs_(1 - GetParam()), agent_(options(GetParam())) {
    reactor_.add(loop_);
    listener_ = transport_->listen("", [this](std::unique_ptr<transport::Stream> stream) {
      const std::lock_guard lock(mutex_);
      streams_.push_back(std::move(stream));  // those of later attempts find silence
      dialled_.set_value(streams_.front());
    });
    std::vector<agent::PeerRecord> records(2);
    records[static_cast<size_t>(mine_)] = agent_.record();
    const wire::Hello other = hello_of(theirs_);
    records[static_cast<size_t>(theirs_)] = {
        {other.name, theirs_}, other.instance, {listener_->endpoint()}};
    agent_.set_workers(records);
  }
  ~DialTest() override {
    agent_.stop();
    listener_.reset();
    loop_->close();
    reactor_.stop();
  }
  static agent::AgentOptions options(int rank) {
    agent::AgentOptions options;
    options.self = {"w" + std::to_string(rank), rank};
    options.generation = "g1";
    options.transports = {"unix"};
    return options;
  }
  // A call by the agent: it dials for it.
  Future<wire::InFrame> call() {
    auto answer = std::make_shared<Answer>();
    wire::OutFrame frame;
    agent_.call(theirs_, frame, Deadline::after(seconds(20)), answer, false);
    return answer->future();
  }
  // The agent's line to us, after it has said hello there.
  std::unique_ptr<Stranger> dialled() {
    EXPECT_TRUE(dialled_.future().wait_for(Millis(20'000)));
    auto line = std::make_unique<Stranger>(dialled_.future().value());
    const auto first = line->hear();
    EXPECT_TRUE(first && first->header.kind == wire::Kind::kHello);
    return line;
  }
  std::string endpoint() const { return agent_.record().endpoints.at(0); }
  static void answer_next(Stranger& line) {
    const auto request = line.hear();
    ASSERT_TRUE(request);
    ASSERT_EQ(request->header.kind, wire::Kind::kCall);
    line.say(RawFrame{.flags = 1, .request_id = request->header.request_id});
  }

  const int mine_, theirs_;
  net::Reactor reactor_;
  std::shared_ptr<net::Loop> loop_ = std::make_shared<net::Loop>(reactor_.timers());
  std::unique_ptr<transport::Transport> transport_ =
      transport::make_unix_transport(loop_, reactor_);
  std::unique_ptr<transport::Listener> listener_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<transport::Stream>> streams_;
  Promise<std::shared_ptr<transport::Stream>> dialled_;
  agent::Agent agent_;
};

TEST_P(DialTest, TheLineThatTheLowerRankDialledStays) {
  const auto answer = call();
  const auto its_line = dialled();  // under way: its hello is not answered yet
  Stranger our_line(endpoint());
  our_line.say(hello_frame(hello_of(theirs_)));
  const auto reply = our_line.hear();
  ASSERT_TRUE(reply);
  if (mine_ < theirs_) {
    ASSERT_EQ(reply->header.kind, wire::Kind::kRefuse);
    EXPECT_EQ(wire::decode_error(reply->meta.span()).code(), Code::kAlreadyExists);
    its_line->say(hello_frame(hello_of(theirs_), 2));
    answer_next(*its_line);
  } else {
    // Expect: the call that it dialled for goes out on our line.
    ASSERT_EQ(reply->header.kind, wire::Kind::kWelcome);
    answer_next(our_line);
  }
  ASSERT_TRUE(answer.wait_for(Millis(20'000)));
  EXPECT_FALSE(answer.has_error());
  EXPECT_EQ(agent_.counters().connections, 1);
}

TEST_P(DialTest, ADialThatFailsDoesNotEndTheLineThatTheOtherSideHasDialled) {
  if (mine_ < theirs_) return;  // its own stays
  const auto answer = call();
  const auto its_line = dialled();
  Stranger our_line(endpoint());
  our_line.say(hello_frame(hello_of(theirs_)));
  const auto reply = our_line.hear();
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->header.kind, wire::Kind::kWelcome);
  dialled_.future().value()->shut();  // as when the other process ends, or has been told to stop
  EXPECT_FALSE(answer.wait_for(Millis(200)));
  answer_next(our_line);
  ASSERT_TRUE(answer.wait_for(Millis(20'000)));
  EXPECT_FALSE(answer.has_error()) << answer.error().what();
}

TEST_P(DialTest, WhoIsRefusedBecauseOfALineWaitsForIt) {
  const auto answer = call();
  const auto its_line = dialled();
  its_line->say(RawFrame{.kind = 3,
                         .request_id = 0,
                         .meta = bytes_of(wire::encode(Error(Code::kAlreadyExists, "mine")))});
  // Expect: nothing has failed; it takes our line, or dials again.
  EXPECT_FALSE(answer.ready());
  if (mine_ < theirs_) return;  // it dials again and again, and refuses ours meanwhile
  Stranger our_line(endpoint());
  our_line.say(hello_frame(hello_of(theirs_)));
  const auto reply = our_line.hear();
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->header.kind, wire::Kind::kWelcome);
  answer_next(our_line);
  ASSERT_TRUE(answer.wait_for(Millis(20'000)));
  EXPECT_FALSE(answer.has_error());
}

TEST_P(DialTest, ARefusalForGoodFailsTheCallWithItsReason) {
  const auto answer = call();
  const auto its_line = dialled();
  its_line->say(RawFrame{
      .kind = 3,
      .request_id = 0,
      .meta = bytes_of(wire::encode(Error(Code::kInvalidArgument, "another run of the job")))});
  ASSERT_TRUE(answer.wait_for(Millis(20'000)));
  ASSERT_TRUE(answer.has_error());
  EXPECT_EQ(answer.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(answer.error().message(), "another run of the job");
}

TEST_P(DialTest, WhoAnswersForAnotherIsNotTakenForIt) {
  const auto answer = call();
  const auto its_line = dialled();
  wire::Hello restarted = hello_of(theirs_);
  restarted.instance.high += 1;
  its_line->say(hello_frame(restarted, 2));
  ASSERT_TRUE(answer.wait_for(Millis(20'000)));
  ASSERT_TRUE(answer.has_error());
  EXPECT_EQ(answer.error().code(), Code::kInvalidArgument);
}

// Two agents that may use unix sockets and tcp; `change` may change what each knows of the other.
class RouteTest : public ::testing::Test {
 protected:
  void connect(const std::function<void(std::string& endpoint)>& change) {
    for (int rank = 0; rank < 2; ++rank) {
      agent::AgentOptions options;
      options.self = {"w" + std::to_string(rank), rank};
      options.generation = "g1";
      options.transports = {"unix", "tcp"};
      agents_[rank] = std::make_unique<agent::Agent>(options);
      agents_[rank]->handle(wire::Kind::kCall, agent::Messenger::Run::kAsTask,
                            [](agent::Request request) { request.reply({}); });
    }
    std::vector<agent::PeerRecord> records{agents_[0]->record(), agents_[1]->record()};
    for (agent::PeerRecord& record : records) {
      for (std::string& endpoint : record.endpoints) change(endpoint);
    }
    for (const auto& agent : agents_) agent->set_workers(records);
    for (const int rank : {0, 1}) {
      auto answer = std::make_shared<Answer>();
      wire::OutFrame frame;
      agents_[rank]->call(1 - rank, frame, Deadline::after(seconds(20)), answer, false);
      ASSERT_TRUE(answer->future().wait_for(Millis(20'000)));
      ASSERT_FALSE(answer->future().has_error()) << answer->future().error().what();
    }
  }
  void TearDown() override {
    for (const auto& agent : agents_) agent->stop();
  }
  Route route_of(int rank) const {
    const auto routes = agents_[rank]->routes();
    return routes.empty() ? Route() : routes.front();
  }
  std::unique_ptr<agent::Agent> agents_[2];
};

TEST_F(RouteTest, OnOneHostIsAUnixSocket) {
  connect([](std::string&) {});
  for (const int rank : {0, 1}) {
    EXPECT_THAT(route_of(rank).transport, ::testing::StartsWith("unix"));
    EXPECT_TRUE(route_of(rank).reads_memory && route_of(rank).is_read);
    EXPECT_EQ(route_of(rank).why_not_read, "");
    EXPECT_TRUE(route_of(rank).refused.empty());
  }
}

TEST_F(RouteTest, BetweenHostsIsTcp) {
  int unix_endpoints = 0;
  connect([&](std::string& endpoint) {
    const auto host = endpoint.find(";host=");
    if (host == std::string::npos) return;
    ++unix_endpoints;
    endpoint.replace(host, std::string::npos, ";host=another/1");
  });
  EXPECT_EQ(unix_endpoints, 2);
  for (const int rank : {0, 1}) {
    EXPECT_THAT(route_of(rank).transport, ::testing::StartsWith("tcp"));
    EXPECT_FALSE(route_of(rank).reads_memory || route_of(rank).is_read);
    EXPECT_EQ(route_of(rank).why_not_read, "another host");
  }
}

TEST_F(RouteTest, IsTcpAlsoWhereNobodyIsFoundAtTheUnixSocket) {
  connect([](std::string& endpoint) {
    const auto host = endpoint.find(";host=");
    if (host != std::string::npos) endpoint.insert(host, "-gone");
  });
  EXPECT_THAT(route_of(0).refused, ::testing::ElementsAre(::testing::StartsWith("unix: ")));
  for (const int rank : {0, 1}) {
    EXPECT_THAT(route_of(rank).transport, ::testing::StartsWith("tcp"));
    EXPECT_FALSE(route_of(rank).reads_memory || route_of(rank).is_read);
    EXPECT_EQ(route_of(rank).why_not_read, "another host");
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, DialTest, ::testing::Values(0, 1),
                         [](const auto& rank) { return "Rank" + std::to_string(rank.param); });

}  // namespace
}  // namespace farspan::testing
