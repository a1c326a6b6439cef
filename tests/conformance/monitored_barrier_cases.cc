// The rules under test: monitored_barrier() of c10d/group/point_to_point.h.
#include <ATen/ATen.h>
#include <farspan/c10d/group/point_to_point.h>

#include <string>

#include "conformance/collective_suite.h"

namespace farspan::testing {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using namespace std::chrono_literals;

TEST_P(CollectiveSuite, AMonitoredBarrierIsLeftWhenAllHaveCome) {
  for (const int ranks : kWorlds) {
    on_each(ranks, [](int) {
      for (int round = 0; round < 10; ++round) dist::monitored_barrier();
    });
  }
}

TEST_P(CollectiveSuite, AMonitoredBarrierNamesWhoDoesNotCome) {
  for (const bool all : {false, true}) {
    on_each(4, [&](int rank) {
      dist::monitored_barrier();  // their lines are there, and so are they
      if (rank != 1 && rank != 3) {
        const Millis timeout = rank == 0 ? 200ms : 20s;
        const Error error =
            error_of([&] { dist::monitored_barrier({.timeout = timeout, .wait_all_ranks = all}); });
        EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
        if (rank == 0) {
          const std::string missing = all ? who(1) + ", " + who(3) : who(1);
          EXPECT_THAT(error.message(), ContainsRegex(missing + " did not come to the barrier"));
          EXPECT_THAT(error.worker(), MatchesRegex(missing));
        } else {
          const std::string told = who(0) + " gave up: " + who(1);
          EXPECT_THAT(error.what(),
                      ContainsRegex(told + (all ? " and 1 other" : "") + " had not come"));
          EXPECT_THAT(error.worker(), MatchesRegex(who(1)));
        }
        dist::send(at::ones({1}), rank + 1, {.tag = 8});
      } else {
        dist::recv(at::ones({1}), rank - 1, {.tag = 8});
      }
      // Expect: the group goes on, and late words of the barrier before do no harm.
      dist::barrier();
    });
  }
}

TEST_P(CollectiveSuite, AMonitoredBarrierWithoutItsFirstRankEndsInTime) {
  on_each(3, [](int rank) {
    if (rank != 0) {
      const Error error = error_of([] { dist::monitored_barrier({.timeout = 100ms}); });
      EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
      EXPECT_THAT(error.message(), ContainsRegex(who(0) + " did not come to the barrier"));
      EXPECT_THAT(error.worker(), MatchesRegex(who(0)));
    }
    dist::barrier();
  });
}

// What a rank gets that comes to a barrier which cannot be left.
Error missed_barrier(Millis timeout) {
  const TimePoint began = Clock::now();
  const Error error = error_of([&] { dist::monitored_barrier({.timeout = timeout}); });
  EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
  EXPECT_LT(Clock::now() - began, 10s);
  return error;
}

// Its last word comes when their time is over, too.
TEST_P(CollectiveSuite, AMonitoredBarrierNamesWhoIsMissingToAllWhenTheirTimesEndTogether) {
  on_each(4, [](int rank) {
    for (int missing = 1; missing < 4; ++missing) {
      dist::monitored_barrier();  // their lines are there, and so are they
      if (rank != missing) {
        const Error error = error_of([] { dist::monitored_barrier({.timeout = 400ms}); });
        EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
        EXPECT_THAT(error.message(), ContainsRegex(who(missing) + "( did not| had not) come"));
        EXPECT_THAT(error.worker(), MatchesRegex(who(missing)));
      }
      dist::barrier();
      if (rank == missing) missed_barrier(20s);  // so that all have called as many
    }
    dist::monitored_barrier({.timeout = 20s});
  });
}

TEST_P(CollectiveSuite, AMonitoredBarrierTellsWhoHasLeftFromWhoIsLate) {
  on_each(3, [](int rank) {
    const auto group = dist::new_group({0, 1, 2});
    if (rank == 1) {
      group->shutdown();
    } else {
      const Error error =
          error_of([&] { dist::monitored_barrier({.group = group, .timeout = 20s}); });
      EXPECT_EQ(error.code(), rank == 0 ? Code::kDisconnected : Code::kTimeout) << error.what();
      EXPECT_THAT(error.worker(), MatchesRegex(who(1)));
    }
    dist::barrier();
  });
}

TEST_P(CollectiveSuite, AMonitoredBarrierThatTheOthersGaveUpIsNotLeftByItsFirstRank) {
  on_each(3, [](int rank) {
    if (rank == 0) {
      for (int other : {1, 2}) dist::recv(at::ones({1}), other, {.tag = 8});
      const Error error = missed_barrier(20s);
      EXPECT_THAT(error.message(), ContainsRegex(who(1) + " did not come"));
      EXPECT_THAT(error.message(), ContainsRegex(who(1) + " has given it up"));
    } else {
      missed_barrier(50ms);
      dist::send(at::ones({1}), 0, {.tag = 8});
    }
    // Expect: the next ones are in step.
    for (int round = 0; round < 3; ++round) dist::monitored_barrier({.timeout = 20s});
  });
}

TEST_P(CollectiveSuite, AMonitoredBarrierIsNotLeftWhenOneGaveUpWhileAnotherWasWaitedFor) {
  on_each(3, [](int rank) {
    if (rank == 1) {
      missed_barrier(50ms);
      dist::send(at::ones({1}), 2, {.tag = 8});
    } else {
      if (rank == 2) dist::recv(at::ones({1}), 1, {.tag = 8});
      const Error error = missed_barrier(20s);
      EXPECT_THAT(error.message(), ContainsRegex(who(1) + "( did not| had not) come"));
    }
    for (int round = 0; round < 3; ++round) dist::monitored_barrier({.timeout = 20s});
  });
}

TEST_P(CollectiveSuite, WhoIsLateForMonitoredBarriersGetsAnErrorForEachAndMeetsTheNext) {
  on_each(3, [](int rank) {
    constexpr int kMissed = 3;
    if (rank == 2) {
      dist::recv(at::ones({1}), 0, {.tag = 8});
      for (int missed = 0; missed < kMissed; ++missed) missed_barrier(20s);
    } else {
      for (int missed = 0; missed < kMissed; ++missed) missed_barrier(rank == 0 ? 50ms : 20s);
      if (rank == 0) dist::send(at::ones({1}), 2, {.tag = 8});
    }
    for (int round = 0; round < 3; ++round) dist::monitored_barrier({.timeout = 20s});
  });
}

TEST_P(CollectiveSuite, AMonitoredBarrierIsNotMetByACallWithAnotherNumber) {
  on_each(2, [](int rank) {
    if (rank == 0) {
      missed_barrier(50ms);
      dist::send(at::ones({1}), 1, {.tag = 8});
      missed_barrier(50ms);  // rank 1 comes to the one before, once
    } else {
      dist::recv(at::ones({1}), 0, {.tag = 8});
      missed_barrier(20s);
    }
    dist::barrier();
    if (rank == 1) missed_barrier(20s);
    dist::monitored_barrier({.timeout = 20s});
  });
}

TEST_P(CollectiveSuite, AMonitoredBarrierOfSomeRanksNamesThemAsTheDefaultGroupDoes) {
  on_each(4, [](int rank) {
    const auto some = dist::new_group({3, 1});
    if (rank % 2 == 0) {
      EXPECT_EQ(code_of([&] { dist::monitored_barrier({.group = some}); }), Code::kInvalidArgument);
    } else {
      dist::monitored_barrier({.group = some});
    }
    if (rank == 3) {
      const Error error =
          error_of([&] { dist::monitored_barrier({.group = some, .timeout = 100ms}); });
      EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
      EXPECT_THAT(error.message(), ContainsRegex(who(1) + " did not come"));
    }
    dist::barrier();
  });
}

}  // namespace
}  // namespace farspan::testing
