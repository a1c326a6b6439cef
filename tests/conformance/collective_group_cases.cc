// The rules under test: c10d/group/README.md: order, groups, and what goes wrong.
#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include <filesystem>
#include <thread>

#include <farspan/c10d/group/point_to_point.h>
#include <farspan/c10d/group/subgroups.h>
#include <farspan/c10d/group/values.h>
#include <farspan/c10d/values/codec_struct.h>

#include "conformance/collective_suite.h"
#include "support/eventually.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using dist::ReduceOp;
using ::testing::ContainsRegex;

TEST_P(CollectiveSuite, ABarrierIsLeftWhenAllHaveComeToIt) {
  for (const int ranks : kWorlds) {
    on_each(ranks, [ranks](int rank) {
      // The clock is the same in all processes of a host.
      const auto now = [] { return Clock::now().time_since_epoch().count(); };
      for (int round = 0; round < 2 * ranks; ++round) {
        if (round % ranks == rank) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        const Tensor come = at::full({1}, now(), at::kLong);
        dist::barrier();
        const Tensor left = at::full({1}, now(), at::kLong);
        dist::all_reduce(come, {.op = ReduceOp::kMax});
        dist::all_reduce(left, {.op = ReduceOp::kMin});
        EXPECT_LE(come.item<int64_t>(), left.item<int64_t>());
      }
    });
  }
}

TEST_P(CollectiveSuite, AsynchronousOperationsRunInTheOrderOfTheCalls) {
  on_each(3, [](int rank) {
    std::vector<Tensor> tensors;
    std::vector<dist::Work> works;
    for (int i = 0; i < 200; ++i) {
      tensors.push_back(at::full({(i % 7) * 500 + 1}, rank + i * 1.0));
      works.push_back(dist::all_reduce_async(tensors.back()));
      if (i % 50 == 49) dist::barrier();
    }
    for (size_t i = works.size(); i-- > 0;) {
      works[i].wait();
      EXPECT_TRUE(works[i].is_success());
      const Tensor& got = tensors[i];
      EXPECT_TRUE(at::equal(got, at::full_like(got, 3.0 * static_cast<double>(i) + 3)));
    }
  });
}

TEST_P(CollectiveSuite, ABarrierComesAfterAllThatWasCalledBefore) {
  on_each(3, [](int) {
    std::vector<Tensor> tensors;
    for (int i = 0; i < 50; ++i) tensors.push_back(at::ones({1 + i * 1000}));
    for (const Tensor& one : tensors) (void)dist::all_reduce_async(one);
    dist::barrier();
    for (const Tensor& one : tensors) EXPECT_TRUE(at::equal(one, at::full_like(one, 3)));
  });
}

TEST_P(CollectiveSuite, OperationsGoOnWhileNobodyWaits) {
  on_each(2, [](int) {
    const Tensor big = at::ones({1'000'000});
    const dist::Work work = dist::all_reduce_async(big);
    while (!work.is_completed()) std::this_thread::yield();
    EXPECT_TRUE(at::equal(big, at::full({1'000'000}, 2.0)));
  });
}

TEST_P(CollectiveSuite, GroupsOfSomeRanksWorkBesideEachOther) {
  on_each(4, [](int rank) {
    const auto odd = dist::new_group({1, 3}), low = dist::new_group({2, 1, 0});
    const auto again = dist::new_group({1, 3});
    EXPECT_EQ(odd->rank(), rank % 2 == 1 ? rank / 2 : -1);
    EXPECT_EQ(dist::get_world_size(low), 3);
    if (rank % 2 == 1) {
      EXPECT_NE(odd->name(), again->name());
      const Tensor one = at::full({10'000}, rank * 1.0), two = one.clone();
      const auto work = dist::all_reduce_async(one, {.group = odd});
      dist::all_reduce(two, {.op = ReduceOp::kMax, .group = again});
      work.wait();
      EXPECT_EQ(one[0].item<float>(), 4);
      EXPECT_EQ(two[0].item<float>(), 3);
    } else {
      EXPECT_EQ(code_of([&] { dist::all_reduce(at::ones({1}), {.group = odd}); }),
                Code::kInvalidArgument);
    }
    if (rank < 3) {
      std::vector<Tensor> list(3);
      for (Tensor& one : list) one = at::zeros({1});
      dist::all_gather(list, at::full({1}, rank * 1.0), {.group = low});
      EXPECT_EQ(list[0].item<float>(), 2);  // in the group's order
      EXPECT_EQ(list[2].item<float>(), 0);
    }
    dist::barrier();
  });
}

TEST_P(CollectiveSuite, AGroupKnowsItsRanksInTheDefaultGroup) {
  on_each(3, [](int rank) {
    const auto some = dist::new_group({2, 0});
    EXPECT_EQ(dist::get_rank(some), std::vector<int>({1, -1, 0})[static_cast<size_t>(rank)]);
    EXPECT_EQ(dist::get_world_size(some), 2);
    EXPECT_EQ(some->ranks(), (std::vector<int>{2, 0}));
    EXPECT_EQ(some->group_rank(2), 0);
    EXPECT_EQ(some->global_rank(1), 0);
    EXPECT_EQ(code_of([&] { some->group_rank(1); }), Code::kInvalidArgument);
    EXPECT_EQ(code_of([&] { some->global_rank(2); }), Code::kInvalidArgument);
    EXPECT_EQ(some->backend_name(), rank == 1 ? "none" : dist::default_group()->backend_name());
  });
}

TEST_P(CollectiveSuite, EachGroupCountsItsOwnCalls) {
  on_each(3, [](int rank) {
    const auto some = dist::new_group({0, 2});
    dist::barrier();
    for (int i = 0; rank != 1 && i < 4; ++i) dist::barrier({.group = some});
    EXPECT_EQ(dist::default_group()->sequence(), 1u);
    EXPECT_EQ(some->sequence(), rank == 1 ? 0u : 4u);
  });
}

TEST_P(CollectiveSuite, EachGroupHasATimeoutOfItsOwn) {
  on_each(2, [](int rank) {
    const auto hasty = dist::new_group({0, 1}, std::chrono::milliseconds(50)),
               other = dist::new_group({0, 1});
    EXPECT_EQ(other->timeout(), dist::default_group()->timeout());
    other->set_timeout(std::chrono::milliseconds(60));
    for (const auto& group : {hasty, other}) {
      if (rank == 1) continue;
      const TimePoint begun = Clock::now();
      const Error error = error_of([&] { dist::barrier({.group = group}); });
      EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
      EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 1"));
      EXPECT_GE(Clock::now() - begun, group->timeout());
      EXPECT_LT(Clock::now() - begun, std::chrono::seconds(20));
    }
    dist::barrier();
  });
}

TEST_P(CollectiveSuite, ThreadsUseGroupsOfTheirOwnAtOnce) {
  constexpr size_t kThreads = 4;
  on_each(2, [](int) {
    std::vector<dist::Group> groups;
    std::vector<Tensor> sums;
    for (size_t i = 0; i < kThreads; ++i) {
      groups.push_back(dist::new_group({0, 1}));
      sums.push_back(at::ones({static_cast<int64_t>(i) * 3000 + 1}, at::kLong));
    }
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        for (int turn = 0; turn < 40; ++turn) dist::all_reduce(sums[i], {.group = groups[i]});
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const Tensor& one : sums) {
      EXPECT_TRUE(at::equal(one, at::full_like(one, int64_t{1} << 40)));
    }
  });
}

TEST_P(CollectiveSuite, AThousandOperationsOfEightThreadsAreUnderWayAtOnce) {
  constexpr size_t kThreads = 8;
  constexpr int64_t kEach = 125;
  on_each(3, [](int rank) {
    std::vector<dist::Group> groups;
    for (size_t i = 0; i < kThreads; ++i) groups.push_back(dist::new_group({2, 0, 1}));
    std::vector<std::vector<Tensor>> tensors(kThreads);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        std::vector<dist::Work> works;
        for (int64_t n = 0; n < kEach; ++n) {
          tensors[i].push_back(at::full({n % 5 * 400 + 1}, rank + n, at::kLong));
          works.push_back(dist::all_reduce_async(tensors[i].back(), {.group = groups[i]}));
        }
        for (const dist::Work& work : works) work.wait();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (const auto& each : tensors) {
      for (size_t n = 0; n < each.size(); ++n) {
        const Tensor want = at::full_like(each[n], 3 * static_cast<int64_t>(n) + 3);
        EXPECT_TRUE(at::equal(each[n], want)) << n;
      }
    }
  });
}

int descriptors() {
  const std::filesystem::directory_iterator open("/proc/self/fd");
  return static_cast<int>(std::distance(begin(open), end(open)));
}

TEST_P(CollectiveSuite, GroupsThatAreGoneKeepNoDescriptors) {
  constexpr int kGroups = 30;
  on_each(3, [](int) {
    const auto use_one = [] {
      const auto group = dist::new_group({2, 1, 0});
      dist::all_reduce(at::ones({50'000}), {.group = group});
    };
    use_one();
    dist::barrier();
    const int before = descriptors();
    dist::barrier();
    for (int i = 0; i < kGroups; ++i) use_one();
    EXPECT_TRUE(eventually([&] { return descriptors() < before + kGroups; }));
    dist::barrier();
  });
}

struct Report {
  int64_t rank = 0;
  std::string text;
  Tensor tensor;
};
FARSPAN_STRUCT(Report, rank, text, tensor);
Report report_of(int rank) {
  return {rank, std::string(static_cast<size_t>(rank) * 40'000, 'x'),
          at::full({rank, 2}, rank, at::kShort)};
}
void expect_report(const Report& got, int rank) {
  EXPECT_EQ(got.rank, rank);
  EXPECT_EQ(got.text.size(), static_cast<size_t>(rank) * 40'000);
  EXPECT_TRUE(at::equal(got.tensor, report_of(rank).tensor));
}

TEST_P(CollectiveSuite, ValuesOfAnyKindAndSize) {
  for (const int ranks : kWorlds) {
    on_each(ranks, [ranks](int rank) {
      const auto all = dist::all_gather_value(report_of(rank));
      ASSERT_EQ(all.size(), static_cast<size_t>(ranks));
      for (int other = 0; other < ranks; ++other) {
        expect_report(all[static_cast<size_t>(other)], other);
      }
      const int last = ranks - 1;
      const auto gathered = dist::gather_value(report_of(rank), last);
      ASSERT_EQ(gathered.size(), rank == last ? static_cast<size_t>(ranks) : 0u);
      for (size_t other = 0; other < gathered.size(); ++other) {
        expect_report(gathered[other], static_cast<int>(other));
      }
      Report one = report_of(rank);
      dist::broadcast_value(one, last);
      expect_report(one, last);
      std::vector<Report> for_all;
      for (int other = 0; rank == 0 && other < ranks; ++other) for_all.push_back(report_of(other));
      expect_report(dist::scatter_value(for_all, 0), rank);
      EXPECT_EQ(dist::all_gather_value(std::vector<int64_t>(static_cast<size_t>(rank), 7)).back(),
                std::vector<int64_t>(static_cast<size_t>(last), 7));
    });
  }
}

TEST_P(CollectiveSuite, ValuesMayStayAmongSomeRanks) {
  on_each(3, [](int rank) {
    const dist::CollectiveOptions among = {.group = dist::new_group({2, 0})};
    if (rank == 1) {
      EXPECT_EQ(code_of([&] { dist::all_gather_value(1, among); }), Code::kInvalidArgument);
      return;
    }
    using Numbers = std::vector<int64_t>;
    EXPECT_EQ(dist::all_gather_value(int64_t{rank}, among), (Numbers{2, 0}));
    EXPECT_EQ(dist::gather_value(int64_t{rank}, 0, among), rank == 0 ? Numbers({2, 0}) : Numbers());
    std::string word = "of " + std::to_string(rank);
    dist::broadcast_value(word, 2, among);
    EXPECT_EQ(word, "of 2");
    const Numbers for_all = rank == 0 ? Numbers{20, 10} : Numbers{};
    EXPECT_EQ(dist::scatter_value(for_all, 0, among), rank == 2 ? 20 : 10);
  });
}

TEST_P(CollectiveSuite, AWrongNumberOfValuesToScatterIsRefusedBeforeAnythingIsSent) {
  on_each(2, [](int rank) {
    using Numbers = std::vector<int64_t>;
    const auto refused = [](const Numbers& values) {
      const Error error =
          error_of([&] { dist::scatter_value(values, 0, {.timeout = Millis(2000)}); });
      EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
    };
    if (rank == 0) {
      for (const Numbers& values : {Numbers{}, Numbers{1}, Numbers{1, 2, 3}}) refused(values);
    } else {
      refused({1, 2});
    }
    // Expect: nobody was told, and the group can be used on.
    EXPECT_EQ(dist::scatter_value(rank == 0 ? Numbers{20, 10} : Numbers{}, 0), 20 - rank * 10);
    EXPECT_EQ(dist::all_gather_value(int64_t{rank}), (Numbers{0, 1}));
  });
}

TEST_P(CollectiveSuite, AWrongRootOfValuesIsRefusedBeforeAnythingIsSent) {
  on_each(2, [](int rank) {
    const auto refused = [](const std::function<void()>& call, const char* called) {
      const Error error = error_of(call);
      EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
      EXPECT_THAT(error.what(), ::testing::HasSubstr(called));
    };
    int64_t value = rank;
    if (rank == 1) {
      refused([] { dist::gather_value(int64_t{1}, 5); }, "gather_value");
      refused([&] { dist::broadcast_value(value, -1); }, "broadcast_value");
      refused([] { dist::scatter_value(std::vector<int64_t>{}, 2); }, "scatter_value");
    }
    EXPECT_EQ(dist::gather_value(value, 0).size(), rank == 0 ? 2u : 0u);
    dist::broadcast_value(value, 0);
    EXPECT_EQ(value, 0);
  });
}

TEST_P(CollectiveSuite, ValuesOfAnotherTypeAreRefused) {
  on_each(2, [](int rank) {
    const Error error = error_of([&] {
      rank == 0 ? void(dist::all_gather_value(int64_t{1}))
                : void(dist::all_gather_value(std::string("8 bytes.")));
    });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("all_gather_value"));
  });
}

// What is read must not be overwritten first, wherever results go.
TEST_P(CollectiveSuite, InputsMayShareMemoryWithOutputs) {
  for (const int64_t part : {3, 3000, 60'000}) {
    on_each(3, [part](int rank) {
      const auto of = [&](int r) { return input_of(r, part, at::kInt); };
      const Tensor want = at::cat({of(0), of(1), of(2)});
      for (int place = 0; place < 3; ++place) {  // this rank's own, and others'
        const Tensor all = at::zeros({3 * part}, at::kInt);
        const Tensor in = all.narrow(0, place * part, part);
        in.copy_(of(rank));
        dist::all_gather_into_tensor(all, in);
        EXPECT_TRUE(at::equal(all, want)) << part << " at " << place;
        const Tensor whole = want.clone();
        const Tensor out = whole.narrow(0, place * part, part);
        dist::reduce_scatter_tensor(out, whole);
        EXPECT_TRUE(at::equal(out, of(rank) * 3)) << part << " at " << place;
      }
      const Tensor turned = at::cat({of(rank) + 1, of(rank) + 2, of(rank) + 3});
      dist::all_to_all_single(turned, turned);
      EXPECT_TRUE(at::equal(turned, want + (rank + 1))) << part;
    });
  }
  // One rank has little, and the other much.
  on_each(2, [](int rank) {
    const std::vector<int64_t> rows =
        rank == 0 ? std::vector<int64_t>{1000, 2000} : std::vector<int64_t>{2000, 0};
    const Tensor both = at::arange(rows[0] + rows[1]) + 100'000 * rank;
    dist::all_to_all_single(both, both, rows, rows);
    EXPECT_EQ(both[rank == 0 ? 1000 : 0].item<int64_t>(), rank == 0 ? 100'000 : 1000);
  });
}

TEST_P(CollectiveSuite, InferenceTensorsMayTakePart) {
  on_each(2, [](int rank) {
    const c10::InferenceMode inference(rank == 0);
    const Tensor strided = at::ones({4, 4}).t();
    dist::all_reduce_async(strided).wait();
    const Tensor flat = at::ones({4});
    dist::all_reduce_coalesced_async({flat, strided}).wait();
    EXPECT_EQ(strided[1][2].item<float>(), 4);
  });
}

TEST_P(CollectiveSuite, AGroupIsSplitByColorAndKey) {
  on_each(4, [](int rank) {
    const auto sum = [rank](const dist::Group& group) {
      const Tensor x = at::full({1}, 1.0 + rank);
      dist::all_reduce(x, {.group = group});
      return x.item<float>();
    };
    // Ranks 0 and 3 share one; 1 is alone; 2 declines.
    const int color = std::vector<int>{7, 5, -1, 7}[static_cast<size_t>(rank)];
    const dist::Group own = dist::split_group(color, /*key=*/-rank);
    if (rank == 2) {
      EXPECT_EQ(dist::get_rank(own), -1);
      EXPECT_EQ(code_of([&] { sum(own); }), Code::kInvalidArgument);
    } else {
      EXPECT_EQ(own->ranks(), rank == 1 ? std::vector<int>{1} : (std::vector<int>{3, 0}));
      EXPECT_EQ(sum(own), rank == 1 ? 2 : 5);
    }
    const dist::Group pair = dist::split_group({{0, 2}, {3, 1}});
    EXPECT_EQ(sum(pair), rank % 2 == 0 ? 4 : 6);
    // A group of a group.
    const dist::Group half = dist::split_group(pair->rank(), 0, {.parent = pair});
    EXPECT_EQ(half->ranks(), std::vector<int>{rank});
    EXPECT_EQ(sum(half), 1 + rank);
  });
}

TEST_P(CollectiveSuite, ManyGroupsAreMadeAtOnce) {
  on_each(4, [](int rank) {
    const dist::Subgroups two = dist::new_subgroups(2);
    ASSERT_EQ(two.all.size(), 2);
    EXPECT_EQ(two.own, two.all[static_cast<size_t>(rank / 2)]);
    EXPECT_EQ(two.own->ranks(), rank < 2 ? (std::vector<int>{0, 1}) : (std::vector<int>{2, 3}));
    const Tensor x = at::full({1}, 1.0 + rank);
    dist::all_reduce(x, {.group = two.own});
    EXPECT_EQ(x.item<float>(), rank < 2 ? 3 : 7);
    const dist::Subgroups some = dist::new_subgroups_by_enumeration({{3}, {0, 2}});
    if (rank == 1) {
      EXPECT_EQ(dist::get_rank(some.own), -1);  // and not null, which is the default group
      EXPECT_EQ(code_of([&] { dist::barrier({.group = some.own}); }), Code::kInvalidArgument);
    } else {
      EXPECT_EQ(some.own, some.all[rank == 3 ? 0 : 1]);
    }
    EXPECT_EQ(code_of([] { dist::new_subgroups(3); }), Code::kInvalidArgument);
    // On all ranks, whichever list is wrong.
    for (const auto& wrong : std::vector<std::vector<std::vector<int>>>{
             {{0, 1}, {1, 2}}, {{0, 1}, {2, 99}}, {{0, 1, 2}, {}}, {{0, 1}, {2, -1}}, {}}) {
      EXPECT_EQ(code_of([&] { dist::split_group(wrong); }), Code::kInvalidArgument);
      EXPECT_EQ(code_of([&] { dist::new_subgroups_by_enumeration(wrong); }),
                Code::kInvalidArgument);
    }
    EXPECT_EQ(code_of([] {
                dist::new_subgroups_by_enumeration({{0, 9}});
              }),
              Code::kInvalidArgument);
  });
}

TEST_P(CollectiveSuite, ACallbackMayCallTheGroupAgain) {
  on_each(2, [](int) {
    const dist::Group group = dist::default_group();  // the callback may run on another thread
    const Tensor x = at::ones({1});
    const auto again = dist::barrier_async().future().then(
        [x, group](int) { dist::all_reduce(x, {.group = group}); });
    again.wait();
    EXPECT_EQ(x.item<float>(), 2);
  });
}

TEST_P(CollectiveSuite, WhoLeavesAGroupIsNamedToThoseThatNeedHim) {
  for (const int leaver : {0, 1}) {
    for (const bool used : {false, true}) {
      on_each(2, [&](int rank) {
        auto group = dist::new_group({0, 1}, std::chrono::seconds(30));
        if (used) dist::barrier({.group = group});
        if (rank == leaver) {
          group.reset();
          return;
        }
        const Error error = error_of([&] { dist::barrier({.group = group}); });
        EXPECT_EQ(error.code(), Code::kDisconnected) << error.what();
        EXPECT_THAT(error.message(), ContainsRegex(who(leaver) + " has left the group"));
        const std::string call =
            "^barrier, call " + std::string(used ? "2" : "1") + " of group [0-9]+ of ranks 0, 1$";
        EXPECT_THAT(error.operation(), ContainsRegex(call));
        EXPECT_THAT(error.what(), ::testing::HasSubstr(error.operation()));
      });
    }
  }
}

TEST_P(CollectiveSuite, LeavingEndsWhatIsUnderWayHere) {
  for (const int leaver : {0, 1}) {
    on_each(2, [leaver](int rank) {
      if (rank != leaver) return;
      const auto group = dist::new_group({0, 1});
      const dist::Work work = dist::barrier_async({.group = group});
      group->shutdown();
      const Code code = code_of([&] { work.wait(); });
      EXPECT_TRUE(code == Code::kShutdown) << static_cast<int>(code);
      EXPECT_EQ(code_of([&] { dist::barrier({.group = group}); }), Code::kShutdown);
    });
  }
}

TEST_P(CollectiveSuite, WhatMakesNoSenseOnOneRankIsRefusedThere) {
  on_each(2, [](int rank) {
    const auto refused = [](const std::function<void()>& call, const std::string& why) {
      const Error error = error_of(call);
      EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
      EXPECT_THAT(error.what(), ::testing::HasSubstr(why));
    };
    const Tensor two = at::ones({2});
    refused([&] { dist::all_reduce(Tensor()); }, "undefined");
    refused([&] { dist::broadcast(two, 2); }, "rank 2");
    refused([&] { dist::broadcast(two, -1); }, "rank -1");
    refused([&] { dist::all_reduce(two, {.op = ReduceOp::kBand}); }, "BAND of float32");
    refused([&] { dist::all_reduce(two.to(at::kLong), {.op = ReduceOp::kAvg}); }, "AVG of int64");
    refused([&] { dist::all_gather({two}, two); }, "1 tensors, and the group 2 ranks");
    refused([&] { dist::all_gather({two, two.to(at::kInt)}, two); }, "int32");
    refused([&] { dist::all_gather_into_tensor(at::ones({3}), two); }, "3 elements");
    refused([&] { dist::scatter(two, {two}, rank); }, "1 tensors");
    refused([&] { dist::gather(two, {two, two}, 1 - rank); }, "only");
    refused([&] { dist::reduce_scatter_tensor(two, at::ones({5})); }, "5 elements");
    refused([&] { dist::all_to_all_single(at::ones({3}), at::ones({3})); }, "3 rows for 2 ranks");
    refused([&] { dist::all_to_all_single(two, two, {2, 1}, {1, 1}); }, "3 rows");
    refused([&] { dist::all_to_all_single(two, two, {3, -1}, {1, 1}); }, "split");
    refused([&] { dist::all_reduce(at::empty({2}, at::TensorOptions().device(at::kMeta))); },
            "meta");
    const Tensor quantized = at::quantize_per_tensor(two, 0.1, 0, at::kQInt8);
    const Tensor compressed = at::ones({2, 2}).to_sparse_csr();
    refused([&] { dist::all_reduce(quantized); }, "all_reduce: the tensor is of type QInt8");
    refused([&] { dist::all_reduce(compressed); }, "all_reduce: the tensor is not strided");
    refused([&] { dist::send(quantized, 1 - rank); }, "send: the tensor is of type QInt8");
    refused([&] { dist::send(compressed, 1 - rank); }, "send: the tensor is not strided");
    const Tensor expanded = at::ones({1}).expand({4});
    refused([&] { dist::all_reduce(expanded); }, "all_reduce: the tensor that is to be written");
    refused(
        [&] {
          dist::all_reduce_coalesced({two, expanded});
        },
        "all_reduce_coalesced: the tensor that");
    refused([&] { dist::new_group({0, 0}); }, "twice");
    refused([&] { dist::new_group({0, 5}); }, "rank 5");
    // Expect: nobody else noticed, and the group goes on.
    dist::all_reduce(two);
    EXPECT_EQ(two[0].item<float>(), 2);
  });
}

TEST_P(CollectiveSuite, WhoDoesNotComeIsNamedWhenTheTimeIsOver) {
  on_each(3, [](int rank) {
    dist::barrier();  // so that the others have come before their time is over
    const TimePoint begun = Clock::now();
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    const Error error = error_of(
        [&] { dist::all_reduce(at::ones({2}), {.timeout = std::chrono::milliseconds(200)}); });
    EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
    EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 2"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("all_reduce SUM of float32 [2], call 2"));
    EXPECT_LT(Clock::now() - begun, std::chrono::seconds(20));
  });
}

TEST_P(CollectiveSuite, AbortEndsWhatIsUnderWayOnAllRanks) {
  on_each(3, [](int rank) {
    if (rank == 0) {
      const auto group = dist::default_group();
      const dist::Work work = dist::barrier_async();
      group->abort("enough");
      const Error error = error_of([&] { work.wait(); });
      EXPECT_EQ(error.code(), Code::kCancelled) << error.what();
    } else if (rank == 1) {
      const Error error = error_of([] { dist::barrier(); });
      EXPECT_EQ(error.code(), Code::kCancelled) << error.what();
      EXPECT_THAT(error.what(), ::testing::HasSubstr("enough"));
    }
  });
}

}  // namespace
}  // namespace farspan::testing
