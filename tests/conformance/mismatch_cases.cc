// The rules under test: c10d/group/README.md: ranks that disagree, and a group that has failed.
#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <farspan/c10d/group/point_to_point.h>
#include <farspan/c10d/group/values.h>

#include "conformance/collective_suite.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using dist::ReduceOp;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TEST_P(CollectiveSuite, AnErrorSaysOutOfWhichGroupAGroupWasMade) {
  on_each(2, [](int rank) {
    const auto outer = dist::new_group({1, 0});
    const auto inner = dist::new_group_of(outer, {0, 1}), again = dist::new_group_of(outer, {0, 1});
    const auto label = [&](const dist::Group& group) {
      const auto count = rank == 0 ? 2 : 3;
      const auto call = [&] { dist::all_reduce(at::ones({count}), {.group = group}); };
      return error_of(call).operation();
    };
    EXPECT_THAT(label(again), ContainsRegex("group 2 of ranks 0, 1 in group [0-9]+ of ranks 1, 0"));
    EXPECT_THAT(label(inner), ContainsRegex("group 1 of ranks 0, 1 in group [0-9]+ of ranks 1, 0"));
  });
}

TEST_P(CollectiveSuite, AnOperationThatDiffersIsToldToAllByName) {
  const auto differ = [this](const std::function<void(int)>& call, const std::string& operation,
                             const std::string& why) {
    on_each(3, [&](int rank) {
      const auto group = dist::new_group({0, 1, 2});
      dist::barrier({.group = group});
      const dist::CurrentGroup current(group);
      const Error error = error_of([&] { call(rank); });
      EXPECT_EQ(error.code(), Code::kShapeMismatch) << error.what();
      EXPECT_THAT(error.message(), ContainsRegex(why));
      const std::string call_of_group =
          "^(" + operation + "), call 2 of group [0-9]+ of ranks 0, 1, 2";
      EXPECT_THAT(error.operation(), ContainsRegex(call_of_group));
      EXPECT_THAT(error.what(), HasSubstr(error.operation()));
    });
  };
  differ([](int rank) { dist::all_reduce(at::ones({rank == 1 ? 3 : 2})); },
         "all_reduce SUM of float32 .[23].", who(1) + " calls all_reduce SUM of float32 .3.");
  // As many elements.
  differ(
      [](int rank) {
        dist::all_reduce(rank == 1 ? at::ones({3, 2}) : at::ones({2, 3}));
      },
      "all_reduce SUM of float32 .(2, 3|3, 2).",
      who(1) + " calls all_reduce SUM of float32 .3, 2.");
  differ([](int rank) { dist::all_reduce(at::ones({2}, rank == 2 ? at::kInt : at::kFloat)); },
         "all_reduce SUM of (float32|int32) .2.", who(2) + " calls all_reduce SUM of int32 .2.");
  differ([](int rank) { dist::broadcast(at::ones({2}), rank == 0 ? 1 : 0); },
         "broadcast of float32 .2., root [01]", who(0) + " calls broadcast of float32 .2., root 1");
  differ([](int rank) { dist::reduce(at::ones({2}), rank == 1 ? 2 : 0); },
         "reduce SUM of float32 .2., root [02]",
         who(1) + " calls reduce SUM of float32 .2., root 2");
  const auto list = [](bool is_root) {
    return is_root ? std::vector<Tensor>(3, at::ones({2})) : std::vector<Tensor>();
  };
  differ(
      [&](int rank) {
        const int root = rank == 2 ? 2 : 1;  // two ranks that take themselves for it
        dist::gather(at::ones({2}), list(rank == root), root);
      },
      "gather of float32 .2., root [12]", who(2) + " calls gather of float32 .2., root 2");
  differ(
      [&](int rank) {
        const int root = rank == 2 ? 0 : 1;
        dist::scatter(at::ones({2}), list(rank == root), root);
      },
      "scatter of float32 .2., root [01]", who(2) + " calls scatter of float32 .2., root 0");
  differ([](int rank) { rank == 1 ? dist::barrier() : dist::all_reduce(at::ones({2})); },
         "barrier|all_reduce SUM of float32 .2.", who(1) + " calls barrier");
  // The same calls in another order.
  differ(
      [](int rank) {
        if (rank == 2) dist::broadcast(at::ones({2}), 0);
        dist::all_reduce(at::ones({2}));
        if (rank != 2) dist::broadcast(at::ones({2}), 0);
      },
      "all_reduce SUM of float32 .2.|broadcast of float32 .2., root 0",
      who(2) + " calls broadcast of float32 .2., root 0");
  differ(
      [](int rank) {
        dist::all_reduce(at::ones({2}), {.op = rank == 0 ? ReduceOp::kMax : ReduceOp::kMin});
      },
      "all_reduce (MAX|MIN) of float32 .2.", who(0) + " calls all_reduce MAX");
  differ(
      [](int rank) {
        const std::vector<int64_t> more = {1, 2, 1}, one(3, 1);
        dist::all_to_all_single(at::ones({3}), at::ones({rank == 0 ? 4 : 3}), one,
                                rank == 0 ? more : one);
      },
      "all_to_all of float32 .*", who(0) + " sends 2 elements to " + who(1) + ", which expects 1");
}

TEST_P(CollectiveSuite, AValueOfAnotherTypeIsRefusedByTheRankThatGaveIt) {
  on_each(3, [](int rank) {
    const auto refused = [&](const std::string& called, const std::function<void()>& call) {
      const Error error = error_of(call);
      EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
      EXPECT_THAT(error.message(), ContainsRegex("the value of " + who(1) + ": expected "));
      EXPECT_THAT(error.operation(), HasSubstr(called + " in the default group"));
      EXPECT_THAT(error.advice(), HasSubstr("use one type on all ranks"));
    };
    std::string word = "two";
    int64_t number = 2;
    if (rank == 1) {
      // Its own and rank 0's are the ones that differ.
      EXPECT_EQ(code_of([&] { dist::all_gather_value(word); }), Code::kInvalidArgument);
      dist::gather_value(word, 0);
      dist::broadcast_value(word, 1);
      EXPECT_EQ(dist::scatter_value(std::vector{word, word, word}, 1), word);
    } else {
      refused("all_gather_value", [&] { dist::all_gather_value(number); });
      if (rank == 0) refused("gather_value", [&] { dist::gather_value(number, 0); });
      if (rank != 0) dist::gather_value(number, 0);
      refused("broadcast_value", [&] { dist::broadcast_value(number, 1); });
      refused("scatter_value", [&] { dist::scatter_value(std::vector<int64_t>(), 1); });
    }
    dist::barrier();  // the group can be used on
  });
}

TEST_P(CollectiveSuite, RanksThatDifferAreNamedAsInTheDefaultGroup) {
  on_each(3, [](int rank) {
    if (rank == 0) return;
    const auto first = dist::new_group({2, 1}), second = dist::new_group({2, 1});
    const Error sizes = error_of([&] { dist::all_reduce(at::ones({rank + 1}), {.group = first}); });
    EXPECT_THAT(sizes.message(), ContainsRegex(who(1) + " calls all_reduce SUM of float32 .2."));
    EXPECT_THAT(sizes.message(), ContainsRegex(who(2) + " calls all_reduce SUM of float32 .3."));
    const Error parts = error_of([&] {
      const std::vector<int64_t> sent = {1, rank == 2 ? 2 : 1}, expected = {1, 1};
      dist::all_to_all_single(at::ones({2}), at::ones({sent[0] + sent[1]}), expected, sent,
                              {.group = second});
    });
    EXPECT_THAT(parts.message(),
                ContainsRegex(who(2) + " sends 2 elements to " + who(1) + ", which expects 1"));
  });
}

TEST_P(CollectiveSuite, AfterAFailureEachUseOfTheGroupSaysSo) {
  on_each(3, [](int rank) {
    const Error first = error_of([&] { dist::all_reduce(at::ones({rank == 1 ? 3 : 2})); });
    EXPECT_EQ(first.code(), Code::kShapeMismatch) << first.what();
    const Tensor one = at::ones({1});
    const int next = (rank + 1) % 3;
    std::string word = "word";
    const std::pair<const char*, std::function<void()>> uses[] = {
        {"barrier", [] { dist::barrier(); }},
        {"broadcast of float32 [1], root 0", [&] { dist::broadcast(one, 0); }},
        {"all_reduce SUM of float32 [1]", [&] { dist::all_reduce_async(one).wait(); }},
        {"send of float32 [1]", [&] { dist::send(one, next); }},
        {"recv of float32 [1]", [&] { dist::recv(one, next); }},
        {"send of float32 [1]", [&] { dist::isend(one, next).wait(); }},
        {"recv of float32 [1]", [&] { dist::irecv(one, dist::kAnySource).wait(); }},
        {"monitored_barrier", [] { dist::monitored_barrier(); }},
        {"", [] { dist::all_gather_value(int64_t{1}); }},
        {"", [&] { dist::broadcast_value(word, 0); }},
        {"all_reduce SUM of float32 [1]", [&] { dist::all_reduce(one); }}};
    for (const auto& [operation, use] : uses) {
      const Error later = error_of(use);
      EXPECT_EQ(later.code(), Code::kShapeMismatch) << later.what();
      EXPECT_THAT(later.message(), HasSubstr("failed before"));
      EXPECT_THAT(later.message(), HasSubstr(first.message()));
      EXPECT_THAT(later.operation(), HasSubstr(operation));
    }
  });
}

TEST_P(CollectiveSuite, SizesThatDifferAreToldInEveryOperation) {
  const auto ones = [](int64_t count) { return at::ones({count}); };
  const auto two = [&](bool are_there) {
    return are_there ? std::vector<Tensor>{ones(2), ones(2)} : std::vector<Tensor>();
  };
  const std::function<void(int)> calls[] = {
      [&](int rank) { dist::broadcast(ones(2 + rank), 0); },
      [&](int rank) { dist::reduce(ones(2 + rank), 0); },
      [&](int rank) { dist::all_gather_into_tensor(ones(4 + 2 * rank), ones(2 + rank)); },
      [&](int rank) { dist::gather(ones(2 + rank), two(rank == 0), 0); },
      [&](int rank) { dist::scatter(ones(2 + rank), two(rank == 0), 0); },
      [&](int rank) { dist::reduce_scatter_tensor(ones(2 + rank), ones(4 + 2 * rank)); },
      [&](int rank) { dist::all_to_all_single(ones(4 + 2 * rank), ones(4 + 2 * rank)); }};
  for (const auto& call : calls) {
    on_each(2, [&](int rank) {
      const Error error = error_of([&] { call(rank); });
      EXPECT_EQ(error.code(), Code::kShapeMismatch) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("rank 1"));
    });
  }
}

TEST_P(CollectiveSuite, AFailureThatNobodyWaitsForIsToldByTheNextCall) {
  on_each(2, [](int rank) {
    const dist::Work work = dist::all_reduce_async(at::ones({2 + rank}));
    EXPECT_EQ(code_of([] { dist::barrier(); }), Code::kShapeMismatch);
    EXPECT_EQ(code_of([&] { work.wait(); }), Code::kShapeMismatch);
    EXPECT_TRUE(work.is_completed());
    EXPECT_FALSE(work.is_success());
  });
}

TEST_P(CollectiveSuite, AfterAFailureTheOthersMakeAGroupOfTheirOwn) {
  on_each(3, [](int rank) {
    EXPECT_EQ(code_of([&] { dist::all_reduce(at::ones({2 + rank % 2})); }), Code::kShapeMismatch);
    EXPECT_EQ(dist::default_group()->failure()->code(), Code::kShapeMismatch);
    if (rank == 1) return;
    const auto left = dist::new_group({0, 2});
    const Tensor x = at::full({3}, rank + 1.0);
    dist::all_reduce(x, {.group = left});
    EXPECT_EQ(x[0].item<float>(), 4);
  });
}

TEST_P(CollectiveSuite, NumbersOfTensorsAndSparseDimensionsMustAgree) {
  const auto differ = [this](const std::function<void(int)>& call) {
    on_each(2, [&](int rank) { EXPECT_EQ(code_of([&] { call(rank); }), Code::kShapeMismatch); });
  };
  const auto tensors = [](size_t count, int64_t size) {
    return std::vector<Tensor>(count, at::ones({size}));
  };
  differ([&](int rank) { dist::all_reduce_coalesced(tensors(rank == 0 ? 2 : 3, 4)); });
  differ([&](int rank) { dist::all_reduce_coalesced(tensors(rank == 0 ? 2 : 5, 1000)); });
  differ([&](int rank) {
    rank == 0 ? dist::all_reduce(at::ones({4})) : dist::all_reduce_coalesced(tensors(2, 4));
  });
  differ([&](int rank) { dist::all_reduce(at::eye(4).to_sparse(rank == 0 ? 2 : 1)); });
  differ([&](int rank) {
    dist::all_reduce(rank == 0 ? at::eye(4).to_sparse() : at::ones({4, 4}));
  });
}

}  // namespace
}  // namespace farspan::testing
