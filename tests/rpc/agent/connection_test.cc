// The rules under test: rpc/agent/README.md, "A line's life" and "Rules", on a line whose other end
// the tests hold by hand.
#include <farspan/rpc/agent/connection.h>

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <future>
#include <thread>
#include <tuple>

#include <farspan/c10d/net/process_memory.h>

#include "rpc/agent/stranger.h"
#include "support/agents.h"
#include "support/eventually.h"

namespace farspan::testing {
namespace {

using agent::Messenger;
using agent::Request;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kLimit = 1 << 20;  // of bytes in flight

// An agent "ps" of rank 0 with an open line to rank 1, whom the tests play.
class ConnectionTest : public ::testing::Test {
 protected:
  explicit ConnectionTest(agent::ConnectionLimits limits = {.max_in_flight_bytes = kLimit},
                          uint64_t features = 0)
      : agent_(options(limits)) {
    agent_.handle(wire::Kind::kRRefControl, Messenger::Run::kInline,
                  [this](Request) { ++arrived_; });
    agent_.on_worker_lost([this](int, const Error& why) {
      arrived_before_loss_ = arrived_.load();
      lost_.set_value(why);
    });
    wire::Hello hello;
    hello.name = "trainer";
    hello.rank = 1;
    hello.instance = {1, 2};
    hello.generation = "g1";
    hello.features = features;
    agent_.set_workers({agent_.record(), {{"trainer", 1}, hello.instance, {}}});
    stranger_ = std::make_unique<Stranger>(agent_.record().endpoints.at(0));
    stranger_->say(hello_frame(hello));
    EXPECT_TRUE(stranger_->hear()) << "no welcome";
  }
  ~ConnectionTest() override {
    stranger_.reset();
    agent_.stop();
  }

  static agent::AgentOptions options(agent::ConnectionLimits limits) {
    agent::AgentOptions options;
    options.self = {"ps", 0};
    options.generation = "g1";
    options.transports = {"unix"};
    options.connection_limits = limits;
    return options;
  }

  Future<wire::InFrame> call(size_t bytes = 0, Deadline deadline = Deadline::after(seconds(60))) {
    auto answer = std::make_shared<Answer>();
    wire::OutFrame frame;
    frame.segments = {Buffer::allocate(bytes)};
    agent_.call(1, frame, deadline, answer, false);
    return answer->future();
  }
  // The id of the next request that the stranger hears.
  uint64_t heard_id() { return stranger_->hear().value().header.request_id; }
  static Bytes answer_to(uint64_t id) { return to_bytes({.flags = 1, .request_id = id}); }
  static Bytes one_way() { return to_bytes({.kind = 0x23, .flags = 4}); }
  // The line ends while `continuation` of an answered call looks for the end of another call.
  template <class Continuation>
  void expect_end_beside(Continuation continuation) {
    const auto a = call(), b = call();
    auto c = a.then([=](const auto&) { return continuation(b); });
    const uint64_t first = heard_id();
    heard_id();
    stranger_->say(answer_to(first));
    stranger_.reset();
    ASSERT_TRUE(c.wait_for(seconds(20)));
    EXPECT_TRUE(c.value());
    EXPECT_TRUE(b.has_error());
  }

  std::atomic<int> arrived_{0};  // one-way requests
  std::atomic<int> arrived_before_loss_{-1};
  Promise<Error> lost_;
  agent::Agent agent_;
  std::unique_ptr<Stranger> stranger_;
};

// A continuation of the first of three frames that are read at once looks for the other two.
struct LooksBehind : ConnectionTest, ::testing::WithParamInterface<std::tuple<bool, bool>> {};

TEST_P(LooksBehind, AndFindsThatTheyAreDelivered) {
  const auto [waits, from_outside] = GetParam();
  const auto a = call(), b = call();
  auto c = a.then([&, b, waits = waits](const auto&) {
    if (waits && !b.wait_for(seconds(10))) return false;
    return eventually([&] { return b.ready() && arrived_ > 0; });
  });
  const uint64_t first = heard_id(), second = heard_id();
  Bytes bytes = answer_to(first);
  append(bytes, answer_to(second));
  append(bytes, one_way());
  std::thread saying([&] { stranger_->say(bytes); });
  if (from_outside) agent_.wait(*a.state(), Deadline::after(seconds(20)), 1);
  ASSERT_TRUE(c.wait_for(seconds(20)));
  EXPECT_TRUE(c.value());
  saying.join();
}

std::string case_name(const ::testing::TestParamInfo<std::tuple<bool, bool>>& one) {
  const auto [waits, from_outside] = one.param;
  return std::string(waits ? "WhileItWaits" : "WhileItComputes") +
         (from_outside ? "InTheProgramsThread" : "InAReactorsThread");
}

INSTANTIATE_TEST_SUITE_P(Connection, LooksBehind,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool()), case_name);

TEST_F(ConnectionTest, AContinuationThatComputesHoldsUpNoDeadline) {
  const Deadline deadline = Deadline::after(milliseconds(50));
  const auto a = call(0, deadline), b = call(0, deadline);
  const auto in_time = [](const Future<wire::InFrame>& other) {
    return [other](const auto&) { return eventually([&] { return other.ready(); }); };
  };
  const auto c = a.then(in_time(b)), d = b.then(in_time(a));
  EXPECT_TRUE(c.wait(Millis(20'000)));
  EXPECT_TRUE(d.wait(Millis(20'000)));
}

TEST_F(ConnectionTest, TheEndOfALineComesAfterWhatWasReadBeforeIt) {
  const auto a = call(), b = call();
  Promise<void> running;
  auto c = a.then([&](const auto&) {
    running.set_value();
    std::this_thread::sleep_for(milliseconds(100));  // busy, while others may read the end
  });
  const uint64_t first = heard_id(), second = heard_id();
  Bytes bytes = answer_to(first);
  append(bytes, answer_to(second));
  append(bytes, one_way());
  stranger_->say(bytes);
  ASSERT_TRUE(running.future().wait_for(seconds(20)));
  stranger_.reset();
  ASSERT_TRUE(b.wait_for(seconds(20)));
  EXPECT_FALSE(b.has_error()) << b.error().what();
  ASSERT_TRUE(lost_.future().wait_for(seconds(20)));
  EXPECT_EQ(arrived_before_loss_, 1);
}

TEST_F(ConnectionTest, TheEndOfALineDoesNotWaitForWhoWaitsForIt) {
  expect_end_beside([](const auto& other) { return other.wait_for(seconds(10)); });
}

TEST_F(ConnectionTest, TheEndOfALineDoesNotWaitForAContinuationThatComputes) {
  expect_end_beside([](const auto& other) { return eventually([&] { return other.ready(); }); });
}

TEST_F(ConnectionTest, AWriteThatFailsLosesNothingThatCameBefore) {
  const auto a = call();
  const uint64_t id = heard_id();
  // The agent's threads are all busy, so that nobody reads; then it is the writer who finds out.
  struct Toil {
    std::atomic<bool> go{false};
    std::atomic<int> busy{0};
  };
  const auto toil = std::make_shared<Toil>();  // the last may end after this test
  const Deadline deadline = Deadline::after(seconds(20));
  for (int begun = 0; toil->busy < agent_.counters().threads && !deadline.expired();) {
    if (toil->busy == begun) {
      ++begun;
      agent_.call_at(Clock::now(), [toil] {
        ++toil->busy;
        while (!toil->go) std::this_thread::yield();
      });
    }
    std::this_thread::yield();
  }
  stranger_->say(answer_to(id));
  stranger_.reset();
  const auto later = call();
  toil->go = true;
  ASSERT_TRUE(a.wait_for(seconds(20)));
  EXPECT_FALSE(a.has_error()) << a.error().what();
  ASSERT_TRUE(later.wait_for(seconds(20)));
  EXPECT_EQ(later.error().code(), Code::kDisconnected);
}

TEST_F(ConnectionTest, ACallAboveTheLimitPassesWhileASmallOneWaits) {
  const auto small = call();
  const auto large = std::async(std::launch::async, [&] { return call(2 * kLimit); });
  EXPECT_NE(heard_id(), heard_id());
}

TEST_F(ConnectionTest, WhoWaitsForRoomIsNotOvertakenForEver) {
  const auto half = call(kLimit * 6 / 10);
  const uint64_t first = heard_id();
  std::atomic<bool> large_sent{false}, stop{false};
  const auto small = std::async(std::launch::async, [&] {
    std::vector<Future<wire::InFrame>> calls;
    while (!stop && calls.size() < 1000) calls.push_back(call(kLimit / 10));
  });
  const Deadline deadline = Deadline::after(seconds(20));
  while (agent_.counters().in_flight < 4 && !deadline.expired()) std::this_thread::yield();
  const auto large = std::async(std::launch::async, [&] {
    call(kLimit);
    large_sent = true;
  });
  // Each answer makes room for a small one. Expect: the large one has its turn all the same.
  stranger_->say(answer_to(first));
  for (int i = 0; i < 200 && !large_sent; ++i) stranger_->say(answer_to(heard_id()));
  EXPECT_TRUE(large_sent);
  stop = true;
  stranger_.reset();  // which lets those go that wait for room
}

TEST_F(ConnectionTest, ASmallOneNeedNotWaitBehindALargeOne) {
  const auto most = call(kLimit * 6 / 10);
  const auto large = std::async(std::launch::async, [&] { return call(kLimit); });
  std::this_thread::sleep_for(milliseconds(20));  // so that the large one is in line, most likely
  const auto small = call();
  EXPECT_NE(heard_id(), heard_id());
  stranger_.reset();
}

TEST_F(ConnectionTest, OneThatGoesMakesRoomWhateverElseWaits) {
  const auto most = call(kLimit * 6 / 10), some = call(kLimit * 3 / 10);
  heard_id();
  const uint64_t second = heard_id();
  Promise<void> sent;
  const auto third = std::async(std::launch::async, [&] {
    const auto answer = call(kLimit * 3 / 10);
    sent.set_value();
    return answer;
  });
  EXPECT_FALSE(sent.future().wait_for(milliseconds(20)));
  stranger_->say(answer_to(second));
  EXPECT_TRUE(sent.future().wait_for(seconds(20)));
}

TEST_F(ConnectionTest, ACallThatFindsNoRoomInTimeIsNotSent) {
  const auto most = call(kLimit * 9 / 10);
  const uint64_t first = heard_id();
  const auto late = call(kLimit / 2, Deadline::after(milliseconds(20)));
  ASSERT_TRUE(late.ready());
  EXPECT_EQ(late.error().code(), Code::kTimeout);
  EXPECT_EQ(agent_.counters().in_flight, 1);
  stranger_->say(answer_to(first));
  const auto next = call();
  EXPECT_EQ(stranger_->hear().value().header.payload_bytes, 0u);
}

TEST_F(ConnectionTest, WhatAPeerDoesNotReadIsBounded) {
  std::vector<Buffer> buffers;
  for (int i = 0; i < 100; ++i) {
    buffers.push_back(Buffer::allocate(kLimit / 2));
    wire::OutFrame frame;
    frame.segments = {buffers.back()};
    const auto answer = std::make_shared<Answer>();
    agent_.call(1, frame, Deadline::after(milliseconds(5)), answer, false);
    answer->future().wait_for(seconds(20));
  }
  // Expect: frames of calls that are over count as long as they are kept.
  size_t kept = 0;
  for (const Buffer& buffer : buffers) kept += buffer.owner().use_count() > 1 ? buffer.size() : 0;
  EXPECT_LE(kept, 2 * kLimit);
}

// A peer that reads offers, and makes some. Both sides are one process, so that memory can be
// looked at.
class OfferTest : public ConnectionTest {
 protected:
  OfferTest() : ConnectionTest({.max_in_flight_bytes = kLimit}, wire::kReadsOffers) {
    agent_.handle(wire::Kind::kOptimizer, Messenger::Run::kInline, [this](Request request) {
      bytes_.set_value(bytes_of(request.frame().segments.at(1)));
    });
    // Before, everything travels: the welcome leaves a moment earlier.
    EXPECT_TRUE(eventually([&] { return agent_.counters().connections == 1; }));
  }

  // A call with a large argument, as the stranger hears it.
  void call_with(const Buffer& large, Deadline deadline = Deadline::after(seconds(60))) {
    auto answer = std::make_shared<Answer>();
    answer_ = answer->future();
    wire::OutFrame frame;
    frame.segments = {Buffer::copy_of(pattern(10)), large};
    agent_.call(1, frame, deadline, answer, false);
    heard_ = stranger_->hear().value();
  }
  // As a peer reads it.
  uint64_t mark() const {
    uint64_t mark = 0;
    EXPECT_EQ(net::read_process_memory(getpid(), heard_.offer.mark_address, &mark, sizeof mark), 0);
    return mark;
  }
  // A one-way request that offers its second segment, under a mark that stands or not.
  RawFrame offering(const Bytes& large, bool stands = true) {
    return {.kind = 0x50,
            .flags = 4 | 8,
            .segments = {pattern(3), large},
            .addresses = {0, reinterpret_cast<uintptr_t>(large.data())},
            .offer = {7, reinterpret_cast<uintptr_t>(&mark_), stands ? mark_ : mark_ + 1}};
  }
  RawFrame about_offer(uint8_t kind, uint64_t id, std::vector<Bytes> segments = {}) {
    return {.kind = kind, .flags = 4, .request_id = id, .segments = std::move(segments)};
  }
  static constexpr uint8_t kTaken = 7, kAsk = 8, kBytes = 9;

  const Bytes large_ = pattern(300'000, 5);
  const uint64_t mark_ = 0x1234567;
  Future<wire::InFrame> answer_;
  wire::InFrame heard_;
  Promise<Bytes> bytes_;  // that a request brought
};

TEST_F(OfferTest, ALargeArgumentIsKeptUntilItIsTaken) {
  const Buffer large = Buffer::copy_of(large_);
  call_with(large);
  ASSERT_NE(heard_.offer.id, 0u);
  EXPECT_EQ(heard_.offered, (std::vector<uint64_t>{0, reinterpret_cast<uintptr_t>(large.data())}));
  EXPECT_EQ(mark(), heard_.offer.mark);
  EXPECT_TRUE(same(heard_.segments[0].span(), pattern(10)));
  EXPECT_GT(large.owner().use_count(), 1);
  stranger_->say(about_offer(kTaken, heard_.offer.id));
  EXPECT_TRUE(eventually([&] { return large.owner().use_count() == 1; }));
  stranger_->say(answer_to(heard_.header.request_id));
  EXPECT_TRUE(answer_.wait_for(seconds(20)));
  EXPECT_FALSE(answer_.has_error());
}

TEST_F(OfferTest, WhoCannotReadIsSentTheBytesAndOfferedNoMore) {
  call_with(Buffer::copy_of(large_));
  const uint64_t request = heard_.header.request_id;
  RawFrame ask = about_offer(kAsk, heard_.offer.id);
  put(ask.meta, uint64_t{EPERM});
  stranger_->say(ask);
  const wire::InFrame bytes = stranger_->hear().value();
  EXPECT_EQ(static_cast<uint8_t>(bytes.header.kind), kBytes);
  EXPECT_EQ(bytes.header.request_id, heard_.offer.id);
  ASSERT_EQ(bytes.segments.size(), 1u);
  EXPECT_TRUE(same(bytes.segments[0].span(), large_));
  stranger_->say(answer_to(request));
  ASSERT_TRUE(answer_.wait_for(seconds(20)));
  EXPECT_FALSE(answer_.has_error());

  call_with(Buffer::copy_of(large_));
  EXPECT_EQ(heard_.offer.id, 0u);
  EXPECT_TRUE(same(heard_.segments.at(1).span(), large_));
}

TEST_F(OfferTest, ACallThatIsOverWithdrawsWhatItOffered) {
  const Buffer large = Buffer::copy_of(large_);
  call_with(large, Deadline::after(milliseconds(20)));
  ASSERT_NE(heard_.offer.id, 0u);
  ASSERT_TRUE(answer_.wait_for(seconds(20)));
  EXPECT_EQ(answer_.error().code(), Code::kTimeout);
  EXPECT_EQ(large.owner().use_count(), 1) << "before its caller hears of the end";
  RawFrame ask = about_offer(kAsk, heard_.offer.id);
  put(ask.meta, uint64_t{EFAULT});
  stranger_->say(ask);
  const wire::InFrame bytes = stranger_->hear().value();
  EXPECT_EQ(static_cast<uint8_t>(bytes.header.kind), kBytes);
  EXPECT_TRUE(bytes.segments.empty());
  call_with(large);
  EXPECT_NE(heard_.offer.id, 0u) << "to come too late is no reason not to be offered more";
}

TEST_F(OfferTest, TheEndOfTheLineWithdrawsEverything) {
  const Buffer large = Buffer::copy_of(large_);
  call_with(large);
  stranger_.reset();
  EXPECT_TRUE(answer_.wait_for(seconds(20)));
  EXPECT_EQ(large.owner().use_count(), 1);
}

TEST_F(OfferTest, WhatIsOfferedIsRead) {
  stranger_->say(offering(large_));
  ASSERT_TRUE(bytes_.future().wait_for(seconds(20)));
  EXPECT_EQ(bytes_.future().value(), large_);
  const wire::InFrame taken = stranger_->hear().value();
  EXPECT_EQ(static_cast<uint8_t>(taken.header.kind), kTaken);
  EXPECT_EQ(taken.header.request_id, 7u);
}

TEST_F(OfferTest, WhatWasNotWhatWasOfferedIsAskedFor) {
  stranger_->say(offering(large_, false));
  const wire::InFrame ask = stranger_->hear().value();
  EXPECT_EQ(static_cast<uint8_t>(ask.header.kind), kAsk);
  EXPECT_EQ(ask.header.request_id, 7u);
  uint64_t error = 0;
  ASSERT_EQ(ask.meta.size(), sizeof error);
  std::memcpy(&error, ask.meta.data(), sizeof error);
  EXPECT_EQ(error, uint64_t{ESTALE});
  EXPECT_FALSE(bytes_.future().ready());
  const Bytes now = pattern(large_.size(), 9);
  stranger_->say(about_offer(kBytes, 7, {now}));
  ASSERT_TRUE(bytes_.future().wait_for(seconds(20)));
  EXPECT_EQ(bytes_.future().value(), now);
  stranger_->say(about_offer(kBytes, 7, {now}));  // again: nothing
  stranger_->say(one_way());
  EXPECT_TRUE(eventually([&] { return arrived_ == 1; }));
}

TEST_F(OfferTest, ARequestThatWasWithdrawnIsDroppedAndCounts) {
  const uint64_t before = agent_.counters().requests_received;
  stranger_->say(offering(large_, false));
  stranger_->hear();
  stranger_->say(about_offer(kBytes, 7));
  stranger_->say(one_way());
  EXPECT_TRUE(eventually([&] { return arrived_ == 1; }));
  EXPECT_FALSE(bytes_.future().ready());
  EXPECT_EQ(agent_.counters().requests_received, before + 2) << "or a shutdown waits for it";
}

TEST_F(OfferTest, WhoStopsWaitsForWhoAsks) {
  wire::OutFrame frame;
  frame.header.kind = wire::Kind::kRRefControl;
  frame.segments = {Buffer::copy_of(large_)};
  agent_.post(1, frame);
  const uint64_t offer = stranger_->hear().value().offer.id;
  ASSERT_NE(offer, 0u);
  std::thread stopping([&] { agent_.stop(); });
  EXPECT_EQ(stranger_->hear().value().header.kind, wire::Kind::kGoodbye);
  stranger_->say(about_offer(kAsk, offer));
  const auto bytes = stranger_->hear();
  ASSERT_TRUE(bytes);
  EXPECT_EQ(static_cast<uint8_t>(bytes->header.kind), kBytes);
  EXPECT_EQ(bytes->segments.size(), 1u);
  stopping.join();
}

TEST_F(OfferTest, OtherBytesThanWereOfferedEndTheLine) {
  stranger_->say(offering(large_, false));
  stranger_->hear();
  stranger_->say(about_offer(kBytes, 7, {pattern(large_.size() - 1)}));
  ASSERT_TRUE(lost_.future().wait_for(seconds(20)));
  EXPECT_EQ(lost_.future().value().code(), Code::kCorrupt);
}

TEST_F(OfferTest, AnAddressThatCannotBeReadIsAskedFor) {
  RawFrame frame = offering(large_);
  frame.addresses[1] = 16;
  stranger_->say(frame);
  EXPECT_EQ(static_cast<uint8_t>(stranger_->hear().value().header.kind), kAsk);
  stranger_->say(about_offer(kBytes, 7, {large_}));
  ASSERT_TRUE(bytes_.future().wait_for(seconds(20)));
  EXPECT_EQ(bytes_.future().value(), large_);
}

TEST_F(ConnectionTest, AnOfferThatWasNotAgreedOnEndsTheLine) {
  const Bytes large = pattern(100'000);
  stranger_->say({.kind = 0x23,
                  .flags = 4 | 8,
                  .segments = {large},
                  .addresses = {reinterpret_cast<uintptr_t>(large.data())},
                  .offer = {7, reinterpret_cast<uintptr_t>(large.data()), 0}});
  ASSERT_TRUE(lost_.future().wait_for(seconds(20)));
  EXPECT_EQ(lost_.future().value().code(), Code::kCorrupt);
  EXPECT_EQ(arrived_, 0);
}

class SilenceTest : public ConnectionTest {
 protected:
  SilenceTest() : ConnectionTest({.silence_timeout = Millis(1'000)}) {}
};

TEST_F(SilenceTest, APeerThatReadsSlowlyIsAlive) {
  const auto endless = call(size_t{128} << 20, Deadline::never());
  // A ping waits behind all that: only what leaves shows that the peer reads.
  const Deadline deadline = Deadline::after(milliseconds(2'500));
  while (!lost_.future().wait_for(milliseconds(20)) && !deadline.expired()) {
    stranger_->swallow(1 << 20);
  }
  EXPECT_FALSE(lost_.future().ready());
}

TEST_F(SilenceTest, APeerThatReadsNothingIsLostThoughMoreIsSentToIt) {
  const auto endless = call(size_t{32} << 20, Deadline::never());
  const Deadline deadline = Deadline::after(seconds(10));
  while (!lost_.future().wait_for(milliseconds(20)) && !deadline.expired()) {
    wire::OutFrame frame;
    frame.header.kind = wire::Kind::kRRefControl;
    agent_.post(1, frame);
  }
  EXPECT_TRUE(lost_.future().ready());
}

}  // namespace
}  // namespace farspan::testing
