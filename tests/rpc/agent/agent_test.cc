// The rules under test: rpc/agent/README.md, over every transport.
#include <farspan/rpc/agent/agent.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include <farspan/c10d/base/log.h>
#include <farspan/c10d/net/spin.h>

#include "support/agents.h"
#include "support/eventually.h"
#include "support/process_counts.h"
#include "support/sanitizers.h"
#include "support/seeded_random.h"

namespace farspan::testing {
namespace {

using agent::Messenger;
using agent::Request;
using std::chrono::milliseconds;
using std::chrono::seconds;

class AgentTest : public ::testing::TestWithParam<const char*> {
 protected:
  AgentsOptions options(int count = 2) {
    AgentsOptions options;
    options.count = count;
    options.transport = GetParam();
    return options;
  }
  static void echo(Agents& agents, int rank) {
    agents[rank].handle(wire::Kind::kCall, Messenger::Run::kAsTask, [](Request request) {
      const wire::InFrame frame = request.frame();
      request.reply(frame.meta.span(), frame.segments);
    });
  }
};

TEST_P(AgentTest, AnswersWithTheBytesOfTheRequest) {
  Agents agents(options());
  echo(agents, 1);
  for (const size_t size : {0ul, 1ul, 7ul, 8ul, 4096ul, 16384ul, 16385ul, 200'000ul, 40ul << 20}) {
    Buffer segment = Buffer::allocate(size);
    for (size_t i = 0; i < size; ++i) segment.data()[i] = static_cast<std::byte>(i * 7 + size);
    const Buffer meta = words(3, size);
    const wire::InFrame reply =
        agents.call_sync(0, 1, meta.span(), {segment, words(2, 9), segment});
    ASSERT_EQ(reply.segments.size(), 3u);
    EXPECT_EQ(word_at(reply.meta, 2), size);
    EXPECT_EQ(word_at(reply.segments[1], 1), 9u);
    for (const int index : {0, 2}) {
      const Buffer& back = reply.segments[static_cast<size_t>(index)];
      ASSERT_EQ(back.size(), size);
      EXPECT_TRUE(size == 0 || std::memcmp(back.data(), segment.data(), size) == 0);
    }
  }
}

TEST_P(AgentTest, CallsItself) {
  Agents agents(options(1));
  echo(agents, 0);
  EXPECT_EQ(word_at(agents.call_sync(0, 0, words(1, 5).span()).meta, 0), 5u);
}

TEST_P(AgentTest, KeepsTheCallsOfManyThreadsApart) {
  Agents agents(options());
  echo(agents, 1);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (uint64_t i = 0; i < 500; ++i) {
        const uint64_t value = thread << 32 | i;
        wrong += word_at(agents.call_sync(0, 1, words(1, value).span()).meta, 0) != value;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST_P(AgentTest, HoldsTenThousandCallsInFlight) {
  Agents agents(options());
  echo(agents, 1);
  std::vector<Future<wire::InFrame>> futures;
  for (uint64_t i = 0; i < 10'000; ++i) futures.push_back(agents.call(0, 1, words(1, i).span()));
  for (uint64_t i = 0; i < 10'000; ++i) EXPECT_EQ(word_at(futures[i].wait().meta, 0), i);
}

// Answers withdraw what was offered while other requests lie in the outbox; nobody waits, so nobody
// but the reactor writes on.
TEST_P(AgentTest, BurstsOfOfferedAndOtherRequestsAllLeave) {
  Agents agents(options());
  agents[1].handle(wire::Kind::kCall, Messenger::Run::kAsTask,
                   [](Request request) { request.reply({}, {}); });
  const Buffer small = Buffer::allocate(60 << 10), offered = Buffer::allocate(128 << 10);
  for (int burst = 0; burst < 20; ++burst) {
    const TimePoint begun = Clock::now();
    std::vector<Future<wire::InFrame>> calls;
    for (int i = 0; i < 300; ++i) {
      const Buffer& segment = i < 200 && i % 2 == 0 ? offered : small;
      calls.push_back(agents.call(0, 1, {}, {segment}, Deadline::after(seconds(20))));
    }
    for (const auto& call : calls) {
      call.state()->sleep(Deadline::never());
      ASSERT_FALSE(call.has_error()) << "burst " << burst << ": " << call.error().what();
    }
    ASSERT_LT(Clock::now() - begun, seconds(5)) << "burst " << burst;
  }
}

TEST_P(AgentTest, LimitsTheBytesInFlight) {
  AgentsOptions small = options();
  small.max_in_flight_bytes = 1 << 20;
  Agents agents(small);
  echo(agents, 1);
  std::vector<Future<wire::InFrame>> futures;
  for (int i = 0; i < 64; ++i) {
    futures.push_back(agents.call(0, 1, words(1, 1).span(), {Buffer::allocate(256 << 10)}));
    // Expect: never more than the limit; a call beyond it waits for room.
    EXPECT_LE(agents[0].counters().in_flight, 4);
  }
  for (auto& future : futures) future.wait();
}

TEST_P(AgentTest, NestedCallsDoNotWaitForTheBytesOfTheOnesAround) {
  AgentsOptions small = options();
  small.max_in_flight_bytes = 1 << 20;
  Agents agents(small);
  for (const int rank : {0, 1}) {
    agents[rank].handle(wire::Kind::kCall, Messenger::Run::kAsTask,
                        [&agents, rank](Request request) {
                          const uint64_t left = word_at(request.frame().meta, 0);
                          if (left > 0) {
                            agents.call_sync(rank, 1 - rank, words(1, left - 1).span(),
                                             {Buffer::allocate(700 << 10)});
                          }
                          request.reply({});
                        });
  }
  const auto answer = agents.call(0, 1, words(1, 6).span(), {Buffer::allocate(700 << 10)});
  ASSERT_TRUE(answer.wait_for(seconds(10))) << "deadlock";
  EXPECT_FALSE(answer.has_error());
}

TEST_P(AgentTest, BothSidesMayDialAtOnce) {
  for (int round = 0; round < 20; ++round) {
    Agents agents(options());
    echo(agents, 0);
    echo(agents, 1);
    auto there = std::thread([&] { agents.call_sync(0, 1, words(1, 1).span()); });
    agents.call_sync(1, 0, words(1, 2).span());
    there.join();
    // Expect: one line, whoever was first.
    EXPECT_EQ(agents[0].counters().connections, 1);
    EXPECT_EQ(agents[1].counters().connections, 1);
  }
}

// word 0: calls left to make. Each passes the call on to the other worker and adds one.
void ping_pong(Agents& agents, int rank) {
  agents[rank].handle(wire::Kind::kCall, Messenger::Run::kAsTask, [&agents, rank](Request request) {
    const uint64_t left = word_at(request.frame().meta, 0);
    if (left == 0) return request.reply(words(1, 0).span());
    try {
      const auto reply = agents.call_sync(rank, 1 - rank, words(1, left - 1).span());
      request.reply(words(1, word_at(reply.meta, 0) + 1).span());
    } catch (const Error& e) {
      request.fail(e);
    }
  });
}

TEST_P(AgentTest, NestsToDepthTwoHundred) {
  Agents agents(options());
  ping_pong(agents, 0);
  ping_pong(agents, 1);
  EXPECT_EQ(word_at(agents.call_sync(0, 1, words(1, 200).span()).meta, 0), 200u);
}

TEST_P(AgentTest, NestsToDepthTwentyFromSixtyFourAtOnce) {
  Agents agents(options());
  ping_pong(agents, 0);
  ping_pong(agents, 1);
  std::vector<Future<wire::InFrame>> futures;
  for (int i = 0; i < 64; ++i) futures.push_back(agents.call(0, 1, words(1, 20).span()));
  for (auto& future : futures) {
    ASSERT_TRUE(future.wait_for(seconds(60))) << "deadlock";
    ASSERT_FALSE(future.has_error()) << future.error().what();
    EXPECT_EQ(word_at(future.value().meta, 0), 20u);
  }
}

TEST_P(AgentTest, WithFewThreadsDeepCallsAreAnsweredOrTurnedAway) {
  AgentsOptions few = options();
  few.max_threads = 64;  // 640 nested calls on each side: most run on their own chain's threads
  Agents agents(few);
  ping_pong(agents, 0);
  ping_pong(agents, 1);
  std::vector<Future<wire::InFrame>> futures;
  int answered = 0;
  for (int i = 0; i < 64; ++i) futures.push_back(agents.call(0, 1, words(1, 20).span()));
  for (auto& future : futures) {
    future.wait_for(seconds(30));
    ASSERT_TRUE(future.ready()) << "deadlock";
    // Expect: answered, or turned away by name; never stuck.
    if (future.has_error()) {
      EXPECT_EQ(future.error().code(), Code::kOverloaded) << future.error().what();
    } else {
      ++answered;
    }
  }
  EXPECT_GT(answered, 0);
}

TEST_P(AgentTest, KeepsFewThreadsWhenIdleAgain) {
  Agents agents(options());
  ping_pong(agents, 0);
  ping_pong(agents, 1);
  agents.call_sync(0, 1, words(1, 60).span());
  const Deadline deadline = Deadline::after(seconds(20));
  while (agents[0].counters().threads > 4 && !deadline.expired()) {
    std::this_thread::sleep_for(milliseconds(20));  // until the spare threads have retired
  }
  EXPECT_LE(agents[0].counters().threads, 4);
}

// Each worker has called each other one. What grew with the square of their number would be found.
TEST_P(AgentTest, HasAFewDescriptorsForEachPeerAndFewThreads) {
  constexpr int kOfAPeer = 4, kThreads = 4;
  const auto call_all = [&](int workers, const std::function<void()>& look) {
    Agents agents(options(workers));
    for (int rank = 0; rank < workers; ++rank) echo(agents, rank);
    for (int from = 0; from < workers; ++from) {
      for (int to = 0; to < workers; ++to) {
        if (from != to) agents.call_sync(from, to, words(1, 1).span());
      }
    }
    look();
  };
  call_all(2, [] {});  // opens what the process keeps
  const ProcessCounts before = ProcessCounts::now();
  int alone = 0;
  call_all(1, [&] { alone = ProcessCounts::now().descriptors - before.descriptors; });
  EXPECT_GT(alone, 0);
  for (const int workers : {3, 12}) {
    call_all(workers, [&] {
      const int descriptors = ProcessCounts::now().descriptors - before.descriptors;
      EXPECT_LE(descriptors, workers * (alone + kOfAPeer * (workers - 1))) << workers << " workers";
      // Spare ones retire.
      EXPECT_TRUE(eventually(
          [&] { return ProcessCounts::now().threads - before.threads <= kThreads * workers; },
          seconds(20)))
          << ProcessCounts::now() << ", " << workers << " workers";
    });
  }
}

// Where other programs compute it looks between their turns, which takes no time that is counted.
TEST_P(AgentTest, CountsHowItPolls) {
  Agents agents(options());
  agents[1].handle(wire::Kind::kCall, Messenger::Run::kAsTask, [](Request request) {
    std::this_thread::sleep_for(milliseconds(word_at(request.frame().meta, 0)));
    request.reply({});
  });
  ASSERT_TRUE(eventually(
      [&] {
        // Answers that come at once, and one that no poll finds.
        for (const uint64_t ms : {0ul, 0ul, 0ul, 2ul}) agents.call_sync(0, 1, words(1, ms).span());
        const net::ReactorCounters seen = agents[0].reactor().counters();
        return seen.spin_hits > 0 && seen.spin_misses > 0 &&
               (seen.spin_time.count() > 0 || net::is_crowded(Clock::now()));
      },
      seconds(20)));
  const net::ReactorCounters before = agents[0].reactor().counters();
  const agent::MessengerCounters counters = agents[0].counters();
  const net::ReactorCounters after = agents[0].reactor().counters();
  EXPECT_GE(counters.polls_that_found, before.spin_hits);
  EXPECT_LE(counters.polls_that_found, after.spin_hits);
  EXPECT_GE(counters.polls_in_vain, before.spin_misses);
  EXPECT_LE(counters.polls_in_vain, after.spin_misses);
  EXPECT_GE(counters.polling, before.spin_time);
  EXPECT_LE(counters.polling, after.spin_time);
}

TEST_P(AgentTest, ACallEndsAtItsDeadline) {
  std::atomic<bool> go{false};
  Agents agents(options());
  agents[1].handle(wire::Kind::kCall, Messenger::Run::kAsTask, [&](Request request) {
    while (!go) std::this_thread::yield();
    request.reply({});
  });
  for (const int ms : {1, 20, 5}) {
    const TimePoint begun = Clock::now();
    auto future = agents.call(0, 1, words(1, 1).span(), {}, Deadline::after(milliseconds(ms)));
    ASSERT_TRUE(future.wait_for(seconds(5)));
    EXPECT_EQ(future.error().code(), Code::kTimeout);
    EXPECT_GE(Clock::now() - begun, milliseconds(ms));
    EXPECT_LT(Clock::now() - begun, seconds(2));
  }
  go = true;
}

TEST_P(AgentTest, ARequestThatExpiredInTheQueueIsNotRun) {
  AgentsOptions one = options();
  one.threads = 1;
  std::atomic<bool> go{false};
  std::atomic<int> runs{0};
  Agents agents(one);
  agents[1].handle(wire::Kind::kCall, Messenger::Run::kAsTask, [&](Request request) {
    ++runs;
    while (!go) std::this_thread::yield();
    request.reply({});
  });
  auto first = agents.call(0, 1, words(1, 1).span());
  while (runs == 0) std::this_thread::yield();
  auto second = agents.call(0, 1, words(1, 1).span(), {}, Deadline::after(milliseconds(10)));
  ASSERT_TRUE(second.wait_for(seconds(5)));
  EXPECT_TRUE(eventually([&] { return agents[1].counters().calls_received == 2; }));
  std::this_thread::sleep_for(milliseconds(30));  // what was left of 10 ms has passed there, too
  go = true;
  first.wait();
  agents.call(0, 1, words(1, 1).span()).wait();  // behind the expired one in the queue
  EXPECT_EQ(runs, 2);
}

TEST_P(AgentTest, WhatIsLeftOfACallGoesOnInItsContextAndNotAfterItsDeadline) {
  std::optional<Request> kept;  // outlives the threads that use it
  Promise<agent::CallContext> called;
  Agents agents(options());
  agents[1].handle(wire::Kind::kCall, Messenger::Run::kAsTask, [&](Request request) {
    kept.emplace(std::move(request));
    called.set_value(agent::current_call());
  });
  const auto answer = agents.call(0, 1, words(1, 1).span());
  agent::CallContext call = called.future().wait();
  agents[1].resume(
      call,
      [&] {
        EXPECT_EQ(agent::current_call().from, 0);
        EXPECT_EQ(agent::current_call().chain, kept->frame().header.chain);
        EXPECT_EQ(net::current_chain(), kept->frame().header.chain);
        kept->reply({});
      },
      [](const Error& why) { ADD_FAILURE() << why.what(); });
  EXPECT_NO_THROW(answer.wait(seconds(10)));
  const Promise<Code> rejected;
  call.deadline = Deadline(Clock::now());
  agents[1].resume(
      call, [] { ADD_FAILURE() << "it is too late"; },
      [rejected](const Error& why) { rejected.set_value(why.code()); });
  EXPECT_EQ(rejected.future().wait(seconds(10)), Code::kTimeout);
}

TEST_P(AgentTest, ADroppedRequestIsAnswered) {
  Agents agents(options());
  agents[1].handle(wire::Kind::kCall, Messenger::Run::kAsTask, [](Request) {});
  auto future = agents.call(0, 1, words(1, 1).span());
  ASSERT_TRUE(future.wait_for(seconds(5)));
  EXPECT_EQ(future.error().code(), Code::kCancelled);
}

TEST_P(AgentTest, WhatAHandlerThrowsEndsItsRequestOnly) {
  Agents agents(options());
  set_log_sink([](LogLevel, std::string_view, std::string_view) {});
  const auto handler = [](Request) { throw std::out_of_range("from a handler"); };
  agents[1].handle(wire::Kind::kCall, Messenger::Run::kAsTask, handler);
  agents[1].handle(wire::Kind::kBuiltinCall, Messenger::Run::kInline, handler);
  for (const auto kind : {wire::Kind::kCall, wire::Kind::kBuiltinCall}) {
    const auto answer = std::make_shared<Answer>();
    wire::OutFrame frame;
    frame.header.kind = kind;
    agents[0].call(1, frame, Deadline::after(seconds(20)), answer, false);
    ASSERT_TRUE(answer->future().wait_for(seconds(10)));
    EXPECT_EQ(answer->future().error().code(), Code::kCancelled);
  }
  const Promise<void> ran;
  agents[1].run([] { throw std::out_of_range("from a task"); });
  agents[1].run([ran] { ran.set_value(); });
  EXPECT_TRUE(ran.future().wait_for(seconds(10)));
  set_log_sink(nullptr);
}

TEST_P(AgentTest, CannotBeStoppedFromAThreadOfItsOwn) {
  Agents agents(options());
  agents[1].handle(wire::Kind::kCall, Messenger::Run::kAsTask, [&](Request request) {
    try {
      agents[1].stop();
      request.reply({});
    } catch (const Error& e) {
      request.fail(e);
    }
  });
  for (int i = 0; i < 2; ++i) {  // it goes on as before
    const auto answer = agents.call(0, 1, words(1, 1).span());
    ASSERT_TRUE(answer.wait_for(seconds(10)));
    ASSERT_TRUE(answer.has_error());
    EXPECT_EQ(answer.error().code(), Code::kInvalidArgument);
  }
}

// What workers compare when they leave together: see rpc/agent/meeting.h.
TEST_P(AgentTest, SentAndReceivedAgreeWhateverWasLost) {
  AgentsOptions small = options();
  small.max_payload_bytes = 1 << 20;
  Agents agents(small);
  echo(agents, 0);
  echo(agents, 1);
  const auto agree = [&] {
    const Deadline deadline = Deadline::after(seconds(10));
    for (;;) {
      uint64_t sent = 0, received = 0;
      for (const int rank : {0, 1}) {
        sent += agents[rank].counters().requests_sent;
        received += agents[rank].counters().requests_received;
      }
      if (sent == received || deadline.expired()) return sent == received;
      std::this_thread::yield();
    }
  };
  agents.call_sync(0, 1, words(1, 1).span());
  agents.call_sync(1, 0, words(1, 1).span());
  EXPECT_TRUE(agree());
  // One that is too large to be sent, and one to a worker that there is not.
  EXPECT_THROW(agents.call_sync(0, 1, {}, std::vector<Buffer>(70'000)), Error);
  EXPECT_THROW(agents.call_sync(0, 2, {}), Error);
  EXPECT_TRUE(agree());
  // The line breaks while some are under way: one is more than the other side takes.
  const auto post = [&](size_t bytes) {
    wire::OutFrame frame;
    frame.header.kind = wire::Kind::kRRefControl;
    frame.segments = {Buffer::allocate(bytes)};
    agents[0].post(1, frame);
  };
  for (int round = 0; round < 5; ++round) {
    for (int i = 0; i < 10; ++i) post(100'000);
    post(2 << 20);
    for (int i = 0; i < 10; ++i) post(100'000);
    EXPECT_TRUE(agree());
    agents.call(1, 0, words(1, 1).span()).wait_for(seconds(20));  // may meet the broken line
    EXPECT_TRUE(agree());
  }
}

TEST_P(AgentTest, AKindThatNobodyHandlesIsRefused) {
  Agents agents(options());
  auto future = agents.call(0, 1, words(1, 1).span());
  ASSERT_TRUE(future.wait_for(seconds(5)));
  EXPECT_EQ(future.error().code(), Code::kNotRegistered);
}

TEST_P(AgentTest, CallsToAWorkerThatStopsFailAtOnce) {
  std::atomic<bool> go{false}, begun{false};
  Agents agents(options());
  agents[1].handle(wire::Kind::kCall, Messenger::Run::kAsTask, [&](Request request) {
    begun = true;
    while (!go) std::this_thread::yield();
    request.reply({});
  });
  auto future = agents.call(0, 1, words(1, 1).span());
  while (!begun) std::this_thread::yield();
  std::thread stopping([&] { agents[1].stop(); });
  ASSERT_TRUE(future.wait_for(seconds(10)));
  EXPECT_EQ(future.error().code(), Code::kDisconnected) << future.error().what();
  go = true;
  stopping.join();
  // Expect: a later call says that nobody is there.
  auto later = agents.call(0, 1, words(1, 1).span());
  ASSERT_TRUE(later.wait_for(seconds(10)));
  EXPECT_TRUE(later.has_error());
}

// However large the answer was that it goes on from.
TEST_P(AgentTest, AContinuationThatBlocksDoesNotHideTheEndOfItsLine) {
  for (const size_t count : {size_t{1}, size_t{512} << 10}) {
    Agents agents(options());
    std::atomic<bool> has_both{false}, goes_on_later{false};
    std::vector<Request> held;
    agents[1].handle(wire::Kind::kCall, Messenger::Run::kAsTask, [&](Request request) {
      if (word_at(request.frame().meta, 0) != 0) {
        while (!goes_on_later) std::this_thread::yield();
        return request.reply({}, {words(count, 1)});
      }
      held.push_back(std::move(request));
      has_both = true;
    });
    const auto waits = agents.call(0, 1, words(1, 0).span());
    while (!has_both) std::this_thread::yield();
    const Promise<void> go, blocks;
    const auto goes_on = agents.call(0, 1, words(1, 1).span()).then([&](const auto& answer) {
      EXPECT_FALSE(answer.has_error());
      blocks.set_value();
      go.future().wait();
    });
    goes_on_later = true;
    ASSERT_TRUE(blocks.future().wait_for(seconds(10)));
    std::thread stopping([&] { agents[1].stop(); });
    EXPECT_TRUE(waits.wait_for(seconds(10))) << count;
    EXPECT_TRUE(waits.has_error()) << count;
    go.set_value();
    goes_on.wait();
    held.clear();
    stopping.join();
  }
}

TEST_P(AgentTest, StopsWhileCallsAreUnderWay) {
  for (int round = 0; round < 10; ++round) {
    Agents agents(options());
    echo(agents, 0);
    echo(agents, 1);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&, thread] {
        for (;;) {
          auto future = agents.call(thread % 2, 1 - thread % 2, words(1, 1).span());
          if (!future.wait_for(seconds(20)) || future.has_error()) return;
        }
      });
    }
    agents.call_sync(0, 1, words(1, 1).span());
    agents[round % 2].stop();
    for (auto& thread : threads) thread.join();
  }
}

// However a call ends, its memory is the caller's again: what is delivered is what was sent, though
// the caller changes it at once.
TEST_P(AgentTest, MemoryIsTheCallersAgainHoweverItsCallsEnd) {
  enum End { kTimeOut, kTurnedAway, kDropped, kCallerStops, kCalleeStops };
  constexpr size_t kWords = 128 << 10;
  constexpr uint64_t kCalls = 6;
  std::vector<Buffer> sent;  // by number; the first opens the line
  for (uint64_t number = 0; number <= kCalls; ++number) sent.push_back(words(kWords, number));
  SeededRandom random(5);
  std::set<Code> unseen{Code::kTimeout, Code::kOverloaded, Code::kCancelled, Code::kShutdown,
                        Code::kDisconnected};
  const Deadline limit = Deadline::after(seconds(100));  // until calls have ended in all ways
  for (int round = 0; round < repetitions(850) || (!unseen.empty() && !limit.expired()); ++round) {
    const auto end = static_cast<End>(round % 5);
    std::atomic<int> wrong{0};
    Agents agents(options());
    agents[1].handle(wire::Kind::kCall, Messenger::Run::kAsTask, [&](Request request) {
      const Buffer& expected = sent.at(word_at(request.frame().meta, 0));
      const Buffer& segment = request.frame().segments.at(0);
      wrong += std::memcmp(segment.data(), expected.data(), expected.size()) != 0;
      if (end == kTurnedAway) return request.fail(Error(Code::kOverloaded, "not now"));
      if (end == kDropped) return;
      request.reply({});
    });
    const auto call = [&](const Buffer& segment, uint64_t number) {
      const Millis patience = end == kTimeOut ? Millis(random.below(4)) : Millis(30'000);
      return agents.call(0, 1, words(1, number).span(), {segment}, Deadline::after(patience));
    };
    call(sent[0], 0).wait_for(seconds(20));
    std::vector<std::pair<Buffer, Future<wire::InFrame>>> calls;
    for (uint64_t number = 1; number <= kCalls; ++number) {
      const Buffer segment = Buffer::copy_of(sent[number].span());
      calls.emplace_back(segment, call(segment, number));
    }
    std::thread stopping([&, after = random.up_to(Micros(1'500))] {
      if (end != kCallerStops && end != kCalleeStops) return;
      std::this_thread::sleep_for(after);
      agents[end == kCallerStops ? 0 : 1].stop();
    });
    for (auto& [segment, future] : calls) {
      EXPECT_TRUE(future.wait_for(seconds(20)));
      if (future.has_error()) unseen.erase(future.error().code());
      std::memset(segment.data(), 0xff, segment.size());
    }
    stopping.join();
    for (int rank : {0, 1}) agents[rank].stop();  // the handler has ended
    ASSERT_EQ(wrong, 0) << "round " << round;
  }
  EXPECT_THAT(unseen, ::testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Transports, AgentTest, ::testing::Values("shm", "unix", "tcp", "loopback"),
                         [](const auto& transport) { return std::string(transport.param); });

}  // namespace
}  // namespace farspan::testing
