// The rules under test: c10d/group/backend.h: how a call ends that fails, and what it leaves alone.
#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <farspan/c10d/group/values.h>

#include "conformance/collective_suite.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using std::chrono::milliseconds;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

constexpr auto kLimit = milliseconds(150);

struct TimedCall {
  std::string name;                    // as the error's operation begins
  std::function<void(int rank)> call;  // in the current group
};

std::vector<Tensor> ones(int count) {
  std::vector<Tensor> all;
  for (int i = 0; i < count; ++i) all.push_back(at::ones({2}));
  return all;
}
std::vector<Tensor> ones_of_root(int count, int rank) {
  return rank == 0 ? ones(count) : std::vector<Tensor>{};
}

// Each operation among three ranks, with a limit of its own.
std::vector<TimedCall> timed_calls() {
  return {
      {"broadcast", [](int) { dist::broadcast(at::ones({2}), 0, {.timeout = kLimit}); }},
      {"all_reduce", [](int) { dist::all_reduce(at::ones({2}), {.timeout = kLimit}); }},
      {"all_reduce", [](int) { dist::all_reduce_coalesced(ones(2), {.timeout = kLimit}); }},
      {"sparse all_reduce",
       [](int) {
         dist::all_reduce(at::ones({2, 2}).to_sparse(), {.timeout = kLimit});
       }},
      {"reduce", [](int) { dist::reduce(at::ones({2}), 0, {.timeout = kLimit}); }},
      {"all_gather", [](int) { dist::all_gather(ones(3), at::ones({2}), {.timeout = kLimit}); }},
      {"all_gather",
       [](int) {
         dist::all_gather_into_tensor(at::ones({6}), at::ones({2}), {.timeout = kLimit});
       }},
      {"all_gather",
       [](int) {
         dist::all_gather_into_tensor_coalesced({at::ones({6})}, {at::ones({2})},
                                                {.timeout = kLimit});
       }},
      {"gather",
       [](int rank) {
         dist::gather(at::ones({2}), ones_of_root(3, rank), 0, {.timeout = kLimit});
       }},
      {"scatter",
       [](int rank) {
         dist::scatter(at::ones({2}), ones_of_root(3, rank), 0, {.timeout = kLimit});
       }},
      {"reduce_scatter",
       [](int) { dist::reduce_scatter(at::ones({2}), ones(3), {.timeout = kLimit}); }},
      {"reduce_scatter",
       [](int) { dist::reduce_scatter_tensor(at::ones({2}), at::ones({6}), {.timeout = kLimit}); }},
      {"reduce_scatter",
       [](int) {
         dist::reduce_scatter_tensor_coalesced({at::ones({2})}, {at::ones({6})},
                                               {.timeout = kLimit});
       }},
      {"all_to_all", [](int) { dist::all_to_all(ones(3), ones(3), {.timeout = kLimit}); }},
      {"all_to_all",
       [](int) {
         dist::all_to_all_single(at::ones({3}), at::ones({3}), {}, {}, {.timeout = kLimit});
       }},
      {"barrier", [](int) { dist::barrier({.timeout = kLimit}); }},
      // Of values, the first of two operations, which tells how large they are.
      {"all_gather", [](int) { dist::all_gather_value(std::string("x"), {.timeout = kLimit}); }},
      {"all_reduce", [](int) { dist::gather_value(std::string("x"), 0, {.timeout = kLimit}); }},
      {"broadcast",
       [](int) {
         std::string value = "x";
         dist::broadcast_value(value, 0, {.timeout = kLimit});
       }},
      {"broadcast",
       [](int rank) {
         const std::vector<std::string> values(rank == 0 ? 3u : 0u, "x");
         dist::scatter_value(values, 0, {.timeout = kLimit});
       }},
      {"barrier", [](int) { dist::barrier_async({.timeout = kLimit}).wait(); }},
  };
}

TEST_P(CollectiveSuite, EveryOperationEndsInTimeAndSaysWhoDidNotComeToWhat) {
  on_each(3, [](int rank) {
    const std::vector<TimedCall> timed = timed_calls();
    for (const TimedCall& one : timed) {
      const auto group = dist::new_group({0, 1, 2});
      // All but the first one find a group whose ranks have met.
      const bool have_met = &one != &timed.front();
      if (have_met) dist::barrier({.group = group});
      const auto fail = [&] {
        const dist::CurrentGroup current(group);
        return error_of([&] { one.call(rank); });
      };
      const TimePoint begun = Clock::now();
      dist::barrier();  // none begins before: the first that gives up ends the call of all
      Error error(Code::kUnknown, "");
      if (rank != 2) error = fail();
      const auto took = Clock::now() - begun;
      dist::barrier();  // the late one comes when the others have given up
      if (rank == 2) error = fail();
      EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
      EXPECT_THAT(error.what(), ContainsRegex("rank [01] .*" + who(2) + " had not called it"));
      const std::string call = "^" + one.name + ".*, call " + (have_met ? "2" : "1") +
                               " of group [0-9]+ of ranks 0, 1, 2$";
      EXPECT_THAT(error.operation(), ContainsRegex(call));
      EXPECT_THAT(error.what(), HasSubstr(error.operation()));
      if (rank != 2) {
        EXPECT_GE(took, kLimit / 2) << one.name;
        EXPECT_LT(took, kLimit + milliseconds(15'000)) << one.name;
      }
      dist::barrier();  // who leaves would be named for that
    }
  });
}

TEST_P(CollectiveSuite, ACallBehindALongOneEndsInItsOwnTimeAndTheLongOneGoesOn) {
  for (const int64_t count : {2, 100'000}) {
    on_each(2, [count](int rank) {
      const auto group = dist::new_group({0, 1});
      const Tensor x = at::ones({count}), y = at::ones({3});
      const auto barrier = [&](Millis timeout) {
        return error_of([&] { dist::barrier({.group = group, .timeout = timeout}); });
      };
      if (rank == 0) {
        const dist::Work work = dist::all_reduce_async(x, {.group = group});
        const dist::Work next = dist::all_reduce_async(y, {.group = group});
        const TimePoint begun = Clock::now();
        const Error error = barrier(kLimit);
        EXPECT_LT(Clock::now() - begun, milliseconds(15'000));
        EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
        EXPECT_THAT(error.what(), ContainsRegex(who(0) + ".*its turn had not come.*all_reduce"));
        EXPECT_THAT(error.operation(), HasSubstr("barrier, call 3 of group"));
        dist::barrier();
        work.wait();
        next.wait();
      } else {
        dist::barrier();
        dist::all_reduce(x, {.group = group});
        dist::all_reduce(y, {.group = group});
        const Error told = barrier(milliseconds(15'000));
        EXPECT_EQ(told.code(), Code::kTimeout) << told.what();
        EXPECT_THAT(told.what(), HasSubstr("its turn had not come"));
      }
      EXPECT_TRUE(at::equal(x, at::full({count}, 2.0)));
      EXPECT_TRUE(at::equal(y, at::full({3}, 2.0)));
      dist::barrier();  // who leaves would be named for that
    });
  }
}

TEST_P(CollectiveSuite, AbortAfterAFailureHidesItFromNobody) {
  on_each(3, [](int rank) {
    const auto group = dist::new_group({0, 1, 2});
    const auto meet = [&](Millis timeout) {
      return error_of([&] { dist::barrier({.group = group, .timeout = timeout}); });
    };
    if (rank == 0) {
      EXPECT_EQ(meet(Millis(100)).code(), Code::kTimeout);
      group->abort();
    }
    dist::barrier();
    if (rank != 0) {
      const Error error = meet(kLimit);
      EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("had not called it"));
    }
    dist::barrier();  // who leaves would be named for that
  });
}

// Ranks leave a gather one by one, those that are not its root without waiting for the others.
TEST_P(CollectiveSuite, AFailedCallLeavesThoseBeforeItAlone) {
  constexpr int64_t kCount = 20'000;
  on_each(4, [](int rank) {
    for (int round = 0; round < 40; ++round) {
      const int root = round % 4;
      const auto group = dist::new_group({0, 1, 2, 3});
      std::vector<Tensor> out;
      for (int from = 0; rank == root && from < 4; ++from)
        out.push_back(at::empty({kCount}, at::kLong));
      dist::gather(at::full({kCount}, rank), out, root, {.group = group});
      const Error error = error_of([&] {
        rank % 2 == 0 ? dist::barrier({.group = group})
                      : dist::all_reduce(at::ones({2}), {.group = group});
      });
      EXPECT_EQ(error.code(), Code::kShapeMismatch) << error.what();
      EXPECT_THAT(error.operation(), ContainsRegex(", call 2 of group"));
      for (size_t from = 0; from < out.size(); ++from) {
        EXPECT_TRUE(at::equal(out[from], at::full({kCount}, static_cast<int>(from))));
      }
    }
  });
}

}  // namespace
}  // namespace farspan::testing
