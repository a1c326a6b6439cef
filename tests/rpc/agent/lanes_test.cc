// The rules under test: rpc/wire/WIRE.md, "Lanes". Workers of one process, at two addresses, as if
// they were on two hosts.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <random>
#include <set>
#include <thread>

#include <farspan/c10d/net/address.h>

#include "rpc/agent/impostor.h"
#include "rpc/agent/stranger.h"
#include "support/agents.h"
#include "support/eventually.h"
#include "support/sanitizers.h"

namespace farspan::testing {
namespace {

using agent::Messenger;
using agent::Request;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr int kLanes = 4;
constexpr size_t kLarge = (9 << 20) + 123, kLittle = 100'000;
const char* const kThere = "127.0.0.2";

agent::AgentOptions options(int rank, int lanes = kLanes) {
  agent::AgentOptions options;
  options.self = {"w" + std::to_string(rank), rank};
  options.generation = "test";
  options.transports = {"tcp"};
  options.bind_host = rank == 0 ? "127.0.0.1" : kThere;
  options.connection.lanes = lanes;
  return options;
}

bool is_there(const net::SocketAddress& address) {
  return address.to_string().starts_with(std::string(kThere) + ":");
}

// The sockets of this process that are connected to the other host.
std::set<int> sockets_there() {
  std::set<int> sockets;
  for (int fd = 3; fd < 1024; ++fd) {
    if (is_there(net::SocketAddress::remote_of(fd))) sockets.insert(fd);
  }
  return sockets;
}

// Worker 0, here, calls worker 1, there, which sends back what it gets.
class LanesTest : public ::testing::Test {
 protected:
  explicit LanesTest(int lanes_there = kLanes)
      : here_(options(0)), there_(options(1, lanes_there)) {
    there_.handle(wire::Kind::kCall, Messenger::Run::kAsTask, [this](Request request) {
      on_request(request.frame());
      request.reply({}, request.frame().segments);
    });
    const std::vector<agent::PeerRecord> records{here_.record(), there_.record()};
    here_.set_workers(records);
    there_.set_workers(records);
  }
  // Before any part of the test goes.
  void TearDown() override {
    here_.stop();
    there_.stop();
  }
  virtual void on_request(const wire::InFrame&) {}

  std::shared_ptr<Answer> ask(std::vector<Buffer> segments, Deadline deadline) {
    auto answer = std::make_shared<Answer>();
    wire::OutFrame frame;
    frame.segments = std::move(segments);
    here_.call(1, frame, deadline, answer, false);
    return answer;
  }
  Future<wire::InFrame> call(std::vector<Buffer> segments,
                             Deadline deadline = Deadline::after(seconds(60))) {
    return ask(std::move(segments), deadline)->future();
  }
  void expect_echo(const std::vector<Bytes>& segments) {
    std::vector<Buffer> buffers;
    for (const Bytes& segment : segments) buffers.push_back(Buffer::copy_of(segment));
    const auto answer = call(std::move(buffers));
    ASSERT_TRUE(answer.wait_for(seconds(60)));
    ASSERT_FALSE(answer.has_error()) << answer.error().what();
    ASSERT_EQ(answer.value().segments.size(), segments.size());
    for (size_t i = 0; i < segments.size(); ++i) {
      EXPECT_TRUE(same(answer.value().segments[i].span(), segments[i])) << "segment " << i;
    }
  }
  void open_lanes() {
    expect_echo({pattern(kLarge)});
    // Whoever had none dialled some, perhaps both; either uses all.
    ASSERT_TRUE(eventually([&] {
      const int lanes = here_.routes().at(0).lanes;
      return lanes >= kLanes && lanes == there_.routes().at(0).lanes;
    }));
  }

  agent::Agent here_, there_;
};

TEST_F(LanesTest, CarryLargeSegmentsFromTheSecondFrameOn) {
  expect_echo({pattern(100'000)});
  EXPECT_EQ(here_.routes().at(0).lanes, 0) << "small ones need none";
  open_lanes();
  const uint64_t before = here_.routes().at(0).bytes_by_lanes;
  expect_echo({pattern(kLarge, 1)});
  const uint64_t by_lanes = here_.routes().at(0).bytes_by_lanes - before;
  EXPECT_GE(by_lanes, 2 * kLarge);
  EXPECT_LT(by_lanes, 2 * kLarge + 10'000);
  EXPECT_EQ(here_.counters().offered_memory, 0u);
  EXPECT_TRUE(eventually([&] { return there_.counters().offered_memory == 0; }));
}

TEST_F(LanesTest, CarrySegmentsOfAllSizesAtOnce) {
  open_lanes();
  constexpr size_t kFirst = 4 << 20, kPiece = wire::kPieceBytes;
  const std::vector<std::vector<size_t>> frames = {
      {kFirst - 1},
      {kFirst},
      {kFirst + 1},
      {5 * kPiece, 17, 5 * kPiece - 1, 0, 6 * kPiece + 1},
      {100, kLarge},
      {kLarge, 20'000},
      {},
      {kFirst + 20'000, kFirst + 8}};
  std::vector<std::thread> callers;
  for (size_t seed = 0; seed < 4; ++seed) {
    callers.emplace_back([&, seed] {
      for (const auto& sizes : frames) {
        std::vector<Bytes> segments;
        for (const size_t size : sizes) segments.push_back(pattern(size, seed));
        expect_echo(segments);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
}

TEST_F(LanesTest, MayBeLostAtAnyMoment) {
  std::mt19937 random(1);
  expect_echo({pattern(10)});
  const std::set<int> line = sockets_there();
  for (int round = 0; round < repetitions(30); ++round) {
    if (round == 0) open_lanes();
    std::vector<int> lanes;
    for (const int socket : sockets_there()) {
      if (!line.contains(socket)) lanes.push_back(socket);
    }
    const auto first = call({Buffer::copy_of(pattern(kLarge, 1))});
    const auto second = call({Buffer::copy_of(pattern(4 * kLarge, 2))});
    // No moment of what travels is special: nothing here waits for one.
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 5'000));
    if (!lanes.empty()) shutdown(lanes[random() % lanes.size()], SHUT_RDWR);
    for (const auto& [answer, size, seed] :
         {std::tuple(first, kLarge, 1), std::tuple(second, 4 * kLarge, 2)}) {
      ASSERT_TRUE(answer.wait_for(seconds(60)));
      ASSERT_FALSE(answer.has_error()) << answer.error().what();
      EXPECT_TRUE(same(answer.value().segments.at(0).span(), pattern(size, seed)));
    }
  }
  EXPECT_EQ(here_.counters().connections, 1);
  EXPECT_LT(here_.routes().at(0).lanes, 2 * kLanes);
}

// What a call was given is its caller's again when it is over: it is not seen to change.
class ExpiredCallTest : public LanesTest {
 protected:
  void on_request(const wire::InFrame& frame) override {
    const auto bytes = frame.segments.at(0).span();
    const bool is_right = std::all_of(bytes.begin(), bytes.end(), [&](std::byte byte) {
      return byte == bytes.front() && byte != kOverwritten;
    });
    if (!is_right) ++wrong_;
    ++came_;
  }
  static constexpr std::byte kOverwritten{2};
  std::atomic<int> wrong_{0}, came_{0};
};

TEST_F(ExpiredCallTest, SendsNothingOfWhatComesAfterIt) {
  open_lanes();
  wrong_ = 0;
  came_ = 0;
  std::mt19937 random(1);
  int expired = 0, cancelled = 0;
  for (int round = 0; round < repetitions(1250); ++round) {
    Buffer large = Buffer::allocate(kLarge);
    std::fill_n(large.data(), large.size(), std::byte{1});
    const auto in = std::chrono::microseconds(100 + random() % 6'000);
    const bool cancels = round % 5 == 4;
    const auto handler = ask({large}, Deadline::after(cancels ? seconds(60) : in));
    const auto answer = handler->future();
    if (cancels && !answer.wait_until(Deadline::after(in))) cancelled += here_.cancel(1, *handler);
    ASSERT_TRUE(answer.wait_for(seconds(60)));
    expired += answer.has_error() && answer.error().code() == Code::kTimeout;
    std::fill_n(large.data(), large.size(), kOverwritten);
  }
  expect_echo({Bytes(kLarge, std::byte{3})});
  EXPECT_EQ(wrong_, 0);
  EXPECT_GT(expired, 0);
  EXPECT_GT(cancelled, 0);
  EXPECT_GT(came_, 0);
  EXPECT_TRUE(eventually([&] {
    return here_.counters().requests_sent == there_.counters().requests_received;
  })) << "or a shutdown waits for ever";
}

class OneSidedTest : public LanesTest {
 protected:
  OneSidedTest() : LanesTest(0) {}
};

TEST_F(OneSidedTest, ThereAreNoneToWhoHasNone) {
  expect_echo({pattern(kLarge)});
  expect_echo({pattern(kLarge)});
  EXPECT_EQ(here_.routes().at(0).lanes, 0);
  EXPECT_EQ(here_.routes().at(0).bytes_by_lanes, 0u);
}

TEST(Lanes, ThereAreNoneWithinAHost) {
  Agents agents({.transport = "tcp"});
  agents[1].handle(wire::Kind::kCall, Messenger::Run::kAsTask,
                   [](Request request) { request.reply({}, request.frame().segments); });
  for (int call = 0; call < 2; ++call) {
    const Bytes large = pattern(kLarge);
    const auto answer = agents.call_sync(0, 1, {}, {Buffer::copy_of(large)});
    EXPECT_TRUE(same(answer.segments.at(0).span(), large));
  }
  EXPECT_EQ(agents[0].routes().at(0).lanes, 0);
}

// A worker there, whom the tests play, and the agent on this host.
class StrangersLaneTest : public ::testing::Test {
 public:
  static wire::Hello hello() {
    wire::Hello hello = hello_of(1);
    hello.generation = "test";
    hello.features = wire::kHasLanes;
    hello.line = 77;
    return hello;
  }

 protected:
  StrangersLaneTest() : agent_(with_address(options(0))) {
    agent_.handle(wire::Kind::kCall, Messenger::Run::kAsTask, [this](Request request) {
      brought_.set_value(bytes_of(request.frame().segments.at(0)));
      request.reply({});
    });
    agent_.set_workers({agent_.record(), {{"w1", 1}, hello().instance, {}}});
    line_ = dial(hello());
  }
  ~StrangersLaneTest() override { agent_.stop(); }

  // Those of this process that dial it have another address.
  static agent::AgentOptions with_address(agent::AgentOptions options) {
    options.bind_host = kThere;
    options.connection.lane_bytes = kLittle;
    return options;
  }
  std::unique_ptr<Stranger> dial(const wire::Hello& as, uint8_t expected = 2) {
    auto stranger = std::make_unique<Stranger>(agent_.record().endpoints.at(0));
    stranger->say(hello_frame(as));
    const auto reply = stranger->hear();
    EXPECT_TRUE(reply && static_cast<uint8_t>(reply->header.kind) == expected);
    return stranger;
  }
  std::unique_ptr<Stranger> dial_lane(uint64_t of, uint8_t expected = 2) {
    wire::Hello lane = hello();
    lane.line = 0;
    lane.lane_of = of;
    return dial(lane, expected);
  }
  static RawFrame offering(size_t size) {
    return {.segments = {Bytes(size)}, .addresses = {1}, .offer = {5, 1, 1}};
  }
  static RawFrame piece(uint64_t segment, uint64_t offset, const Bytes& bytes) {
    RawFrame frame{.kind = 0x0b, .flags = 4, .request_id = 5, .segments = {bytes}};
    put(frame.meta, segment);
    put(frame.meta, offset);
    return frame;
  }

  agent::Agent agent_;
  std::unique_ptr<Stranger> line_;
  Promise<Bytes> brought_;
};

TEST_F(StrangersLaneTest, ALaneIsOfALineThatThereIs) {
  EXPECT_TRUE(eventually([&] { return agent_.counters().connections == 1; }));
  dial_lane(77);
  EXPECT_TRUE(eventually([&] { return agent_.routes().at(0).lanes == 0; })) << "it has hung up";
  dial_lane(78, 3);
}

TEST_F(StrangersLaneTest, ItIsAskedAndBringsPieces) {
  EXPECT_TRUE(eventually([&] { return agent_.counters().connections == 1; }));
  const auto lane = dial_lane(77), other = dial_lane(77);
  const Bytes large = pattern((1 << 20) + 40'000, 3);
  RawFrame request = offering(large.size());
  request.flags = 8;
  request.request_id = 9;
  line_->say(request);
  const auto ask = line_->hear();
  ASSERT_TRUE(ask);
  EXPECT_EQ(ask->header.kind, wire::Kind::kAsk);
  EXPECT_EQ(ask->header.request_id, 5u);
  EXPECT_TRUE(ask->meta.empty()) << "nothing is wrong";
  other->say(piece(0, 1 << 20, Bytes(large.begin() + (1 << 20), large.end())));
  lane->say(piece(0, 0, Bytes(large.begin(), large.begin() + (1 << 20))));
  ASSERT_TRUE(brought_.future().wait_for(seconds(20)));
  EXPECT_EQ(brought_.future().value(), large);
  const auto taken = line_->hear();
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->header.kind, wire::Kind::kTaken);
  EXPECT_EQ(taken->header.request_id, 5u);
}

TEST_F(StrangersLaneTest, ALaneThatBringsWhatItShouldNotEnds) {
  EXPECT_TRUE(eventually([&] { return agent_.counters().connections == 1; }));
  const Bytes large = pattern((1 << 20) + 40'000, 3);
  const RawFrame wrong[] = {piece(0, 5, Bytes(100)), piece(1, 0, Bytes(40'000)),
                            RawFrame{.kind = 0x10}, RawFrame{.magic = 1}};
  for (const RawFrame& last : wrong) {
    brought_ = {};
    const auto lane = dial_lane(77);
    ASSERT_TRUE(eventually([&] { return agent_.routes().at(0).lanes == 1; }));
    RawFrame request = offering(large.size());
    request.flags = 8;
    request.request_id = 9;
    line_->say(request);
    ASSERT_TRUE(line_->hear());
    lane->say(piece(0, 0, Bytes(1 << 20)));
    lane->say(last);
    EXPECT_FALSE(lane->hear()) << "it is closed";
    line_->say(RawFrame{.kind = 9, .flags = 4, .request_id = 5, .segments = {large}});
    ASSERT_TRUE(brought_.future().wait_for(seconds(20)));
    EXPECT_EQ(brought_.future().value(), large);
    ASSERT_TRUE(line_->hear()) << "the answer";
  }
}

TEST_F(StrangersLaneTest, WhatIsWholeIsDeliveredWhateverIsBehindIt) {
  EXPECT_TRUE(eventually([&] { return agent_.counters().connections == 1; }));
  const auto lane = dial_lane(77);
  const Bytes large = pattern(70'000, 3);
  RawFrame request = offering(large.size()), other = request;
  request.flags = other.flags = 8;
  other.offer[0] = 6;
  line_->say(request);
  line_->say(other);
  ASSERT_TRUE(line_->hear() && line_->hear());
  Bytes both = to_bytes(piece(0, 0, large));
  RawFrame wrong = piece(0, 5, Bytes(100));
  wrong.request_id = 6;
  append(both, to_bytes(wrong));
  lane->say(both);
  ASSERT_TRUE(brought_.future().wait_for(seconds(20)));
  EXPECT_EQ(brought_.future().value(), large);
  const auto taken = line_->hear();
  ASSERT_TRUE(taken);
  EXPECT_EQ(taken->header.kind, wire::Kind::kTaken);
}

TEST_F(StrangersLaneTest, NothingIsHandedOverBetweenHosts) {
  RawFrame request = offering(1 << 20);
  request.flags = 8 | 16;
  request.offer.insert(request.offer.end(), {7, 1 << 20, 3, 0});  // a block
  line_->say(request);
  const auto end = line_->hear();
  ASSERT_TRUE(end);
  EXPECT_EQ(end->header.kind, wire::Kind::kLineEnd);
  EXPECT_FALSE(line_->hear());
}

// A worker on another host that turns lanes away, or takes them.
class LatecomersTest : public ::testing::Test {
 protected:
  LatecomersTest() : agent_(with_small_lanes(options(0))) {
    wire::Hello hello = StrangersLaneTest::hello();
    agent_.set_workers({agent_.record(), {{"w1", 1}, hello.instance, {there_.endpoint()}}});
  }
  ~LatecomersTest() override { agent_.stop(); }
  // The next one that was dialled.
  std::unique_ptr<Stranger> take() {
    std::shared_ptr<transport::Stream> stream;
    if (!eventually([&] { return (stream = dialled_.take()) != nullptr; })) return nullptr;
    return std::make_unique<Stranger>(stream);
  }
  static agent::AgentOptions with_small_lanes(agent::AgentOptions options) {
    options.connection.lane_bytes = kLittle;
    return options;
  }
  // Makes a call, and asks for what it offers.
  void ask_for_something_large(Stranger& line) {
    const auto answer = std::make_shared<Answer>();
    wire::OutFrame frame;
    frame.segments = {Buffer::copy_of(Bytes(kLittle))};
    agent_.call(1, frame, Deadline::after(seconds(60)), answer, false);
    const auto request = line.hear();
    ASSERT_TRUE(request);
    ASSERT_NE(request->offer.id, 0u);
    line.say(RawFrame{.kind = 8, .flags = 4, .request_id = request->offer.id});
    const auto bytes = line.hear();
    ASSERT_TRUE(bytes);
    ASSERT_EQ(bytes->header.kind, wire::Kind::kBytes);
    line.say(RawFrame{.flags = 1, .request_id = request->header.request_id});
    ASSERT_TRUE(answer->future().wait_for(seconds(20)));
  }

  Streams dialled_;
  Impostor there_{dialled_.keep(), "tcp", kThere};
  agent::Agent agent_;
};

TEST_F(LatecomersTest, LanesThatDoNotComeAreDialledAgainLater) {
  const auto answer = std::make_shared<Answer>();
  wire::OutFrame first;
  agent_.call(1, first, Deadline::after(seconds(60)), answer, false);
  const auto line = take();
  ASSERT_TRUE(line);
  welcome(*line, StrangersLaneTest::hello());
  answer_one(*line);
  ask_for_something_large(*line);
  std::vector<std::unique_ptr<Stranger>> turned_away;
  for (int lane = 0; lane < kLanes; ++lane) ASSERT_TRUE(turned_away.emplace_back(take()));
  const TimePoint before = Clock::now();
  turned_away.clear();
  // Expect: when a while has passed, the next one that is asked for has them dialled again.
  std::unique_ptr<Stranger> lane;
  ASSERT_TRUE(eventually([&] {
    ask_for_something_large(*line);
    std::shared_ptr<transport::Stream> stream = dialled_.take();
    if (stream) lane = std::make_unique<Stranger>(stream);
    return lane != nullptr;
  }));
  EXPECT_GE(Clock::now() - before, seconds(1));
  welcome(*lane, StrangersLaneTest::hello());
  EXPECT_TRUE(eventually([&] { return agent_.routes().at(0).lanes == 1; }));
}

// What the agent offers to a worker there, who has asked for it, goes on two lanes.
class LostLaneTest : public StrangersLaneTest {
 protected:
  void SetUp() override {
    ASSERT_TRUE(eventually([&] { return agent_.counters().connections == 1; }));
    lost_ = dial_lane(77);
    other_ = dial_lane(77);
    ASSERT_TRUE(comes_to_have(2));
  }
  bool comes_to_have(int lanes) {
    return eventually([&] { return agent_.routes().at(0).lanes == lanes; });
  }
  std::shared_ptr<Answer> call(
      const Bytes& large, Deadline deadline, const std::function<void()>& before_asking = [] {}) {
    auto answer = std::make_shared<Answer>();
    wire::OutFrame frame;
    frame.segments = {Buffer::copy_of(large)};
    agent_.call(1, frame, deadline, answer, false);
    offer_ = line_->hear().value().offer.id;
    before_asking();
    line_->say(RawFrame{.kind = 8, .flags = 4, .request_id = offer_});
    return answer;
  }
  void expect_bytes(const std::vector<Bytes>& segments) {
    const auto bytes = line_->hear();
    ASSERT_TRUE(bytes);
    EXPECT_EQ(bytes->header.kind, wire::Kind::kBytes);
    EXPECT_EQ(bytes->header.request_id, offer_);
    ASSERT_EQ(bytes->segments.size(), segments.size());
    for (size_t i = 0; i < segments.size(); ++i) {
      EXPECT_TRUE(same(bytes->segments[i].span(), segments[i]));
    }
  }

  std::unique_ptr<Stranger> lost_, other_;
  uint64_t offer_ = 0;
};

TEST_F(LostLaneTest, WhatItHadToBringGoesByTheLine) {
  const Bytes large = pattern(kLarge, 3);
  call(large, Deadline::after(seconds(60)));
  const auto first = other_->hear();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->header.kind, wire::Kind::kPiece);
  lost_.reset();
  expect_bytes({large});
}

// The agent may see a lane's end after it has given it something: nothing is missed.
TEST_F(LostLaneTest, MayBeLostWhileItIsGivenSomething) {
  other_.reset();
  for (int round = 0; round < repetitions(200); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    ASSERT_TRUE(comes_to_have(1));
    const Bytes little = pattern(kLittle, static_cast<size_t>(round));
    const auto answer = call(little, Deadline::after(seconds(60)), [&] { lost_.reset(); });
    expect_bytes({little});
    ASSERT_FALSE(HasFailure());
    lost_ = dial_lane(77);
  }
}

TEST_F(LostLaneTest, WhatWasWithdrawnIsSaidToBeGone) {
  other_.reset();
  ASSERT_TRUE(comes_to_have(1));
  const auto answer = call(Bytes(kLittle), Deadline::after(seconds(60)));
  ASSERT_TRUE(lost_->hear()) << "all of it, so that nothing is left to be withdrawn";
  EXPECT_TRUE(agent_.cancel(1, *answer));
  ASSERT_TRUE(answer->future().wait_for(seconds(20)));
  EXPECT_TRUE(answer->future().has_error());
  lost_.reset();
  expect_bytes({});
}

TEST_F(LostLaneTest, WhatWasTakenIsNotSentAgain) {
  other_.reset();
  ASSERT_TRUE(comes_to_have(1));
  call(Bytes(kLittle), Deadline::after(seconds(60)));
  line_->say(RawFrame{.kind = 7, .flags = 4, .request_id = offer_});
  ASSERT_TRUE(eventually([&] { return agent_.counters().offered_memory == 0; }));
  lost_.reset();
  ASSERT_TRUE(comes_to_have(0));
  line_->say(RawFrame{.kind = 4, .flags = 4});
  const auto next = line_->hear();
  ASSERT_TRUE(next);
  EXPECT_EQ(next->header.kind, wire::Kind::kPong);
}

}  // namespace
}  // namespace farspan::testing
