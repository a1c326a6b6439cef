// Store conformance: what every store must do, written once. A test file instantiates StoreSuite
// with the stores it knows. The rules: c10d/store/store.h.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/store/store.h>

#include "support/errors.h"

namespace farspan::testing {

using dist::Store;
using namespace std::chrono_literals;

// Opens one and the same store again with each call, as one more worker would.
using OpenStore = std::function<std::shared_ptr<Store>()>;

struct StoreKind {
  std::string name;
  std::function<OpenStore()> make;  // a new and empty store; empty itself where `needs` is not here
  std::string needs = {};           // why its tests are skipped then
  bool wraps_around = false;        // its server's sums do
};

inline void PrintTo(const StoreKind& kind, std::ostream* out) { *out << kind.name; }
inline std::string name_of_kind(const ::testing::TestParamInfo<StoreKind>& info) {
  return info.param.name;
}

class StoreSuite : public ::testing::TestWithParam<StoreKind> {
 protected:
  void SetUp() override {
    open_ = GetParam().make();
    if (!open_) GTEST_SKIP() << GetParam().needs;
    a_ = open_();
    b_ = open_();
  }

  OpenStore open_;
  std::shared_ptr<Store> a_, b_;  // two workers
};

TEST_P(StoreSuite, WhatOneSetsAnotherGets) {
  a_->set("key", "value");
  EXPECT_EQ(b_->get("key"), "value");
  b_->set("key", "other");
  EXPECT_EQ(a_->get("key"), "other");
}

TEST_P(StoreSuite, KeysAndValuesAreAnyBytes) {
  const std::string odd("a\0/\xff\n-", 6);
  for (const std::string& key : {odd, std::string(), std::string("/"), std::string("-k")}) {
    a_->set(key, odd + key);
    EXPECT_EQ(b_->get(key), odd + key);
  }
  a_->set("empty", "");
  EXPECT_EQ(b_->get("empty"), "");
}

TEST_P(StoreSuite, TakesKeysAndValuesUpToTheLimitsAndRefusesMore) {
  // A prefix takes some of the key's bytes.
  const std::string long_key(dist::kMaxStoreKeyBytes - 100, 'k');
  const std::string long_value(dist::kMaxStoreValueBytes, 'v');
  a_->set(long_key, long_value);
  EXPECT_EQ(b_->get(long_key), long_value);
  const std::string key_too_long(dist::kMaxStoreKeyBytes + 1, 'k');
  EXPECT_EQ(error_of([&] { a_->set(key_too_long, ""); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] { a_->set("k", long_value + "v"); }).code(), Code::kInvalidArgument);
  const std::vector<std::string> many(dist::kMaxStoreKeys + 1, "k");
  EXPECT_EQ(error_of([&] { a_->check(many); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(b_->num_keys(), 1);
}

TEST_P(StoreSuite, GetWaitsForTheKey) {
  std::thread late([&] {
    std::this_thread::sleep_for(20ms);
    a_->set("late", "here");
  });
  EXPECT_EQ(b_->get("late"), "here");
  late.join();
}

TEST_P(StoreSuite, GetOfAMissingKeyTimesOutAndSaysWhereWhatAndHowLong) {
  const Error error = error_of([&] { b_->get("missing", 30ms); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_GE(error.elapsed(), 30ms);
  EXPECT_THAT(error.what(), ::testing::HasSubstr("store get 'missing' at " + b_->address()));
  EXPECT_FALSE(error.advice().empty());
  // The store is as good as before.
  a_->set("missing", "found");
  EXPECT_EQ(b_->get("missing"), "found");
}

TEST_P(StoreSuite, ItsOwnTimeoutHoldsWhereACallNamesNone) {
  b_->set_timeout(30ms);
  EXPECT_EQ(b_->timeout(), 30ms);
  EXPECT_EQ(error_of([&] { b_->get("missing"); }).code(), Code::kTimeout);
  EXPECT_EQ(error_of([&] { b_->wait({"missing"}); }).code(), Code::kTimeout);
}

TEST_P(StoreSuite, WaitReturnsOnceAllKeysExist) {
  a_->set("one", "");
  std::atomic<bool> second{false};
  std::thread late([&] {
    std::this_thread::sleep_for(20ms);
    second = true;
    a_->set("two", "");
  });
  b_->wait({"one", "two", "one"});
  EXPECT_TRUE(second);
  late.join();
}

TEST_P(StoreSuite, WaitOfNoKeysReturnsAtOnce) {
  b_->wait({}, 1ms);
  EXPECT_TRUE(b_->check({}));
}

TEST_P(StoreSuite, AWaitThatFailsNamesTheKeysThatAreMissing) {
  a_->set("here", "");
  const Error error = error_of([&] { b_->wait({"here", "gone", "lost"}, 30ms); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_EQ(error.message(), "nobody has set 'gone', 'lost'");
}

TEST_P(StoreSuite, AddCountsAcrossWorkersAndStoresADecimalNumber) {
  EXPECT_EQ(a_->add("n", 5), 5);
  EXPECT_EQ(b_->add("n", -7), -2);
  EXPECT_EQ(a_->get("n"), "-2");
  a_->set("n", "40");
  EXPECT_EQ(b_->add("n", 2), 42);
}

TEST_P(StoreSuite, AddToWhatIsNoNumberIsAnErrorAndChangesNothing) {
  a_->set("text", "abc");
  const Error error = error_of([&] { b_->add("text", 1); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.what(), ::testing::HasSubstr("'abc'"));
  EXPECT_EQ(b_->get("text"), "abc");
}

TEST_P(StoreSuite, AnAddThatLeavesSixtyFourBitsIsAnErrorAndChangesNothing) {
  if (GetParam().wraps_around) GTEST_SKIP() << "this server of somebody else's wraps around";
  a_->set("large", "9223372036854775807");
  EXPECT_EQ(error_of([&] { b_->add("large", 1); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(b_->add("large", 0), INT64_MAX);
}

TEST_P(StoreSuite, AddsFromManyThreadsAreNeitherLostNorDoubled) {
  constexpr int kThreads = 4, kAdds = 50;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < kAdds; ++j) (i % 2 ? a_ : b_)->add("n", 1);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(a_->add("n", 0), kThreads * kAdds);
}

TEST_P(StoreSuite, CompareSetStoresOnlyWhenTheValueIsWhatIsExpected) {
  using Value = std::optional<std::string>;
  // Missing: an empty expectation creates it, another one does not.
  EXPECT_EQ(a_->compare_set("k", "old", "new"), Value());
  EXPECT_EQ(a_->compare_set("k", "old", "old"), Value());
  EXPECT_FALSE(b_->check({"k"}));
  EXPECT_EQ(a_->compare_set("k", "", "first"), "first");
  // There: the value decides.
  EXPECT_EQ(b_->compare_set("k", "", "second"), "first");
  EXPECT_EQ(b_->compare_set("k", "other", "second"), "first");
  EXPECT_EQ(b_->compare_set("k", "first", "first"), "first");
  EXPECT_EQ(b_->compare_set("k", "first", "second"), "second");
  EXPECT_EQ(a_->get("k"), "second");
  // An empty value is a value.
  EXPECT_EQ(a_->compare_set("k", "second", ""), "");
  EXPECT_EQ(a_->compare_set("k", "x", "y"), "");
  EXPECT_EQ(a_->compare_set("k", "", "z"), "z");
}

TEST_P(StoreSuite, OfManyThatCompareAndSetOneWins) {
  std::atomic<int> winners{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const std::string mine = std::to_string(i);
      if ((i % 2 ? a_ : b_)->compare_set("lock", "", mine) == mine) ++winners;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(winners, 1);
}

TEST_P(StoreSuite, CheckSaysWhetherAllExistAndDoesNotWait) {
  a_->set("one", "");
  EXPECT_TRUE(b_->check({"one"}));
  EXPECT_FALSE(b_->check({"one", "two"}));
  a_->set("two", "");
  EXPECT_TRUE(b_->check({"one", "two"}));
}

TEST_P(StoreSuite, DeleteKeySaysWhetherThereWasOne) {
  a_->set("k", "v");
  EXPECT_TRUE(b_->delete_key("k"));
  EXPECT_FALSE(a_->check({"k"}));
  EXPECT_FALSE(a_->delete_key("k"));
  EXPECT_EQ(error_of([&] { a_->get("k", 10ms); }).code(), Code::kTimeout);
  EXPECT_EQ(a_->add("k", 3), 3);
}

TEST_P(StoreSuite, AppendGrowsAValueOrCreatesIt) {
  a_->append("log", "a");
  b_->append("log", "b");
  a_->append("log", "");
  EXPECT_EQ(a_->get("log"), "ab");
}

TEST_P(StoreSuite, MultiSetAndMultiGetKeepTheOrder) {
  a_->multi_set({"x", "y", "z"}, {"1", "", "3"});
  EXPECT_THAT(b_->multi_get({"z", "y", "x", "z"}), ::testing::ElementsAre("3", "", "1", "3"));
  EXPECT_THAT(b_->multi_get({}), ::testing::IsEmpty());
  EXPECT_EQ(error_of([&] { a_->multi_set({"x"}, {}); }).code(), Code::kInvalidArgument);
}

TEST_P(StoreSuite, MultiGetWaitsForAllKeys) {
  a_->set("one", "1");
  std::thread late([&] {
    std::this_thread::sleep_for(20ms);
    a_->set("two", "2");
  });
  EXPECT_THAT(b_->multi_get({"two", "one"}), ::testing::ElementsAre("2", "1"));
  late.join();
  b_->set_timeout(30ms);
  EXPECT_EQ(error_of([&] { b_->multi_get({"one", "three"}); }).code(), Code::kTimeout);
}

TEST_P(StoreSuite, ListsAndCountsTheUsersKeysAndNothingElse) {
  EXPECT_EQ(b_->num_keys(), 0);
  EXPECT_THAT(b_->list_keys(), ::testing::IsEmpty());
  a_->set("one", "1");
  a_->add("two", 2);
  a_->set("three", "3");
  a_->delete_key("three");
  EXPECT_EQ(b_->num_keys(), 2);
  EXPECT_THAT(b_->list_keys(), ::testing::UnorderedElementsAre("one", "two"));
}

TEST_P(StoreSuite, ACloneSeesTheSameKeysAndHasTheSameTimeout) {
  a_->set_timeout(54'321ms);
  const auto clone = a_->clone();
  EXPECT_EQ(clone->timeout(), 54'321ms);
  EXPECT_EQ(clone->address(), a_->address());
  clone->set("k", "v");
  EXPECT_EQ(b_->get("k"), "v");
  a_.reset();
  EXPECT_EQ(clone->get("k"), "v");
}

TEST_P(StoreSuite, AGetThatWaitsHoldsUpNobodyOnTheSameStore) {
  std::atomic<bool> got{false};
  std::thread waiting([&] {
    a_->get("signal");
    got = true;
  });
  for (int i = 0; i < 20; ++i) a_->set("other", std::to_string(i));
  EXPECT_FALSE(got);
  a_->set("signal", "");
  waiting.join();
}

TEST_P(StoreSuite, QueuesGiveEachValueOnceInTheirOrder) {
  if (!a_->has_queues()) GTEST_SKIP() << "this store has no queues";
  for (const char* value : {"1", "", "3"}) a_->queue_push("q", value);
  EXPECT_EQ(b_->queue_len("q"), 3);
  EXPECT_EQ(b_->queue_pop("q"), "1");
  EXPECT_EQ(a_->queue_pop("q"), "");
  EXPECT_EQ(b_->queue_try_pop("q"), "3");
  EXPECT_EQ(b_->queue_try_pop("q"), std::nullopt);
  EXPECT_EQ(a_->queue_len("q"), 0);
  EXPECT_EQ(error_of([&] { b_->queue_pop("q", 20ms); }).code(), Code::kTimeout);
}

TEST_P(StoreSuite, QueuesAreApartFromKeysButEndAWait) {
  if (!a_->has_queues()) GTEST_SKIP() << "this store has no queues";
  a_->queue_push("name", "queued");
  b_->wait({"name"}, 1s);
  EXPECT_TRUE(b_->check({"name"}));
  EXPECT_EQ(b_->num_keys(), 0);
  EXPECT_EQ(error_of([&] { b_->get("name", 50ms); }).code(), Code::kTimeout);
  EXPECT_FALSE(b_->delete_key("name"));
  a_->set("name", "kept");
  EXPECT_EQ(b_->queue_pop("name"), "queued");
  EXPECT_EQ(error_of([&] { b_->queue_pop("name", 50ms); }).code(), Code::kTimeout);
  EXPECT_EQ(b_->get("name"), "kept");
}

TEST_P(StoreSuite, ManyThatPopGetEachValueOnce) {
  if (!a_->has_queues()) GTEST_SKIP() << "this store has no queues";
  constexpr int kValues = 60, kThreads = 3;
  std::vector<std::atomic<int>> seen(kValues);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < kValues / kThreads; ++j) ++seen[std::stoul(b_->queue_pop("q"))];
    });
  }
  for (int i = 0; i < kValues; ++i) a_->queue_push("q", std::to_string(i));
  for (auto& thread : threads) thread.join();
  EXPECT_TRUE(std::all_of(seen.begin(), seen.end(), [](const auto& times) { return times == 1; }));
}

TEST_P(StoreSuite, APopThatEndsTakesNothing) {
  if (!a_->has_queues()) GTEST_SKIP() << "this store has no queues";
  // Whether a value comes just before or just after the end of a pop is luck: so many tries.
  for (int i = 0; i < 40; ++i) {
    std::thread pushing([&] {
      if (i % 4 == 0) std::this_thread::sleep_for(2ms);
      a_->queue_push("q", "v");
    });
    std::string got;
    try {
      got = b_->queue_pop("q", Millis(1 + i % 5));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
    }
    pushing.join();
    // Expect: it went to that pop, or is there yet; not both.
    EXPECT_EQ(a_->queue_len("q"), got.empty() ? 1 : 0);
    EXPECT_EQ(a_->queue_try_pop("q").value_or(got), "v");
    EXPECT_EQ(a_->queue_len("q"), 0);
  }
}

TEST_P(StoreSuite, AStoreWithoutQueuesSaysSo) {
  if (a_->has_queues()) GTEST_SKIP() << "this store has queues";
  EXPECT_EQ(error_of([&] { a_->queue_push("q", "v"); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] { a_->queue_pop("q"); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] { a_->queue_try_pop("q"); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] { a_->queue_len("q"); }).code(), Code::kInvalidArgument);
}

}  // namespace farspan::testing
