// The rules under test: c10d/net/batch.h.
#include <farspan/c10d/net/batch.h>

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace farspan::testing {
namespace {

using net::Batch;
using net::Timers;
using Items = std::vector<std::unique_ptr<int>>;

Items numbers(int count) {
  Items items;
  for (int i = 0; i < count; ++i) items.push_back(std::make_unique<int>(i));
  return items;
}

TEST(Batch, DoesEachInOrderAndThenTheLast) {
  Timers timers;
  std::vector<int> done;
  Batch(
      timers, numbers(3), [&](std::unique_ptr<int> item) { done.push_back(*item); },
      [&] { done.push_back(-1); })
      .run();
  EXPECT_EQ(done, (std::vector<int>{0, 1, 2, -1}));
  EXPECT_FALSE(timers.has_due());
}

TEST(Batch, DoesTheLastEvenIfThereIsNoItem) {
  Timers timers;
  int last = 0;
  Batch(
      timers, numbers(0), [](const auto&) {}, [&] { ++last; })
      .run();
  EXPECT_EQ(last, 1);
}

// Item `blocked` of three blocks until the timers have run.
std::vector<int> done_with(int blocked) {
  Timers timers;
  std::vector<int> done;
  Batch(
      timers, numbers(3),
      [&](std::unique_ptr<int> item) {
        done.push_back(*item);
        if (*item != blocked) return;
        Unfinished::hand_over_all();  // as a wait does
        std::thread([&] { timers.run_due(); }).join();
        done.push_back(100);
      },
      [&] { done.push_back(-1); })
      .run();
  EXPECT_FALSE(timers.has_due());
  return done;
}

TEST(Batch, IsGoneOnWithByAnotherThreadWhenAnItemBlocks) {
  EXPECT_EQ(done_with(0), (std::vector<int>{0, 1, 2, -1, 100}));
  EXPECT_EQ(done_with(2), (std::vector<int>{0, 1, 2, -1, 100}));
}

}  // namespace
}  // namespace farspan::testing
