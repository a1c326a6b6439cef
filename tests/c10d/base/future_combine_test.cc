// The rules under test: c10d/base/future.h, several futures at a time.
#include <farspan/c10d/base/future.h>

#include <gtest/gtest.h>

#include <thread>

namespace farspan::testing {
namespace {

using std::chrono::milliseconds;

template <class T>
std::vector<Future<T>> futures_of(const std::vector<Promise<T>>& promises) {
  std::vector<Future<T>> futures;
  for (const auto& promise : promises) futures.push_back(promise.future());
  return futures;
}

TEST(CollectAll, KeepsTheOrderOfTheList) {
  const std::vector<Promise<int>> promises(3);
  auto all = collect_all(futures_of(promises));
  promises[2].set_value(2);
  promises[0].set_value(0);
  EXPECT_FALSE(all.ready());
  promises[1].set_value(1);
  EXPECT_EQ(all.wait(), (std::vector<int>{0, 1, 2}));
}

TEST(CollectAll, TheFirstErrorToArriveEndsIt) {
  const std::vector<Promise<int>> promises(3);
  auto all = collect_all(futures_of(promises));
  promises[1].set_error(Error(Code::kTimeout, "late"));
  ASSERT_TRUE(all.ready());
  EXPECT_EQ(all.error().code(), Code::kTimeout);
  promises[0].set_error(Error(Code::kRemote, "boom"));
  promises[2].set_value(1);
  EXPECT_EQ(all.error().code(), Code::kTimeout);
}

TEST(CollectAll, OfNothingIsReady) {
  EXPECT_TRUE(collect_all(std::vector<Future<int>>{}).wait().empty());
  EXPECT_TRUE(collect_all(std::vector<Future<void>>{}).ready());
}

TEST(CollectAll, OfVoidIsVoid) {
  const std::vector<Promise<void>> promises(2);
  Future<void> all = collect_all(futures_of(promises));
  promises[0].set_value();
  EXPECT_FALSE(all.ready());
  promises[1].set_value();
  EXPECT_TRUE(all.ready());
  EXPECT_FALSE(all.has_error());
}

TEST(CollectAll, TakesResultsFromManyThreads) {
  for (int round = 0; round < 50; ++round) {
    const std::vector<Promise<int>> promises(16);
    auto all = collect_all(futures_of(promises));
    std::vector<std::thread> threads;
    for (size_t thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (size_t i = thread; i < promises.size(); i += 4) {
          promises[i].set_value(static_cast<int>(i));
        }
      });
    }
    const std::vector<int> values = all.wait();
    for (auto& thread : threads) thread.join();
    for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], static_cast<int>(i));
  }
}

TEST(CollectAll, LeavesNothingBehind) {
  auto token = std::make_shared<int>(0);
  {
    const std::vector<Promise<std::shared_ptr<int>>> promises(2);
    auto all = collect_all(futures_of(promises));
    for (const auto& promise : promises) promise.set_value(token);
    EXPECT_EQ(all.wait().size(), 2u);
  }
  // Expect: futures and their callbacks do not keep each other alive.
  EXPECT_EQ(token.use_count(), 1);
}

TEST(CollectAny, GivesTheIndexOfTheFirst) {
  const std::vector<Promise<int>> promises(3);
  auto any = collect_any(futures_of(promises));
  EXPECT_FALSE(any.ready());
  promises[2].set_error(Error(Code::kRemote, "boom"));
  EXPECT_EQ(any.wait(), 2u);
  promises[0].set_value(1);
  EXPECT_EQ(any.wait(), 2u);
}

TEST(CollectAny, OfNothingIsAnError) {
  EXPECT_EQ(collect_any(std::vector<Future<int>>{}).error().code(), Code::kInvalidArgument);
}

TEST(WaitAll, ThrowsTheFirstErrorOfTheListAfterAllHaveEnded) {
  const std::vector<Promise<int>> promises(3);
  const auto futures = futures_of(promises);
  promises[2].set_error(Error(Code::kTimeout, "late"));
  std::thread other([&] {
    promises[1].set_error(Error(Code::kRemote, "boom"));
    promises[0].set_value(1);
  });
  try {
    wait_all(futures);
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.message(), "boom");
  }
  for (const auto& future : futures) EXPECT_TRUE(future.ready());
  other.join();
}

TEST(WaitAll, GivesUpInTime) {
  const std::vector<Promise<int>> promises(2);
  promises[0].set_value(1);
  try {
    wait_all(futures_of(promises), milliseconds(10));
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kTimeout);
  }
}

}  // namespace
}  // namespace farspan::testing
