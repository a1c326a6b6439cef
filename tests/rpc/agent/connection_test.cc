// The rules under test: rpc/agent/README.md, "A line's life" and "Rules", on a line whose other end
// the tests hold by hand.
#include <unistd.h>

#include <cstring>
#include <thread>
#include <tuple>

#include "rpc/agent/connection_suite.h"

namespace farspan::testing {
namespace {

using agent::Messenger;
using agent::Request;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kLimit = kConnectionLimit;

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
  EXPECT_EQ(later.error().code(), Code::kUnavailable)
      << "it goes by the next line, if there is one";
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
  const auto called = [&](uint64_t calls) {
    return eventually([&] { return agent_.counters().calls_sent == calls; });
  };
  EXPECT_TRUE(called(5)) << "three small ones are under way, and one waits";
  const auto large = std::async(std::launch::async, [&] {
    call(kLimit);
    large_sent = true;
  });
  EXPECT_TRUE(called(6));
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

struct RoomyTest : ConnectionTest {
  RoomyTest() : ConnectionTest(agent::ConnectionOptions{}) {}
};

TEST_F(RoomyTest, WhatACallThatIsOverHasNotSentIsNotSentAsItIsByThen) {
  // More than the socket takes, while the stranger reads nothing.
  const Bytes before = pattern(size_t{16} << 20, 3);
  std::vector<Buffer> arguments;
  std::vector<Future<wire::InFrame>> answers;
  std::shared_ptr<Answer> answer;
  for (int i = 0; i < 4; ++i) {
    answer = std::make_shared<Answer>();
    answers.push_back(answer->future());
    arguments.push_back(Buffer::copy_of(before));
    wire::OutFrame frame;
    frame.segments = {arguments.back()};
    const auto limit = i % 2 == 1 ? seconds(60) : milliseconds(100);
    agent_.call(1, frame, Deadline::after(limit), answer, false);
  }
  ASSERT_TRUE(answers[0].wait_for(seconds(20)) && answers[2].wait_for(seconds(20)));
  EXPECT_TRUE(agent_.cancel(1, *answer));
  for (const int over : {0, 2, 3}) {
    EXPECT_EQ(answers[over].error().code(), over == 3 ? Code::kCancelled : Code::kTimeout);
    EXPECT_EQ(arguments[over].owner().use_count(), 1);
    std::memset(arguments[over].data(), 0, arguments[over].size());
  }
  EXPECT_EQ(agent_.counters().requests_sent, 2u) << "nothing of the last two has left";
  // Expect: the first was begun, and comes as it was; then the one that somebody waits for.
  std::vector<uint64_t> heard;
  for (int i = 0; i < 2; ++i) {
    const wire::InFrame request = stranger_->hear().value();
    EXPECT_TRUE(same(request.segments.at(0).span(), before)) << i;
    heard.push_back(request.header.request_id);
  }
  stranger_->say(answer_to(heard[1]));
  ASSERT_TRUE(answers[1].wait_for(seconds(20)));
  EXPECT_FALSE(answers[1].has_error());
  const auto next = call();
  EXPECT_NE(heard_id(), heard[0]);
}

// Nobody has it who could be asked whether he still uses it.
TEST_F(RoomyTest, WhatACallLendsOfWhichNothingHasLeftIsFreeWhenTheLineEnds) {
  struct Lent final : wire::Lent {
    explicit Lent(std::atomic<int>& ends) : ends_(ends) {}
    void line_ended() noexcept override { ++ends_; }
    std::atomic<int>& ends_;
  };
  const auto large = call(size_t{16} << 20);  // more than the socket takes
  std::atomic<int> ends = 0;
  wire::OutFrame frame;
  frame.header.kind = wire::Kind::kCall;
  frame.lent = std::make_shared<Lent>(ends);
  const std::weak_ptr<wire::Lent> lent = frame.lent;
  agent_.call(1, frame, Deadline::after(seconds(60)), std::make_shared<Answer>(), false);
  frame.lent = nullptr;
  EXPECT_FALSE(lent.expired());
  stranger_.reset();
  EXPECT_TRUE(eventually([&] { return lent.expired(); }));
  EXPECT_EQ(ends, 0);
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
