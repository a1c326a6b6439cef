// The rules under test: rpc/init/assembly.h.
#include <farspan/rpc/init/assembly.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <farspan/c10d/store/hash_store.h>

#include "support/errors.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using Step = Assembly::Step;

constexpr int kRanks = 3;
constexpr Step kSteps[] = {Step::kHosts, Step::kWorkers, Step::kReady};
constexpr Millis kLong = 60s, kSoon = 20s;

// What became of each rank.
using Ends = std::vector<std::optional<Error>>;

// Each rank takes all steps, but for those that refuse after `steps` of them, as "w" and the rank.
Ends assemble(const std::function<bool(int rank)>& refuses, int steps) {
  dist::HashStore store;
  Ends ends(kRanks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      Assembly all(store, rank, kRanks, Deadline::after(kLong));
      try {
        for (int step = 0; step < 3; ++step) {
          if (refuses(rank) && step == steps) throw Error(Code::kInvalidArgument, "no such thing");
          const std::string own = std::to_string(step) + std::to_string(rank);
          const auto values = all.exchange(kSteps[step], own);
          const std::string of = std::to_string(step);
          EXPECT_EQ(values, (std::vector<std::string>{of + "0", of + "1", of + "2"}));
        }
      } catch (const Error& why) {
        all.refuse("w" + std::to_string(rank), why);
        ends[static_cast<size_t>(rank)] = why;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

TEST(Assembly, AllGetWhatEachPutsDown) {
  for (const auto& end : assemble([](int) { return false; }, 0)) EXPECT_FALSE(end.has_value());
}

TEST(Assembly, WhatOneRefusesForAllHearAtOnceWhereverTheyWait) {
  for (int steps = 0; steps < 3; ++steps) {
    const TimePoint begun = Clock::now();
    const Ends ends = assemble([](int rank) { return rank == 1; }, steps);
    EXPECT_LT(Clock::now() - begun, kSoon);
    for (const size_t rank : {0, 2}) {
      ASSERT_TRUE(ends[rank].has_value()) << "step " << steps;
      EXPECT_EQ(ends[rank]->code(), Code::kUnavailable);
      EXPECT_THAT(ends[rank]->what(),
                  AllOf(HasSubstr("init_rpc: worker 'w1' (rank 1) does not join"),
                        HasSubstr("INVALID_ARGUMENT: no such thing")));
    }
    EXPECT_EQ(ends[1]->code(), Code::kInvalidArgument);
  }
}

TEST(Assembly, SeveralThatRefuseDoNotWaitForEachOther) {
  const TimePoint begun = Clock::now();
  const Ends ends = assemble([](int rank) { return rank != 1; }, 1);
  EXPECT_LT(Clock::now() - begun, kSoon);
  EXPECT_EQ(ends[0]->code(), Code::kInvalidArgument);
  EXPECT_EQ(ends[2]->code(), Code::kInvalidArgument);
  EXPECT_THAT(ends[1]->what(), AnyOf(HasSubstr("'w0' (rank 0)"), HasSubstr("'w2' (rank 2)")));
}

TEST(Assembly, WhoIsToldPassesNothingOn) {
  dist::HashStore store;
  store.set("heard/1", "");  // or the first would wait for that
  Assembly first(store, 0, 2, Deadline::after(kLong));
  first.refuse("w0", Error(Code::kInvalidArgument, "no such thing"));
  Assembly second(store, 1, 2, Deadline::after(kLong));
  const Error told = error_of([&] { second.exchange(Step::kHosts, "here"); });
  EXPECT_THAT(told.what(), HasSubstr("'w0' (rank 0)"));
  const int64_t before = store.num_keys();
  second.refuse("w1", told);
  EXPECT_EQ(store.num_keys(), before);
}

TEST(Assembly, WhoIsAloneRefusesWithoutAWait) {
  dist::HashStore store;
  Assembly only(store, 0, 1, Deadline::after(kLong));
  only.refuse("w0", Error(Code::kInvalidArgument, "no such thing"));
  EXPECT_EQ(store.num_keys(), 0);
}

TEST(Assembly, WhatAnotherVersionHasWrittenIsRefused) {
  for (const char* const text : {"here", ""}) {
    dist::HashStore store;
    store.set("host/1", text);
    store.set("heard/1", "");
    Assembly all(store, 0, 2, Deadline::after(kLong));
    const Error error = error_of([&] { all.exchange(Step::kHosts, "here"); });
    EXPECT_EQ(error.code(), Code::kCorrupt) << error.what();
  }
}

TEST(Assembly, WhoIsMissingIsWaitedForUntilTheDeadline) {
  dist::HashStore store;
  Assembly all(store, 0, 2, Deadline::after(100ms));
  const Error error = error_of([&] { all.exchange(Step::kHosts, "here"); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_THAT(error.what(), HasSubstr("host/1"));
}

}  // namespace
}  // namespace farspan::testing
