// The rules under test: support/sim_messenger.h and support/sim_scheduler.h. What an agent does for
// its rooms (tests/rpc/agent/agent_test.cc), a SimMessenger does, too.
#include "support/sim_messenger.h"

#include <gmock/gmock.h>

#include <optional>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/net/reactor.h>

#include "support/sim_calls.h"

namespace farspan::testing {
namespace {

using agent::Messenger;
using agent::Request;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Deadline in(SimNetwork& net, Clock::duration d) { return Deadline(net.scheduler().now() + d); }

TEST(SimMessenger, NothingMovesUnlessTheTestLetsIt) {
  SimNetwork net;
  Echo echo(net, "w1");
  const auto answer = send_call(net, "w0", "w1", 7);
  EXPECT_THAT(echo.heard(), IsEmpty());
  // Expect: each step is one event: the request arrives, it is served, the answer arrives.
  EXPECT_TRUE(net.scheduler().step());
  EXPECT_THAT(echo.heard(), IsEmpty());
  EXPECT_TRUE(net.scheduler().step());
  EXPECT_THAT(echo.heard(), ElementsAre(7));
  EXPECT_FALSE(answer.ready());
  EXPECT_TRUE(net.scheduler().step());
  EXPECT_EQ(value_of(answer), 7u);
  EXPECT_FALSE(net.scheduler().step());
}

TEST(SimMessenger, AWaitMovesTheWorldUntilItsFutureIsReady) {
  SimNetwork net;
  Echo echo(net, "w1");
  const auto answer = send_call(net, "w0", "w1", 7);
  EXPECT_TRUE(net.at("w0")->wait(*answer.state(), Deadline::never(), 1));
  EXPECT_EQ(value_of(answer), 7u);
  // Expect: the same for a plain wait, by whatever waits on a future.
  EXPECT_EQ(word_at(send_call(net, "w0", "w1", 8).wait().meta, 0), 8u);
}

TEST(SimMessenger, AnswersWithTheBytesOfTheRequest) {
  SimNetwork net;
  Echo echo(net, "w1");
  for (const size_t size : {0ul, 1ul, 7ul, 8ul, 4096ul, 16384ul, 16385ul, 200'000ul}) {
    Buffer segment = Buffer::allocate(size);
    for (size_t i = 0; i < size; ++i) segment.data()[i] = static_cast<std::byte>(i * 7 + size);
    const Buffer meta = words(3, size);
    auto answer = std::make_shared<Answer>();
    wire::OutFrame frame;
    frame.meta = meta.span();
    frame.segments = {segment, words(2, 9)};
    net.at("w0")->call(1, frame, Deadline::never(), answer, false);
    const wire::InFrame reply = answer->future().wait();
    EXPECT_EQ(reply.header.meta_bytes, 24u);
    EXPECT_EQ(reply.header.segment_count, 2u);
    EXPECT_EQ(reply.header.payload_bytes, wire::padded(size) + 16);
    EXPECT_EQ(word_at(reply.meta, 2), size);
    EXPECT_EQ(word_at(reply.segments.at(1), 1), 9u);
    ASSERT_EQ(reply.segments[0].size(), size);
    EXPECT_TRUE(size == 0 || std::memcmp(reply.segments[0].data(), segment.data(), size) == 0);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(reply.meta.data()) % 8, 0u);
  }
}

TEST(SimMessenger, PadsTheMetaWithZeros) {
  SimNetwork net;
  std::optional<wire::InFrame> got;
  net.at("w1")->handle(wire::Kind::kCall, Messenger::Run::kInline,
                       [&](Request request) { got = request.frame(); });
  wire::OutFrame frame;
  const Buffer meta = words(1, ~uint64_t{0});
  frame.meta = meta.span().first(3);
  net.at("w0")->post(1, frame);
  net.scheduler().drain();
  ASSERT_TRUE(got);
  EXPECT_EQ(got->meta.size(), 8u);
  EXPECT_EQ(word_at(got->meta, 0), 0xffffffu);
}

TEST(SimMessenger, CallsItself) {
  SimNetwork net({.workers = 1});
  Echo echo(net, "w0");
  EXPECT_EQ(word_at(send_call(net, "w0", "w0", 5).wait().meta, 0), 5u);
}

TEST(SimMessenger, OneWayMessagesArriveAndAreNotAnswered) {
  SimNetwork net;
  Echo echo(net, "w1", wire::Kind::kRRefControl, Messenger::Run::kInline);
  send_post(net, "w0", "w1", 3);
  net.scheduler().drain();
  EXPECT_THAT(echo.heard(), ElementsAre(3));
  EXPECT_EQ(net.at("w1")->counters().bytes_sent, 0u);
}

TEST(SimMessenger, ACallEndsAtItsDeadlineInVirtualTime) {
  SimNetwork net;
  net.clog("w1");
  const TimePoint begun = net.scheduler().now();
  const auto answer = send_call(net, "w0", "w1", 1, in(net, seconds(30)));
  EXPECT_TRUE(net.at("w0")->wait(*answer.state(), Deadline::never(), 1));
  EXPECT_EQ(code_of(answer), Code::kTimeout);
  EXPECT_EQ(net.scheduler().now() - begun, seconds(30));
}

TEST(SimMessenger, AWaitEndsAtItsDeadlineAndTheCallGoesOn) {
  SimNetwork net;
  Echo echo(net, "w1");
  net.clog("w1");
  const TimePoint begun = net.scheduler().now();
  const auto answer = send_call(net, "w0", "w1");
  EXPECT_FALSE(net.at("w0")->wait(*answer.state(), in(net, milliseconds(20)), 1));
  EXPECT_EQ(net.scheduler().now() - begun, milliseconds(20));
  net.unclog("w1");
  EXPECT_EQ(word_at(answer.wait().meta, 0), 1u);
}

TEST(SimMessenger, DeadlinesOfTheRealClockCountFromNow) {
  SimNetwork net;
  net.clog("w1");
  const auto answer = send_call(net, "w0", "w1");
  for (const Clock::duration timeout :
       {Clock::duration(milliseconds(7)), Clock::duration(milliseconds(250)),
        Clock::duration(seconds(5)), Clock::duration(seconds(3600))}) {
    const TimePoint begun = net.scheduler().now();
    EXPECT_FALSE(answer.wait_until(Deadline::after(timeout)));
    EXPECT_EQ(net.scheduler().now() - begun, timeout);
  }
}

TEST(SimMessenger, DeadlinesTravelAsWhatIsLeft) {
  SimNetwork net;
  std::optional<Deadline> seen;
  net.at("w1")->handle(wire::Kind::kCall, Messenger::Run::kAsTask,
                       [&](Request request) { seen = request.deadline(); });
  const Deadline deadline = in(net, milliseconds(50));
  send_call(net, "w0", "w1", 1, deadline);
  net.scheduler().drain();
  ASSERT_TRUE(seen);
  EXPECT_TRUE(*seen == deadline);
  send_call(net, "w0", "w1");
  net.scheduler().drain();
  EXPECT_TRUE(seen->is_never());
}

TEST(SimMessenger, ARequestThatExpiredBeforeItCouldRunIsNotRun) {
  SimNetwork net;
  Echo echo(net, "w1");
  std::optional<Code> late;
  net.at("w0")->on_late_reply(
      [&](int, wire::InFrame&& reply) { late = wire::decode_error(reply.meta.span()).code(); });
  const auto answer = send_call(net, "w0", "w1", 1, in(net, milliseconds(10)));
  EXPECT_TRUE(net.scheduler().step());  // it has arrived, and waits for a thread
  net.freeze("w1");
  net.scheduler().advance(milliseconds(20));
  net.thaw("w1");
  net.scheduler().drain();
  EXPECT_EQ(code_of(answer), Code::kTimeout);
  EXPECT_THAT(echo.heard(), IsEmpty());
  EXPECT_EQ(late, Code::kTimeout);
}

TEST(SimMessenger, AnswersThatAreTooLateGoToTheirCallback) {
  SimNetwork net;
  Echo echo(net, "w1");
  std::vector<uint64_t> late;
  net.at("w0")->on_late_reply([&](int from, wire::InFrame&& reply) {
    EXPECT_EQ(from, 1);
    late.push_back(word_at(reply.meta, 0));
  });
  net.faults().delay_reply(wire::Kind::kCall, seconds(2));
  const auto answer = send_call(net, "w0", "w1", 6, in(net, seconds(1)));
  net.scheduler().advance(seconds(3));
  EXPECT_EQ(code_of(answer), Code::kTimeout);
  EXPECT_THAT(late, ElementsAre(6));
}

// The value: calls left to make. Each passes the call on to the other worker and adds one.
void ping_pong(SimNetwork& net, const std::string& here, const std::string& there) {
  net.at(here)->handle(
      wire::Kind::kCall, Messenger::Run::kAsTask, [&net, here, there](Request request) {
        const uint64_t left = word_at(request.frame().meta, 0);
        if (left == 0) return request.reply(words(1, 0).span());
        const auto next = send_call(net, here, there, left - 1);
        ASSERT_TRUE(net.at(here)->wait(*next.state(), Deadline::never(), net.rank_of(there)));
        request.reply(words(1, value_of(next) + 1).span());
      });
}

TEST(SimMessenger, NestsToDepthTwoHundred) {
  SimNetwork net;
  ping_pong(net, "w0", "w1");
  ping_pong(net, "w1", "w0");
  EXPECT_EQ(word_at(send_call(net, "w0", "w1", 200).wait().meta, 0), 200u);
}

TEST(SimMessenger, NestsToDepthTwentyFromSixtyFourAtOnce) {
  SimNetwork net;
  ping_pong(net, "w0", "w1");
  ping_pong(net, "w1", "w0");
  std::vector<Answered> answers;
  for (int i = 0; i < 64; ++i) answers.push_back(send_call(net, "w0", "w1", 20));
  for (const Answered& answer : answers) EXPECT_EQ(word_at(answer.wait().meta, 0), 20u);
}

// Each handler waits for what the other does after its own wait: on one stack, neither could go on.
TEST(SimMessenger, HandlersThatWaitDoNotHoldEachOtherUp) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SimNetwork net({.workers = 3, .seed = seed});
    Promise<void> steps[4];
    const auto wait_for = [&](int step) {
      const auto done = steps[step].future();
      return net.at("w2")->wait(*done.state(), Deadline::never(), -1);
    };
    net.at("w2")->handle(wire::Kind::kCall, Messenger::Run::kAsTask, [&](Request request) {
      if (request.from() == 0) {
        steps[0].set_value();
        ASSERT_TRUE(wait_for(1));
        steps[2].set_value();
        ASSERT_TRUE(wait_for(3));
      } else {
        ASSERT_TRUE(wait_for(0));
        steps[1].set_value();
        ASSERT_TRUE(wait_for(2));
        steps[3].set_value();
      }
      request.reply({});
    });
    const auto first = send_call(net, "w0", "w2"), second = send_call(net, "w1", "w2");
    EXPECT_TRUE(first.wait_for(seconds(1))) << net.describe();
    EXPECT_TRUE(second.wait_for(seconds(1))) << net.describe();
  }
}

TEST(SimMessenger, AFutureIsWaitedForInsideHandlers) {
  SimNetwork net({.workers = 3});
  Echo echo(net, "w2");
  net.at("w1")->handle(wire::Kind::kCall, Messenger::Run::kAsTask, [&](Request request) {
    request.reply(words(1, word_at(send_call(net, "w1", "w2", 4).wait().meta, 0) + 1).span());
  });
  EXPECT_EQ(word_at(send_call(net, "w0", "w1").wait().meta, 0), 5u);
}

TEST(SimMessenger, AWaitInsideAHandlerEndsAtItsDeadline) {
  SimNetwork net;
  const TimePoint begun = net.scheduler().now();
  net.at("w1")->handle(wire::Kind::kCall, Messenger::Run::kAsTask, [&](Request request) {
    const auto never = Promise<void>();
    EXPECT_FALSE(never.future().wait_for(seconds(2)));
    EXPECT_EQ(net.at("w1")->now() - begun, seconds(2));
    request.reply({});
  });
  const auto answer = send_call(net, "w0", "w1");
  // Expect: nothing can happen now, the handler waits; time brings it on.
  net.scheduler().drain();
  EXPECT_FALSE(answer.ready());
  EXPECT_EQ(net.at("w1")->counters().threads, 1);
  net.scheduler().advance(seconds(2));
  EXPECT_EQ(code_of(answer), Code::kOk);
  EXPECT_EQ(net.at("w1")->counters().threads, 0);
}

TEST(SimMessenger, AWaitThatCanNeverEndReturnsFalseAndSaysWhy) {
  SimNetwork net;
  set_log_sink([](LogLevel, std::string_view, std::string_view) {});
  net.clog("w0", "w1");
  const auto answer = send_call(net, "w0", "w1");
  EXPECT_FALSE(net.at("w0")->wait(*answer.state(), Deadline::never(), 1));
  set_log_sink({});
  EXPECT_THAT(net.scheduler().diagnosis(), HasSubstr("can never come"));
  EXPECT_THAT(net.scheduler().diagnosis(), HasSubstr("pending: call #1 of w0 to w1"));
  EXPECT_THAT(net.scheduler().diagnosis(), HasSubstr("in flight: w0 > w1: call #1, held up"));
}

TEST(SimMessenger, ALivelockEnds) {
  SimNetwork net({.max_steps = 1000});
  for (const char* name : {"w0", "w1"}) {
    const std::string here = name, there = here == "w0" ? "w1" : "w0";
    net.at(here)->handle(wire::Kind::kRRefControl, Messenger::Run::kInline,
                         [&net, here, there](Request) { send_post(net, here, there, 1); });
  }
  send_post(net, "w0", "w1", 1);
  net.scheduler().drain();
  EXPECT_THAT(net.scheduler().complaints(), ElementsAre(HasSubstr("a livelock?")));
}

TEST(SimMessenger, AHandlerThatMustNotBlockAndWaitsIsReported) {
  SimNetwork net;
  Promise<void> go;
  net.at("w1")->handle(wire::Kind::kRRefControl, Messenger::Run::kInline,
                       [&](Request) { go.future().wait_for(seconds(1)); });
  send_post(net, "w0", "w1", 1);
  net.scheduler().advance(seconds(2));
  EXPECT_THAT(net.scheduler().complaints(),
              ElementsAre("w1 serves rref control #0 of w0 waited, but must not block"));
}

TEST(SimMessenger, ARequestThatIsDroppedIsAnswered) {
  SimNetwork net;
  net.at("w1")->handle(wire::Kind::kCall, Messenger::Run::kAsTask, [](Request) {});
  const auto answer = send_call(net, "w0", "w1");
  net.scheduler().drain();
  EXPECT_EQ(code_of(answer), Code::kCancelled);
}

TEST(SimMessenger, ARequestMayBeAnsweredLater) {
  SimNetwork net;
  std::optional<Request> kept;
  net.at("w1")->handle(wire::Kind::kCall, Messenger::Run::kAsTask,
                       [&](Request request) { kept.emplace(std::move(request)); });
  const auto answer = send_call(net, "w0", "w1");
  net.scheduler().drain();
  EXPECT_FALSE(answer.ready());
  kept->reply(words(1, 9).span());
  net.scheduler().drain();
  EXPECT_EQ(value_of(answer), 9u);
}

TEST(SimMessenger, AKindThatNobodyHandlesIsRefused) {
  SimNetwork net;
  const auto answer = send_call(net, "w0", "w1");
  net.scheduler().drain();
  EXPECT_EQ(code_of(answer), Code::kNotRegistered);
}

TEST(SimMessenger, ARankThatIsNotThereIsRefused) {
  SimNetwork net;
  auto answer = std::make_shared<Answer>();
  wire::OutFrame frame;
  net.at("w0")->call(2, frame, Deadline::never(), answer, false);
  EXPECT_EQ(code_of(answer->future()), Code::kInvalidArgument);
}

TEST(SimMessenger, ACallThatIsServedKnowsItsCaller) {
  SimNetwork net({.workers = 3});
  const Deadline deadline = in(net, seconds(9));
  std::vector<uint64_t> chains;
  net.at("w2")->handle(wire::Kind::kCall, Messenger::Run::kAsTask, [&](Request request) {
    chains.push_back(agent::current_call().chain);
    request.reply({});
  });
  net.at("w1")->handle(wire::Kind::kCall, Messenger::Run::kAsTask, [&](Request request) {
    EXPECT_EQ(agent::current_call().from, 0);
    EXPECT_TRUE(agent::current_call().deadline == deadline);
    EXPECT_EQ(net::current_chain(), agent::current_call().chain);
    chains.push_back(agent::current_call().chain);
    send_call(net, "w1", "w2").wait();
    EXPECT_EQ(agent::current_call().from, 0);
    request.reply({});
  });
  send_call(net, "w0", "w1", 1, deadline).wait();
  // Expect: nested calls are of one chain; outside of a call there is none.
  ASSERT_EQ(chains.size(), 2u);
  EXPECT_NE(chains[0], 0u);
  EXPECT_EQ(chains[0], chains[1]);
  EXPECT_EQ(agent::current_call().from, -1);
  EXPECT_EQ(net::current_chain(), 0u);
}

TEST(SimMessenger, WhatIsLeftOfACallGoesOnInItsContextAndNotAfterItsDeadline) {
  SimNetwork net;
  const Deadline deadline = in(net, seconds(9));
  agent::CallContext call;
  std::optional<Request> kept;
  net.at("w1")->handle(wire::Kind::kCall, Messenger::Run::kAsTask, [&](Request request) {
    kept.emplace(std::move(request));
    call = agent::current_call();
  });
  const auto answer = send_call(net, "w0", "w1", 1, deadline);
  net.scheduler().drain();
  std::optional<Code> rejected;
  const auto reject = [&](const Error& why) { rejected = why.code(); };
  const auto go_on = [&] {
    EXPECT_EQ(agent::current_call().from, 0);
    EXPECT_TRUE(agent::current_call().deadline == deadline);
    EXPECT_EQ(net::current_chain(), kept->frame().header.chain);
    kept->reply({});
  };
  net.at("w1")->resume(call, go_on, reject);
  net.scheduler().drain();
  EXPECT_EQ(code_of(answer), Code::kOk);
  EXPECT_EQ(rejected, std::nullopt);
  net.scheduler().advance(seconds(9));
  net.at("w1")->resume(
      call, [] { ADD_FAILURE() << "it is too late"; }, reject);
  net.scheduler().drain();
  EXPECT_EQ(rejected, Code::kTimeout);
}

TEST(SimMessenger, TimersRunInTheOrderOfTheirTimesAndCanBeCancelled) {
  SimNetwork net;
  const auto w0 = net.at("w0");
  const TimePoint begun = w0->now();
  std::vector<int> ran;
  w0->call_at(begun + milliseconds(30), [&] { ran.push_back(30); });
  w0->call_at(begun + milliseconds(10), [&] { ran.push_back(10); });
  const auto cancelled = w0->call_at(begun + milliseconds(20), [&] { ran.push_back(20); });
  EXPECT_TRUE(w0->cancel(cancelled));
  EXPECT_FALSE(w0->cancel(cancelled));
  net.scheduler().drain();
  EXPECT_THAT(ran, IsEmpty());  // drain() does not wait for timers
  net.scheduler().advance(milliseconds(29));
  EXPECT_THAT(ran, ElementsAre(10));
  net.scheduler().advance(milliseconds(1));
  EXPECT_THAT(ran, ElementsAre(10, 30));
  EXPECT_EQ(w0->now() - begun, milliseconds(30));
}

TEST(SimMessenger, ATaskMayWait) {
  SimNetwork net;
  Echo echo(net, "w1");
  uint64_t got = 0;
  net.at("w0")->run([&] { got = word_at(send_call(net, "w0", "w1", 3).wait().meta, 0); });
  net.scheduler().drain();
  EXPECT_EQ(got, 3u);
}

TEST(SimMessenger, CountsWhatItSendsAndGets) {
  SimNetwork net;
  Echo echo(net, "w1");
  const auto first = send_call(net, "w0", "w1");
  EXPECT_EQ(net.at("w0")->counters().in_flight, 1);
  first.wait();
  send_post(net, "w0", "w1", 1);
  send_post(net, "w0", "w1", 1, wire::Kind::kShutdown);
  net.scheduler().drain();
  const auto w0 = net.at("w0")->counters(), w1 = net.at("w1")->counters();
  EXPECT_EQ(w0.calls_sent, 1u);
  EXPECT_EQ(w0.requests_sent, 2u);  // those by which workers agree to end do not count
  EXPECT_EQ(w0.in_flight, 0);
  EXPECT_EQ(w0.connections, 1);
  EXPECT_EQ(w1.calls_received, 1u);
  EXPECT_EQ(w1.requests_received, 2u);
  EXPECT_EQ(w0.bytes_sent, w1.bytes_received);
  EXPECT_EQ(w1.bytes_sent, w0.bytes_received);
}

TEST(SimMessenger, FunctionsAreKnownFromTheFirstContactOn) {
  SimNetwork net;
  Echo echo(net, "w1");
  net.at("w1")->set_functions({{5, "square", "Tensor(Tensor)"}});
  EXPECT_THAT(net.at("w0")->functions_of(1), IsEmpty());
  send_call(net, "w0", "w1").wait();
  ASSERT_EQ(net.at("w0")->functions_of(1).size(), 1u);
  EXPECT_EQ(net.at("w0")->functions_of(1)[0].name, "square");
}

TEST(SimMessenger, MessengersOutliveTheirNetwork) {
  std::shared_ptr<SimMessenger> left;
  std::optional<Request> kept;
  Answered pending;
  {
    SimNetwork net;
    left = net.at("w0");
    net.at("w1")->handle(wire::Kind::kCall, Messenger::Run::kAsTask,
                         [&](Request request) { kept.emplace(std::move(request)); });
    pending = send_call(net, "w0", "w1");
    net.scheduler().drain();
  }
  EXPECT_EQ(code_of(pending), Code::kShutdown);
  kept->reply({});
  auto answer = std::make_shared<Answer>();
  wire::OutFrame frame;
  left->call(1, frame, Deadline::never(), answer, false);
  EXPECT_EQ(code_of(answer->future()), Code::kShutdown);
  const Promise<void> never;
  EXPECT_FALSE(left->wait(*never.future().state(), Deadline::never(), 1));
}

TEST(SimMessenger, HandlersThatWaitEndWithTheNetwork) {
  int ended = 0;
  Promise<void> never;
  {
    SimNetwork net;
    net.at("w1")->handle(wire::Kind::kCall, Messenger::Run::kAsTask, [&](Request) {
      EXPECT_FALSE(never.future().wait_for(seconds(60)));
      ++ended;
    });
    for (int i = 0; i < 3; ++i) send_call(net, "w0", "w1");
    net.scheduler().drain();
    EXPECT_EQ(net.at("w1")->counters().threads, 3);
  }
  EXPECT_EQ(ended, 3);
}

}  // namespace
}  // namespace farspan::testing
