#include <farspan/rpc/agent/serving_wait.h>

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "c10d/net/mailbox.h"
#include "c10d/net/tasks.h"
#include "support/agents.h"

namespace farspan::testing {
namespace {

using agent::Messenger;
using agent::Request;
using agent::ServingWait;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr auto kKind = wire::Kind::kAutogradControl;
constexpr int kRounds = 2000;

const auto any = [](const Request&) { return true; };

// Until who waits for something else reads, as a rule: who has read the last message sleeps by
// then.
void pause() { std::this_thread::sleep_for(milliseconds(1)); }

void post(Agents& agents, int from, int to, uint64_t word) {
  const Buffer meta = words(1, word);
  wire::OutFrame frame;
  frame.header.kind = kKind;
  frame.meta = meta.span();
  agents[from].post(to, frame);
}

class ServingWaitTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { agents.call_sync(0, 1, words(1, 1).span()); }  // a line is there

  // The other worker posts this while the calling thread waits.
  template <class IsOwn>
  void wait_for(uint64_t word, const Future<void>& over, const IsOwn& is_own) {
    agents[1].run([this, word] {
      pause();
      post(agents, 1, 0, word);
    });
    while (!over.ready()) agents[0].wait_and_serve(*over.state(), 1, is_own, polling, {});
  }

  AgentsOptions options() {
    AgentsOptions options;
    options.transport = GetParam();
    return options;
  }

  // What the next request brings.
  Future<void> next() {
    const std::lock_guard lock(mutex_);
    served_ = Promise<void>();
    return served_.future();
  }

  std::atomic<int> served_here{0}, served_elsewhere{0};
  const std::thread::id here = std::this_thread::get_id();
  net::SpinGovernor polling;
  std::mutex mutex_;
  Promise<void> served_;
  Agents agents{options()};  // whose threads use these

 private:
  void serve_now() {
    Promise<void> mine;
    {
      const std::lock_guard lock(mutex_);
      mine = served_;
    }
    mine.set_value();
  }

  const bool handles_ = [this] {
    agents[1].handle(wire::Kind::kCall, Messenger::Run::kAsTask, [](Request request) {
      if (word_at(request.frame().meta, 0) == 2) pause();
      request.reply({});
    });
    agents[0].handle(kKind, Messenger::Run::kByWaiter, [this](const Request& request) {
      EXPECT_EQ(agent::current_call().from, 1);
      EXPECT_EQ(agent::current_call().chain, net::current_chain());
      EXPECT_EQ(word_at(request.frame().meta, 0), 7u);
      std::this_thread::get_id() == here ? ++served_here : ++served_elsewhere;
      serve_now();
    });
    return true;
  }();
};

INSTANTIATE_TEST_SUITE_P(Over, ServingWaitTest, ::testing::Values("loopback", "shm", "unix"),
                         [](const auto& over) { return std::string(over.param); });

TEST_P(ServingWaitTest, WhoReadsItsOwnServesIt) {
  const net::InChain chain(5);  // of which the request is not
  for (int round = 0; round < kRounds && served_here == 0; ++round) {
    wait_for(7, next(), any);
  }
  EXPECT_GT(served_here, 0);
}

TEST_P(ServingWaitTest, WhatIsNotItsOwnIsServedByOthers) {
  int asked = 0, thrown = 0;
  const auto none = [&](const Request&) { return ++asked == 0; };
  const auto throws = [&](const Request&) -> bool {
    ++thrown;
    throw std::out_of_range("from a question");
  };
  for (int round = 0; round < kRounds && (asked == 0 || thrown == 0); ++round) {
    wait_for(7, next(), none);
    wait_for(7, next(), throws);
    // Nor while it waits in another way.
    const auto state = next().state();
    agents[1].run([this] { post(agents, 1, 0, 7); });
    EXPECT_TRUE(agents[0].wait(*state, Deadline::after(seconds(20)), 1));
  }
  EXPECT_TRUE(asked > 0 && thrown > 0);
  EXPECT_EQ(served_here, 0);
}

// Its continuation waits for what the request brings, on top of the wait whose own that is.
TEST_P(ServingWaitTest, WhatComesInAWaitInsideIsServedByOthers) {
  std::atomic<int> continued_here{0};
  for (int round = 0; round < kRounds && continued_here == 0; ++round) {
    const auto state = next().state();
    served_here = 0;  // in a round before, where another thread had the continuation
    const Promise<void> over;
    std::atomic<bool> waits{false};
    agents.call(0, 1, words(1, 2).span()).state()->on_ready([&] {
      if (waits && std::this_thread::get_id() == here) ++continued_here;
      agents[1].run([this] {
        pause();
        post(agents, 1, 0, 7);
      });
      EXPECT_TRUE(agents[0].wait(*state, Deadline::after(seconds(20)), 1));
      over.set_value();
    });
    waits = true;
    while (!over.future().ready()) {
      agents[0].wait_and_serve(*over.future().state(), 1, any, polling, {});
    }
  }
  EXPECT_GT(continued_here, 0);
  EXPECT_EQ(served_here, 0);
}

Request some_request() { return {1, wire::InFrame(), Deadline::never(), nullptr}; }

// A thread in such a wait for `over`, on whose line come counts for `on_read`.
void wait_with(const Promise<void>& over, const std::function<void(net::Reactor&)>& on_read) {
  net::Reactor reactor;
  const auto mailbox = std::make_shared<Mailbox>([&](uint64_t) { on_read(reactor); });
  reactor.add(mailbox);
  std::thread other([&] { mailbox->post(); });
  while (!over.future().ready()) {
    const std::function<bool(const Request&)> is_own = any;
    auto task = ServingWait(reactor, is_own).wait(*over.future().state(), mailbox.get(), {});
    if (task) reactor.run_here(std::move(task));
  }
  other.join();
  reactor.remove(*mailbox);
  reactor.stop();
}

// What was read with it, and is run first, waits for it.
TEST(ServingWait, OthersComeForWhatLiesBehindOneThatBlocks) {
  int taken = 0;
  for (int round = 0; round < kRounds && taken == 0; ++round) {
    const Promise<void> over;
    wait_with(over, [&](net::Reactor& reactor) {
      const Promise<void> served;
      auto task = std::make_unique<FunctionTask>([served] { served.set_value(); }, 0);
      if (auto* const wait = ServingWait::for_request(reactor, some_request())) {
        wait->take(std::move(task));
        EXPECT_EQ(ServingWait::for_request(reactor, some_request()), nullptr) << "one at a time";
        ++taken;
      } else {
        reactor.run(std::move(task));
      }
      EXPECT_TRUE(served.future().wait_for(seconds(20)));
      over.set_value();
    });
  }
  EXPECT_GT(taken, 0);
}

// Where others may be coming for what it has taken.
TEST(ServingWait, TakesNothingInAWaitInside) {
  const auto here = std::this_thread::get_id();
  int read_inside = 0;
  for (int round = 0; round < kRounds && read_inside == 0; ++round) {
    const Promise<void> over;
    wait_with(over, [&](net::Reactor& reactor) {
      const bool is_outer = std::this_thread::get_id() == here;
      const Promise<void> inner;
      const auto mailbox = std::make_shared<Mailbox>([&, inner](uint64_t) {
        EXPECT_EQ(ServingWait::for_request(reactor, some_request()), nullptr);
        if (is_outer && std::this_thread::get_id() == here) ++read_inside;
        inner.set_value();
      });
      reactor.add(mailbox);
      std::thread other([&] {
        pause();
        mailbox->post();
      });
      const auto state = inner.future().state();
      EXPECT_TRUE(reactor.wait(*state, Deadline::after(seconds(20)), mailbox.get()));
      other.join();
      reactor.remove(*mailbox);
      over.set_value();
    });
  }
  EXPECT_GT(read_inside, 0);
}

TEST(ServingWait, TakesNothingOfAnotherReactorNorOutsideOfItsWait) {
  net::Reactor other;
  std::atomic<int> looked{0};
  for (int round = 0; round < kRounds && looked == 0; ++round) {
    const Promise<void> over;
    wait_with(over, [&](net::Reactor& reactor) {
      if (ServingWait::for_request(reactor, some_request())) ++looked;
      EXPECT_EQ(ServingWait::for_request(other, some_request()), nullptr);
      over.set_value();
    });
  }
  EXPECT_GT(looked, 0);
  const std::function<bool(const Request&)> is_own = any;
  const ServingWait wait(other, is_own);
  EXPECT_EQ(ServingWait::for_request(other, some_request()), nullptr);
}

}  // namespace
}  // namespace farspan::testing
