// The rules under test: rpc/wire/WIRE.md, "One connection for two workers". An agent dials while
// the other side, played by hand, dials as well.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <farspan/rpc/agent/agent.h>

#include "rpc/agent/impostor.h"
#include "rpc/agent/stranger.h"
#include "support/agents.h"
#include "support/eventually.h"

namespace farspan::testing {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

// The agent's rank is the parameter; the test plays the other of 0 and 1, and listens like it.
class DialTest : public ::testing::TestWithParam<int> {
 protected:
  DialTest() : mine_(GetParam()), theirs_(1 - GetParam()), agent_(options(GetParam())) {
    std::vector<agent::PeerRecord> records(2);
    records[static_cast<size_t>(mine_)] = agent_.record();
    const wire::Hello other = hello_of(theirs_);
    records[static_cast<size_t>(theirs_)] = {
        {other.name, theirs_}, other.instance, {impostor_.endpoint()}};
    agent_.set_workers(records);
  }
  ~DialTest() override { agent_.stop(); }
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
    if (!eventually([&] { return !streams_.all().empty(); }, seconds(20))) return nullptr;
    auto line = std::make_unique<Stranger>(streams_.all().front());
    const auto first = line->hear();
    EXPECT_TRUE(first && first->header.kind == wire::Kind::kHello);
    return line;
  }
  std::string endpoint() const { return agent_.record().endpoints.at(0); }

  const int mine_, theirs_;
  Streams streams_;  // those of later attempts find silence
  const Impostor impostor_{streams_.keep()};
  agent::Agent agent_;
};

TEST_P(DialTest, TheLineThatTheLowerRankDialledStays) {
  const auto answer = call();
  const auto its_line = dialled();
  ASSERT_TRUE(its_line);  // under way: its hello is not answered yet
  Stranger our_line(endpoint());
  our_line.say(hello_frame(hello_of(theirs_)));
  const auto reply = our_line.hear();
  ASSERT_TRUE(reply);
  if (mine_ < theirs_) {
    ASSERT_EQ(reply->header.kind, wire::Kind::kRefuse);
    EXPECT_EQ(wire::decode_error(reply->meta.span()).code(), Code::kAlreadyExists);
    its_line->say(hello_frame(hello_of(theirs_), 2));
    answer_one(*its_line);
  } else {
    // Expect: the call that it dialled for goes out on our line.
    ASSERT_EQ(reply->header.kind, wire::Kind::kWelcome);
    answer_one(our_line);
  }
  ASSERT_TRUE(answer.wait_for(Millis(20'000)));
  EXPECT_FALSE(answer.has_error());
  EXPECT_EQ(agent_.counters().connections, 1);
}

TEST_P(DialTest, ADialThatFailsDoesNotEndTheLineThatTheOtherSideHasDialled) {
  if (mine_ < theirs_) return;  // its own stays
  const auto answer = call();
  const auto its_line = dialled();
  ASSERT_TRUE(its_line);
  Stranger our_line(endpoint());
  our_line.say(hello_frame(hello_of(theirs_)));
  const auto reply = our_line.hear();
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->header.kind, wire::Kind::kWelcome);
  streams_.all().front()->shut();  // as when the other process ends, or has been told to stop
  EXPECT_FALSE(answer.wait_for(Millis(200)));
  answer_one(our_line);
  ASSERT_TRUE(answer.wait_for(Millis(20'000)));
  EXPECT_FALSE(answer.has_error()) << answer.error().what();
}

TEST_P(DialTest, WhoIsRefusedBecauseOfALineWaitsForIt) {
  const auto answer = call();
  const auto its_line = dialled();
  ASSERT_TRUE(its_line);
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
  answer_one(our_line);
  ASSERT_TRUE(answer.wait_for(Millis(20'000)));
  EXPECT_FALSE(answer.has_error());
}

TEST_P(DialTest, ARefusalForGoodFailsTheCallWithItsReason) {
  const auto answer = call();
  const auto its_line = dialled();
  ASSERT_TRUE(its_line);
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
  ASSERT_TRUE(its_line);
  wire::Hello restarted = hello_of(theirs_);
  restarted.instance.high += 1;
  its_line->say(hello_frame(restarted, 2));
  ASSERT_TRUE(answer.wait_for(Millis(20'000)));
  ASSERT_TRUE(answer.has_error());
  EXPECT_EQ(answer.error().code(), Code::kInvalidArgument);
}

// Two agents that may use some transports; `change` may change what each knows of the other.
class RouteTest : public ::testing::Test {
 protected:
  void connect(const std::function<void(std::string& endpoint)>& change) {
    start(change);
    call_both_ways();
  }
  void start(const std::function<void(std::string& endpoint)>& change) {
    for (int rank = 0; rank < 2; ++rank) {
      agent::AgentOptions options;
      options.self = {"w" + std::to_string(rank), rank};
      options.generation = "g1";
      options.transports = transports_;
      options.connect_timeout = connect_timeout_;
      options.connection.cross_memory_attach = rank == 0 ? attach_of_w0_ : attach_of_w1_;
      agents_[rank] = std::make_unique<agent::Agent>(options);
      agents_[rank]->handle(wire::Kind::kCall, agent::Messenger::Run::kAsTask,
                            [](agent::Request request) { request.reply({}); });
    }
    std::vector<agent::PeerRecord> records{agents_[0]->record(), agents_[1]->record()};
    for (agent::PeerRecord& record : records) {
      for (std::string& endpoint : record.endpoints) change(endpoint);
    }
    for (const auto& agent : agents_) agent->set_workers(records);
  }
  Future<wire::InFrame> call_by(int rank) {
    auto answer = std::make_shared<Answer>();
    wire::OutFrame frame;
    agents_[rank]->call(1 - rank, frame, Deadline::after(seconds(20)), answer, false);
    answer->future().wait_for(Millis(20'000));
    return answer->future();
  }
  void call_both_ways() {
    for (const int rank : {0, 1}) {
      const auto answer = call_by(rank);
      ASSERT_TRUE(answer.ready());
      ASSERT_FALSE(answer.has_error()) << answer.error().what();
    }
  }
  // After that nothing happens any more.
  void stop() {
    for (const auto& agent : agents_) agent->stop();
  }
  void TearDown() override { stop(); }
  Route route_of(int rank) const {
    const auto routes = agents_[rank]->routes();
    return routes.empty() ? Route() : routes.front();
  }
  std::vector<std::string> transports_{"unix", "tcp"};  // the better ones first
  Millis connect_timeout_{10'000};
  CrossMemoryAttach attach_of_w0_ = CrossMemoryAttach::kAllowed;
  CrossMemoryAttach attach_of_w1_ = CrossMemoryAttach::kAllowed;
  std::unique_ptr<agent::Agent> agents_[2];
};

TEST_F(RouteTest, OnOneHostIsAUnixSocket) {
  connect([](std::string&) {});
  for (const int rank : {0, 1}) {
    EXPECT_THAT(route_of(rank).transport, StartsWith("unix"));
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
    EXPECT_THAT(route_of(rank).transport, StartsWith("tcp"));
    EXPECT_FALSE(route_of(rank).reads_memory || route_of(rank).is_read);
    EXPECT_EQ(route_of(rank).why_not_read, "it is reached through TCP");
  }
}

TEST_F(RouteTest, IsTcpAlsoWhereNobodyIsFoundAtTheUnixSocket) {
  connect([](std::string& endpoint) {
    const auto host = endpoint.find(";host=");
    if (host != std::string::npos) endpoint.insert(host, "-gone");
  });
  EXPECT_THAT(route_of(0).refused, ElementsAre(StartsWith("unix: ")));
  for (const int rank : {0, 1}) {
    EXPECT_THAT(route_of(rank).transport, StartsWith("tcp"));
    EXPECT_FALSE(route_of(rank).reads_memory || route_of(rank).is_read);
    EXPECT_EQ(route_of(rank).why_not_read, "it is reached through TCP");
  }
}

TEST_F(RouteTest, WhereReadingIsRequiredIsNotTcpWithinAHost) {
  transports_ = {"tcp"};
  attach_of_w0_ = CrossMemoryAttach::kRequired;
  start([](std::string&) {});
  const auto by_w0 = call_by(0);
  ASSERT_TRUE(by_w0.has_error());
  EXPECT_EQ(by_w0.error().code(), Code::kUnavailable);
  EXPECT_EQ(by_w0.error().message(),
            "tensors cannot be read out of memory: it is reached through TCP");
  // Expect: who does not ask for it hears why the line has ended.
  const auto by_w1 = call_by(1);
  ASSERT_TRUE(by_w1.has_error());
  EXPECT_EQ(by_w1.error().code(), Code::kDisconnected);
  EXPECT_EQ(
      by_w1.error().message(),
      "it has ended the line: tensors cannot be read out of memory: it is reached through TCP");
}

TEST_F(RouteTest, IsTheBestOneThatConnects) {
  transports_ = {"shm", "unix", "tcp"};
  for (const size_t gone : {size_t{1}, size_t{2}}) {  // so many of them lead to nobody
    connect([&](std::string& endpoint) {
      for (size_t i = 0; i < gone; ++i) {
        if (endpoint.starts_with(transports_[i])) endpoint.insert(endpoint.find(";host="), "-gone");
      }
    });
    for (const int rank : {0, 1}) {
      EXPECT_THAT(route_of(rank).transport, StartsWith(transports_[gone]));
    }
    const std::vector<std::string> refused = route_of(0).refused;
    ASSERT_EQ(refused.size(), gone);
    for (size_t i = 0; i < gone; ++i) EXPECT_THAT(refused[i], StartsWith(transports_[i] + ": "));
  }
}

TEST_F(RouteTest, IsTheNextOneAlsoWhereAHandshakeFails) {
  const Buffer not_yet = wire::encode(Error(Code::kUnavailable, "not yet"));
  const std::pair<Bytes, const char*> answers[] = {
      {Bytes(), "unix: closed during the handshake"},  // it hangs up without a word
      {to_bytes(RawFrame{}), "unix: a hello was answered by something else"},
      {to_bytes(RawFrame{.kind = 3, .request_id = 0, .meta = bytes_of(not_yet)}), "unix: not yet"}};
  for (const auto& [answer, why] : answers) {
    std::vector<std::unique_ptr<transport::Stream>> streams;
    const Impostor impostor([&, said = answer](std::unique_ptr<transport::Stream> stream) {
      if (said.empty()) return;
      const iovec piece{const_cast<std::byte*>(said.data()), said.size()};
      EXPECT_EQ(stream->write(&piece, 1).bytes, said.size());
      streams.push_back(std::move(stream));
    });
    connect([&](std::string& endpoint) {
      if (endpoint.starts_with("unix:")) endpoint = impostor.endpoint();
    });
    EXPECT_THAT(route_of(0).refused, ElementsAre(why));
    for (const int rank : {0, 1}) {
      EXPECT_THAT(route_of(rank).transport, StartsWith("tcp")) << why;
    }
    stop();
  }
}

TEST_F(RouteTest, IsTheNextOneAlsoWhereNobodyAnswers) {
  connect_timeout_ = Millis(2'000);
  for (const int heard : {0, 1}) {  // so many of the two listen at their unix sockets
    Streams streams;
    const Impostor impostor(streams.keep());
    int seen = 0;
    connect([&](std::string& endpoint) {
      if (endpoint.starts_with("unix:") && seen++ >= heard) endpoint = impostor.endpoint();
    });
    EXPECT_THAT(route_of(0).transport, StartsWith("tcp"));
    EXPECT_THAT(route_of(0).refused,
                ElementsAre(AllOf(StartsWith("unix: silent for "), EndsWith(" ms"))));
    stop();
  }
}

// What it waits for may come without that line.
TEST(Route, IsNotWaitedForByWhoServes) {
  Streams streams;
  const Impostor silent(streams.keep());
  agent::Agent agent(options_of_w0({"unix"}, Millis(20'000)));
  const wire::Hello other = hello_of(1);
  agent.set_workers({agent.record(), {{other.name, 1}, other.instance, {silent.endpoint()}}});
  wire::OutFrame call;
  agent.call(1, call, Deadline::never(), std::make_shared<Answer>(), false);
  ASSERT_TRUE(eventually([&] { return streams.all().size() == 1; }));
  const Promise<void> over;
  std::thread end([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // as a rule it waits by then
    over.set_value();
  });
  net::SpinGovernor polling;
  const TimePoint begun = Clock::now();
  // Nor by who waits for a call that ends before there is a line.
  const auto late = std::make_shared<Answer>();
  agent.call(1, call, Deadline::after(std::chrono::milliseconds(50)), late, true);
  EXPECT_TRUE(agent.wait(*late->future().state(), Deadline::never(), 1));
  EXPECT_EQ(late->future().error().code(), Code::kTimeout);
  const auto none = [](const agent::Request&) { return false; };
  while (!over.future().ready()) {
    agent.wait_and_serve(*over.future().state(), 1, none, polling, {});
  }
  EXPECT_LT(Clock::now() - begun, seconds(10));
  end.join();
  agent.stop();
}

// Who is only slow is not left for a worse way.
TEST(Route, IsTheBestOneThatAnswersInTheEnd) {
  Streams unix_streams, tcp_streams;
  const Impostor slow(unix_streams.keep()), silent(tcp_streams.keep(), "tcp");
  agent::Agent agent(options_of_w0({"unix", "tcp"}, Millis(4'000)));
  const wire::Hello other = hello_of(1);
  agent.set_workers(
      {agent.record(), {{other.name, 1}, other.instance, {slow.endpoint(), silent.endpoint()}}});
  auto answer = std::make_shared<Answer>();
  wire::OutFrame call;
  agent.call(1, call, Deadline::after(seconds(20)), answer, false);
  ASSERT_TRUE(eventually([&] { return tcp_streams.all().size() == 1; }));
  Stranger line(unix_streams.all().at(0));
  welcome(line, other);
  answer_one(line);
  ASSERT_TRUE(answer->future().wait_for(Millis(20'000)));
  EXPECT_FALSE(answer->future().has_error());
  const std::vector<Route> routes = agent.routes();
  ASSERT_EQ(routes.size(), 1u);
  EXPECT_THAT(routes[0].transport, StartsWith("unix"));
  EXPECT_TRUE(routes[0].refused.empty());
  agent.stop();
}

TEST_F(RouteTest, IsLoggedOnceWithTheReasonsAgainstBetterOnes) {
  const LinesAboutRoutes logged;
  connect([](std::string& endpoint) {
    const auto host = endpoint.find(";host=");
    if (host != std::string::npos) endpoint.insert(host, "-gone");
  });
  EXPECT_TRUE(eventually([&] { return logged.all().size() >= 2; }));
  for (int i = 0; i < 10; ++i) call_both_ways();
  stop();
  // Expect: a line of either end; who has dialled knows what it tried in vain.
  EXPECT_THAT(logged.all(),
              UnorderedElementsAre(AllOf(StartsWith("worker 'w1' is reached through tcp"),
                                         EndsWith("; not unix: connect: Connection refused")),
                                   AllOf(StartsWith("worker 'w0' is reached through tcp"),
                                         Not(HasSubstr("; not ")))));
}

TEST_F(RouteTest, IsLoggedOnceWithTheReasonWhyNoMemoryIsRead) {
  const LinesAboutRoutes logged;
  attach_of_w1_ = CrossMemoryAttach::kForbidden;
  connect([](std::string&) {});
  EXPECT_TRUE(eventually([&] { return logged.all().size() >= 2; }));
  for (int i = 0; i < 10; ++i) call_both_ways();
  stop();
  EXPECT_THAT(logged.all(),
              UnorderedElementsAre(
                  AllOf(StartsWith("worker 'w1' is reached through unix"),
                        EndsWith("; no tensors are read out of memory: it does not allow it")),
                  AllOf(StartsWith("worker 'w0' is reached through unix"),
                        EndsWith("; no tensors are read out of memory: this worker does not allow "
                                 "it"))));
}

INSTANTIATE_TEST_SUITE_P(Ranks, DialTest, ::testing::Values(0, 1),
                         [](const auto& rank) { return "Rank" + std::to_string(rank.param); });

}  // namespace
}  // namespace farspan::testing
