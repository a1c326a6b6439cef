// The rules under test: rpc/agent/leases.h; and WIRE.md, "Leases", between two agents.
#include <farspan/rpc/agent/leases.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "support/agents.h"
#include "support/errors.h"
#include "support/eventually.h"

namespace farspan::testing {
namespace {

using agent::Leases;
using agent::Messenger;
using agent::Request;
using std::chrono::milliseconds;

// Something that is lent, and whether anybody has it still.
struct Thing {
  struct What final : wire::Lent {
    explicit What(std::shared_ptr<std::atomic<bool>> told) : has_ended(std::move(told)) {}
    void line_ended() noexcept override { *has_ended = true; }
    const std::shared_ptr<std::atomic<bool>> has_ended;
  };

  // Its line has, before it was released.
  std::shared_ptr<std::atomic<bool>> has_ended = std::make_shared<std::atomic<bool>>(false);
  std::shared_ptr<What> what = std::make_shared<What>(has_ended);
  std::weak_ptr<What> seen = what;

  std::shared_ptr<What> give() { return std::exchange(what, nullptr); }
  bool is_kept() const { return !seen.expired(); }
};

wire::OutFrame frame_with(Thing& thing) {
  wire::OutFrame frame;
  frame.lent = thing.give();
  return frame;
}

TEST(Leases, KeepWhatAFrameLendsUntilTheyEnd) {
  Leases leases;
  Thing first, second;
  uint64_t ids[2];
  for (int i = 0; i < 2; ++i) {
    wire::OutFrame frame = frame_with(i == 0 ? first : second);
    ids[i] = leases.make(frame);
    EXPECT_EQ(frame.lease, ids[i]);
    EXPECT_TRUE(frame.header.flags & wire::kLends);
  }
  EXPECT_NE(ids[0], ids[1]);
  EXPECT_EQ(leases.count(), 2u);
  leases.end(ids[1]);
  leases.end(ids[1]);  // no such lease
  EXPECT_TRUE(first.is_kept());
  EXPECT_FALSE(second.is_kept());
  EXPECT_EQ(leases.count(), 1u);
  for (const auto& lent : leases.close()) lent->line_ended();
  EXPECT_FALSE(first.is_kept());
  EXPECT_TRUE(*first.has_ended) << "not by the peer";
  EXPECT_FALSE(*second.has_ended);
  EXPECT_EQ(leases.count(), 0u);
}

TEST(Leases, AFrameThatLendsNothingHasNone) {
  Leases leases;
  wire::OutFrame frame;
  EXPECT_EQ(leases.make(frame), 0u);
  EXPECT_EQ(frame.header.flags, 0u);
}

TEST(Leases, NoneIsMadeAfterTheEnd) {
  Leases leases;
  leases.close();
  Thing thing;
  {
    wire::OutFrame frame = frame_with(thing);
    EXPECT_EQ(leases.make(frame), 0u);
    EXPECT_EQ(frame.header.flags, 0u);
  }
  EXPECT_FALSE(thing.is_kept());
}

TEST(Leases, OfRequestsThatNeverLeaveEnd) {
  Leases leases;
  Thing left, unsent;
  wire::OutFrame one = frame_with(left), other = frame_with(unsent);
  leases.belongs_to(7, leases.make(one));
  leases.belongs_to(8, leases.make(other));
  one.lent = other.lent = nullptr;
  const uint64_t gone[] = {8, 9};
  leases.end_unsent(gone);
  EXPECT_TRUE(left.is_kept());
  EXPECT_FALSE(unsent.is_kept());
}

class LentByAgents : public ::testing::Test {
 protected:
  // Rank 1 hands what comes to `serve`.
  void on_request(Messenger::Handler serve) {
    agents_[1].handle(wire::Kind::kCall, Messenger::Run::kAsTask, std::move(serve));
  }
  Future<wire::InFrame> lend(Thing& thing, milliseconds timeout = milliseconds(30'000)) {
    auto answer = std::make_shared<Answer>();
    auto future = answer->future();
    wire::OutFrame frame = frame_with(thing);
    agents_[0].call(1, frame, Deadline::in(timeout), std::move(answer), false);
    return future;
  }

  Agents agents_{{.count = 2, .transport = "unix"}};
};

TEST_F(LentByAgents, IsKeptWhileTheReceiverHasTheFrameOrWhatItBorrowed) {
  std::mutex mutex;
  std::shared_ptr<void> borrowed;
  on_request([&](Request request) {
    if (request.frame().borrowed) {
      const std::lock_guard lock(mutex);
      borrowed = request.frame().borrowed;
    }
    request.reply({});
  });
  Thing thing;
  lend(thing).wait();
  for (int call = 0; call < 20; ++call) agents_.call_sync(0, 1, {});  // behind a release, if any
  EXPECT_TRUE(thing.is_kept());
  {
    const std::lock_guard lock(mutex);
    borrowed = nullptr;
  }
  EXPECT_TRUE(eventually([&] { return !thing.is_kept(); }));
}

TEST_F(LentByAgents, IsReleasedByAFrameOfWhichNobodyKnowsTheKind) {
  Thing refused;
  EXPECT_THROW(lend(refused).wait(), Error);  // no handler
  EXPECT_TRUE(eventually([&] { return !refused.is_kept(); }));
}

TEST_F(LentByAgents, IsReleasedByAFrameThatNobodyLooksInto) {
  on_request([](const Request&) {});
  Thing dropped;
  EXPECT_EQ(code_of([&] { lend(dropped).wait(); }), Code::kCancelled);
  EXPECT_TRUE(eventually([&] { return !dropped.is_kept(); }));
}

TEST_F(LentByAgents, IsKeptAfterItsCallHasExpired) {
  Promise<void> go;
  std::atomic<int> calls{0};
  on_request([&](Request request) {
    if (calls++ == 0) return request.reply({});
    go.future().wait();
  });
  agents_.call_sync(0, 1, {});  // their line is there
  Thing thing;
  EXPECT_THROW(lend(thing, milliseconds(1000)).wait(), Error);
  EXPECT_TRUE(thing.is_kept()) << "a device may be about to read it";
  go.set_value();
  EXPECT_TRUE(eventually([&] { return !thing.is_kept(); }));
}

TEST_F(LentByAgents, WithAnAnswerIsKeptUntilTheCallerHasLetGo) {
  Thing thing;
  const auto gift = std::make_shared<std::shared_ptr<Thing::What>>(thing.give());
  on_request([gift](Request request) { request.reply({}, {}, std::exchange(*gift, nullptr)); });
  std::optional<wire::InFrame> reply;
  {
    auto answer = std::make_shared<Answer>();
    auto future = answer->future();
    wire::OutFrame frame;
    agents_[0].call(1, frame, Deadline::in(milliseconds(30'000)), std::move(answer), false);
    reply = future.wait();
  }
  EXPECT_TRUE(thing.is_kept());
  reply.reset();
  EXPECT_TRUE(eventually([&] { return !thing.is_kept(); }));
}

TEST_F(LentByAgents, IsReleasedAtTheEndOfTheLine) {
  Promise<void> go;
  on_request([&](const Request&) { go.future().wait(); });
  Thing thing;
  auto answer = lend(thing);
  EXPECT_TRUE(eventually([&] { return agents_[1].counters().calls_received > 0; }));
  go.set_value();
  agents_[1].stop();
  EXPECT_TRUE(eventually([&] { return !thing.is_kept(); }));
}

}  // namespace
}  // namespace farspan::testing
