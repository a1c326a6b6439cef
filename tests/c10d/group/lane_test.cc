// The rule under test: c10d/group/README.md, "How a call goes", 2.
#include <farspan/c10d/group/lane.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "support/errors.h"

namespace farspan::dist {
namespace {

using namespace std::chrono_literals;
using testing::code_of;
using testing::error_of;

class Note final : public Lane::Task {
 public:
  Note(std::shared_ptr<Lane> lane, std::function<void(uint64_t)> body, Deadline deadline)
      : Task(std::move(lane), deadline), body_(std::move(body)) {}
  void run(uint64_t sequence) noexcept override { body_(sequence); }
  void complete() noexcept override { set_value(-1); }
  void reject() noexcept override { set_error(Error(Code::kShutdown, "rejected")); }
  void expire(uint64_t sequence) noexcept override {
    set_error(Error(Code::kTimeout, "call " + std::to_string(sequence)));
  }

 private:
  const std::function<void(uint64_t)> body_;
};

class LaneTest : public ::testing::Test {
 protected:
  void TearDown() override { lane_->stop(); }

  Future<int> post(std::function<void(uint64_t)> body, bool here = false,
                   Deadline deadline = Deadline::never()) {
    auto task = std::make_shared<Note>(lane_, std::move(body), deadline);
    const Future<int> future(task);
    lane_->post(std::move(task), here);
    return future;
  }

  const std::shared_ptr<Lane> lane_ = std::make_shared<Lane>();
};

TEST_F(LaneTest, TasksRunOneAtATimeInTheOrderOfPosting) {
  std::vector<uint64_t> seen;  // no lock: that is what the lane is for
  std::vector<Future<int>> all;
  for (int i = 0; i < 1000; ++i) all.push_back(post([&](uint64_t n) { seen.push_back(n); }));
  for (const auto& one : all) one.wait();
  ASSERT_EQ(seen.size(), 1000u);
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i + 1);
  EXPECT_EQ(lane_->count(), 1000u);
}

TEST_F(LaneTest, WhoeverWaitsRunsWhatIsBeforeHim) {
  ASSERT_EQ(lane_->try_take(), 1u);  // so that no thread of the lane's comes first
  std::thread::id ran;
  const auto one = post([&](uint64_t) { ran = std::this_thread::get_id(); });
  const auto two = post([](uint64_t) {});
  std::thread waits([&] { two.wait(); });
  lane_->release();
  waits.join();
  EXPECT_TRUE(one.ready());
  EXPECT_NE(ran, std::thread::id());
}

TEST_F(LaneTest, ItsThreadRunsWhatNobodyWaitsFor) {
  std::atomic<bool> ran{false};
  post([&](uint64_t) { ran = true; });
  while (!ran) std::this_thread::yield();
}

TEST_F(LaneTest, WhatIsPostedToRunHereNeedsNoThread) {
  std::thread::id ran_on;
  const auto run = [&](uint64_t) { ran_on = std::this_thread::get_id(); };
  EXPECT_TRUE(post(run, /*here=*/true).ready());
  EXPECT_EQ(ran_on, std::this_thread::get_id());
  // But for what is before it.
  ASSERT_EQ(lane_->try_take(), 2u);
  const auto later = post(run, /*here=*/true);
  EXPECT_FALSE(later.ready());
  lane_->release();
  later.wait();
}

TEST_F(LaneTest, WhatIsPostedToRunHereDoesNotRunWhatOthersHavePosted) {
  // The lane's thread is in a callback: nobody has the turn, and a task of another's waits for it.
  std::atomic<bool> in_callback{false}, go{false};
  const auto first = post([&](uint64_t) {
    while (!in_callback) std::this_thread::yield();
  });
  first.on_ready([&] {
    while (!go) std::this_thread::yield();
  });
  in_callback = true;
  first.wait_for(30s);
  std::thread::id ran_on;
  const auto of_another = post([&](uint64_t) { ran_on = std::this_thread::get_id(); });
  const auto here = post([](uint64_t) {}, /*here=*/true);
  EXPECT_FALSE(of_another.ready());
  EXPECT_FALSE(here.ready());
  go = true;
  ASSERT_TRUE(here.wait_for(30s));
  EXPECT_NE(ran_on, std::this_thread::get_id());
}

TEST_F(LaneTest, TheTurnIsRefusedWhileOthersAreBefore) {
  ASSERT_EQ(lane_->try_take(), 1u);
  EXPECT_EQ(lane_->try_take(), 0u);
  const auto later = post([](uint64_t sequence) { EXPECT_EQ(sequence, 2u); });
  lane_->release();
  later.wait();
  while (lane_->count() < 3) {
    if (lane_->try_take() != 0) lane_->release();
  }
}

TEST_F(LaneTest, AWaitWithATimeoutReturnsInTime) {
  std::atomic<bool> go{false};
  const auto slow = post([&](uint64_t) {
    while (!go) std::this_thread::yield();
  });
  EXPECT_EQ(code_of([&] { slow.wait(20ms); }), Code::kTimeout);
  go = true;
  slow.wait();
}

TEST_F(LaneTest, WhoseTimeIsOverBeforeItsTurnEndsInTime) {
  std::atomic<bool> go{false};
  // Whoever waited for the second would be in the first one, if he helped with that.
  const auto slow = post([&](uint64_t) {
    while (!go) std::this_thread::yield();
  });
  const auto never = [](uint64_t) { ADD_FAILURE() << "ran"; };
  const auto short_one = post(never, false, Deadline::after(20ms));
  const auto unwaited = post(never, false, Deadline::after(20ms));
  EXPECT_THAT(error_of([&] { short_one.wait(); }).what(), ::testing::HasSubstr("call 2"));
  EXPECT_FALSE(slow.ready());
  EXPECT_FALSE(unwaited.ready());
  go = true;
  EXPECT_EQ(code_of([&] { unwaited.wait_for(30s), unwaited.value(); }), Code::kTimeout);
  slow.wait();
  post([](uint64_t) {}).wait();
}

TEST_F(LaneTest, WhoWaitsTakesNothingThatIsBehindWhatHeWaitsFor) {
  std::atomic<bool> go{false};
  for (int round = 0; round < 3000; ++round) {
    go = false;
    const auto first = post([](uint64_t) {});
    const auto behind = post([&](uint64_t) {
      while (!go) std::this_thread::yield();
    });
    first.wait();  // not until what is behind has ended, too, which this thread lets go on
    go = true;
    behind.wait();
  }
}

TEST_F(LaneTest, WhoWaitsTakesWhatHasMoreTimeWhereTheThreadIsInACallback) {
  std::atomic<bool> done{false};
  const auto first = post([](uint64_t) {});
  first.on_ready([&] {
    post([](uint64_t) {});
    post([](uint64_t) {}, false, Deadline::after(60s)).wait();
    done = true;
  });
  while (!done) std::this_thread::yield();
}

TEST_F(LaneTest, StoppingRejectsWhatHasNotBegun) {
  ASSERT_EQ(lane_->try_take(), 1u);
  const auto waits = post([](uint64_t) { ADD_FAILURE() << "ran"; });
  lane_->stop();
  EXPECT_EQ(code_of([&] { waits.wait(); }), Code::kShutdown);
  EXPECT_EQ(code_of([&] { post([](uint64_t) {}).wait(); }), Code::kShutdown);
  lane_->release();
}

TEST_F(LaneTest, ACallbackMayCallTheGroupAgain) {
  std::atomic<bool> done{false};
  const auto first = post([](uint64_t) {});
  first.on_ready([&] {
    post([](uint64_t) {}).wait();
    done = true;
  });
  first.wait();
  while (!done) std::this_thread::yield();
}

TEST_F(LaneTest, ManyThreadsPostWaitAndTakeTheTurn) {
  int inside = 0;  // no lock
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const auto work = [&](uint64_t) {
          EXPECT_EQ(++inside, 1);
          --inside;
        };
        if (i % 3 == 0 && lane_->try_take() != 0) {
          work(0);
          lane_->release();
        } else {
          const auto task = post(work);
          if (i % 2 == 0) task.wait();
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
  post([](uint64_t) {}).wait();
}

}  // namespace
}  // namespace farspan::dist
