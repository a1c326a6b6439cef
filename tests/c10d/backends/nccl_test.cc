// The nccl backend over simulated devices and a simulated NCCL: ranks are threads, and what NCCL
// would wait for, mix up or keep waits here, too.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <string>
#include <thread>
#include <vector>

#include "c10d/backends/nccl_ranks.h"
#include "support/errors.h"
#include "support/eventually.h"
#include "support/sanitizers.h"

namespace farspan::dist::nccl {
namespace {

using farspan::testing::error_of;
using ::testing::HasSubstr;

using NcclTest = NcclRanks;

TEST_F(NcclTest, GivesEachCollectivesResultInTheOrderOfTheCallersStream) {
  on_each([](Rank& rank) {
    const int64_t own = rank.number + 1;
    for (int round = 0; round < farspan::testing::repetitions(20); ++round) {
      const Array sum = rank.array({own, 10 * own});
      rank.all_reduce(sum);
      EXPECT_EQ(sum.read(), (Numbers{6, 60}));

      const Array told = rank.array({own, own});
      rank.give(rank.next(Op::kBroadcast, 2, 1),
                [&](const Call& call) { rank.backend->broadcast(call, told.block()); });
      EXPECT_EQ(told.read(), (Numbers{2, 2}));

      const Array reduced = rank.array({own});
      rank.give(rank.next(Op::kReduce, 1, 2),
                [&](const Call& call) { rank.backend->reduce(call, reduced.block()); });
      EXPECT_EQ(reduced.read(), Numbers{rank.number == 2 ? 6 : own});

      const Array in = rank.array({own}), all = rank.array({0, 0, 0});
      rank.give(rank.next(Op::kAllGather, 1),
                [&](const Call& call) { rank.backend->all_gather(call, in.block(), all.parts()); });
      EXPECT_EQ(all.read(), (Numbers{1, 2, 3}));

      const Array gathered = rank.array({0, 0, 0});
      rank.give(rank.next(Op::kGather, 1, 0), [&](const Call& call) {
        rank.backend->gather(call, in.block(),
                             rank.number == 0 ? gathered.parts() : std::vector<Block>());
      });
      EXPECT_EQ(gathered.read(), rank.number == 0 ? (Numbers{1, 2, 3}) : (Numbers{0, 0, 0}));

      const Array rows = rank.array(iota(10 * own, 3)), got = rank.array({0});
      rank.give(rank.next(Op::kScatter, 1, 1), [&](const Call& call) {
        rank.backend->scatter(call, rank.number == 1 ? rows.parts() : std::vector<Block>(),
                              got.block());
      });
      EXPECT_EQ(got.read(), Numbers{20 + rank.number});

      rank.give(rank.next(Op::kReduceScatter, 1), [&](const Call& call) {
        rank.backend->reduce_scatter(call, rows.parts(), got.block());
      });
      EXPECT_EQ(got.read(), Numbers{60 + 3 * rank.number});

      const Array changed = rank.array({0, 0, 0});
      rank.give(rank.next(Op::kAllToAll, 1), [&](const Call& call) {
        rank.backend->all_to_all(call, rows.parts(), changed.parts());
      });
      EXPECT_EQ(changed.read(), (Numbers{10 + rank.number, 20 + rank.number, 30 + rank.number}));
    }
  });
}

TEST_F(NcclTest, TakesPartsOfDifferentSizes) {
  on_each([](Rank& rank) {
    const std::vector<size_t> counts{1, 0, 2};
    const size_t own = counts[static_cast<size_t>(rank.number)];
    const int64_t first = 10 * (rank.number + 1);
    const Array in = rank.array(iota(first, 3)), all = rank.array({0, 0, 0});
    rank.give(rank.next(Op::kAllGather, 3), [&](const Call& call) {
      rank.backend->all_gather(call, {in.block().data, own}, all.parts(counts));
    });
    EXPECT_EQ(all.read(), (Numbers{10, 30, 31}));

    const Array sum = rank.array({0, 0});
    rank.give(rank.next(Op::kReduceScatter, 3), [&](const Call& call) {
      rank.backend->reduce_scatter(call, in.parts(counts), {sum.block().data, own});
    });
    const std::vector<Numbers> sums{{60, 0}, {0, 0}, {63, 66}};
    EXPECT_EQ(sum.read(), sums[static_cast<size_t>(rank.number)]);

    // Rank r sends counts[r] elements to each.
    const Array got = rank.array({0, 0, 0});
    const Array many = rank.array(iota(first, 6));
    rank.give(rank.next(Op::kAllToAll, 0), [&](const Call& call) {
      rank.backend->all_to_all(call, many.parts({own, own, own}), got.parts(counts));
    });
    const int64_t two = 30 + 2 * rank.number;
    EXPECT_EQ(got.read(), (Numbers{10 + rank.number, two, two + 1}));
  });
}

// What rank 0's device is held before goes on when a later call has failed, however late.
void expect_to_end_well(const Rank& rank, const Held& held, const Future<int>& good) {
  if (rank.number == 0) {
    std::this_thread::sleep_for(1500ms);  // more than the grace for ranks that are gone
    EXPECT_FALSE(good.ready());
    held.go();
  }
  good.wait();
}

TEST_F(NcclTest, LeavesTheCallerWhileItsDeviceIsBusy) {
  warm_up();
  Held held;
  on_each([&](Rank& rank) {
    const Array data = rank.array({1});
    if (rank.number == 1) rank.hold(held.until());
    const Future<int> ended = rank.all_reduce(data);
    if (rank.number == 1) {
      EXPECT_FALSE(ended.wait_for(50ms));
      held.go();
    }
    ended.wait();
    EXPECT_EQ(data.read(), Numbers{3});
  });
}

TEST_F(NcclTest, TellsAllRanksAtOnceWhatTheyCallDifferently) {
  warm_up();
  on_each([](Rank& rank) {
    const Array data = rank.array({1, 2, 3});
    const TimePoint begun = Clock::now();
    const bool is_odd = rank.number == 1;
    const Future<int> ended =
        rank.give(rank.next(is_odd ? Op::kBroadcast : Op::kAllReduce, 3, is_odd ? 0 : -1),
                  [&](const Call& call) {
                    if (is_odd) return rank.backend->broadcast(call, data.block());
                    rank.backend->all_reduce(call, data.block());
                  });
    const Error error = error_of([&] { ended.wait(); });
    EXPECT_EQ(error.code(), Code::kShapeMismatch) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("calls broadcast of int64"));
    EXPECT_LT(Clock::now() - begun, 10s);
    data.read();  // the device goes on
  });
  EXPECT_TRUE(farspan::testing::eventually([&] { return library->aborted() == kSize; }));
}

TEST_F(NcclTest, TellsWhosePartsOfAnAllToAllDiffer) {
  on_each([](Rank& rank) {
    const Array in = rank.array(iota(0, 6)), out = rank.array(iota(0, 6));
    const std::vector<size_t> two{2, 2, 2}, odd{1, 2, 2};
    const Future<int> ended = rank.give(rank.next(Op::kAllToAll, 0), [&](const Call& call) {
      rank.backend->all_to_all(call, in.parts(two), out.parts(rank.number == 2 ? odd : two));
    });
    const Error error = error_of([&] { ended.wait(); });
    EXPECT_EQ(error.code(), Code::kShapeMismatch) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("sends 2 elements"));
    out.read();
  });
}

TEST_F(NcclTest, WhatWasCalledBeforeAMismatchEndsWell) {
  warm_up();
  Held held;
  on_each([&](Rank& rank) {
    const Array first = rank.array({1}), second = rank.array({1, 2});
    if (rank.number == 0) rank.hold(held.until());
    const Future<int> good = rank.all_reduce(first);
    const Future<int> bad =
        rank.give(rank.next(Op::kAllReduce, rank.number == 2 ? 1 : 2), [&](const Call& call) {
          rank.backend->all_reduce(call, {second.block().data, rank.number == 2 ? 1U : 2U});
        });
    EXPECT_EQ(error_of([&] { bad.wait(); }).code(), Code::kShapeMismatch);
    expect_to_end_well(rank, held, good);
    EXPECT_EQ(first.read(), Numbers{3});
  });
}

TEST_F(NcclTest, ACallThatWaitsForTheOthersToConnectEndsAtItsDeadline) {
  warm_up();
  on_each([](Rank& rank) {
    if (rank.number == 2) return std::this_thread::sleep_for(1s);
    rank.timeout = 300ms;
    const Array in = rank.array({1, 2, 3}), out = rank.array({1, 2, 3});
    const TimePoint begun = Clock::now();
    const Future<int> ended = rank.give(rank.next(Op::kAllToAll, 0), [&](const Call& call) {
      rank.backend->all_to_all(call, in.parts(), out.parts());
    });
    const Error error = error_of([&] { ended.wait(); });
    EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("rank 2"));
    EXPECT_LT(Clock::now() - begun, 10s);
    out.read();
  });
}

TEST_F(NcclTest, LeavingEndsACallThatWaitsForTheOthersToConnect) {
  warm_up();
  Rank& rank = ranks[0];
  const Array in = rank.array({1, 2, 3}), out = rank.array({1, 2, 3});
  std::thread caller([&] {
    const Future<int> ended = rank.give(rank.next(Op::kAllToAll, 0), [&](const Call& call) {
      rank.backend->all_to_all(call, in.parts(), out.parts());
    });
    EXPECT_EQ(error_of([&] { ended.wait(); }).code(), Code::kShutdown);
  });
  std::this_thread::sleep_for(50ms);  // it waits by now, or finds that this rank has left
  const TimePoint begun = Clock::now();
  rank.backend->leave();
  EXPECT_LT(Clock::now() - begun, 10s);
  caller.join();
}

TEST_F(NcclTest, ACallWhoseTimeIsOverDoesNotEndTheOnesBefore) {
  warm_up();
  Held held;
  on_each([&](Rank& rank) {
    const Array first = rank.array({1}), second = rank.array({2});
    if (rank.number == 0) rank.hold(held.until());
    const Future<int> good = rank.all_reduce(first);
    rank.timeout = 200ms;
    const TimePoint begun = Clock::now();
    const Future<int> late = rank.all_reduce(second);
    EXPECT_EQ(error_of([&] { late.wait(); }).code(), Code::kTimeout);
    EXPECT_LT(Clock::now() - begun, 10s);
    expect_to_end_well(rank, held, good);
    EXPECT_EQ(first.read(), Numbers{3});
  });
}

TEST_F(NcclTest, WhoLeavesInOrderEndsNothing) {
  warm_up();
  Held held;
  on_each([&](Rank& rank) {
    const Array data = rank.array({rank.number});
    if (rank.number == 1) rank.hold(held.until());
    // Of which rank 1 is the last to need something.
    const Future<int> ended = rank.give(rank.next(Op::kBroadcast, 1, 0), [&](const Call& call) {
      rank.backend->broadcast(call, data.block());
    });
    if (rank.number != 1) {
      std::this_thread::sleep_for(100ms);
      held.go();
      rank.backend->finish(Deadline::after(10s));
      rank.backend->leave();
    }
    ended.wait();
    EXPECT_EQ(data.read(), Numbers{0});
  });
}

TEST_F(NcclTest, NamesWhoHasNotCalledIt) {
  warm_up();
  on_each([](Rank& rank) {
    if (rank.number == 2) return std::this_thread::sleep_for(1s);  // computes
    rank.timeout = 300ms;
    const Array data = rank.array({1});
    const TimePoint begun = Clock::now();
    const Future<int> ended = rank.all_reduce(data);
    const Error error = error_of([&] { ended.wait(); });
    EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("rank 2"));
    EXPECT_LT(Clock::now() - begun, 10s);
    data.read();
  });
}

TEST_F(NcclTest, ADeviceThatHangsEndsAtTheDeadline) {
  warm_up();
  Held held;
  std::latch all_told(kRanks);
  on_each([&](Rank& rank) {
    rank.timeout = 400ms;
    const Array data = rank.array({1});
    if (rank.number == 2) rank.hold(held.until());
    const TimePoint begun = Clock::now();
    const Future<int> ended = rank.all_reduce(data);
    const Error error = error_of([&] { ended.wait(); });
    EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(rank.number)));
    EXPECT_THAT(error.what(), HasSubstr("its device had not done it"));
    EXPECT_LT(Clock::now() - begun, 10s);
    all_told.arrive_and_wait();
    held.go();
    data.read();
  });
}

TEST_F(NcclTest, ARankThatLeavesEndsWhatWaitsForIt) {
  warm_up();
  Held held;
  on_each([&](Rank& rank) {
    const Array data = rank.array({1});
    if (rank.number == 2) rank.hold(held.until());
    const Future<int> ended = rank.all_reduce(data);
    if (rank.number == 2) {
      std::this_thread::sleep_for(100ms);  // the others have agreed by now, or not
      rank.backend->leave();
      EXPECT_TRUE(farspan::testing::eventually([&] { return library->aborted() > 0; }));
      held.go();
      EXPECT_EQ(error_of([&] { ended.wait(); }).code(), Code::kShutdown);
    } else {
      const TimePoint begun = Clock::now();
      const Error error = error_of([&] { ended.wait(); });
      EXPECT_EQ(error.code(), Code::kDisconnected) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("rank 2"));
      EXPECT_LT(Clock::now() - begun, 3s);
    }
    data.read();
  });
}

TEST_F(NcclTest, WhatNcclReportsEndsAllOfThem) {
  warm_up();
  Held held;
  std::latch all_called(kRanks), all_told(kRanks);
  on_each([&](Rank& rank) {
    const Array data = rank.array({1});
    if (rank.number == 0) rank.hold(held.until());
    const Future<int> ended = rank.all_reduce(data);
    all_called.arrive_and_wait();
    if (rank.number == 0) library->fail_all("a network card is broken");
    const Error error = error_of([&] { ended.wait(); });
    EXPECT_EQ(error.code(), Code::kUnavailable) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("a network card is broken"));
    all_told.arrive_and_wait();
    held.go();
    data.read();
  });
}

TEST_F(NcclTest, DoesNotWaitForAnAbort) {
  warm_up();
  Held held, aborts;
  std::latch all_told(kRanks);
  library->hold_aborts(aborts.until());
  on_each([&](Rank& rank) {
    const Array data = rank.array({1});
    if (rank.number == 0) rank.hold(held.until());
    const Future<int> ended = rank.all_reduce(data);
    const TimePoint begun = Clock::now();
    rank.backend->abort(Error(Code::kCancelled, "enough"), 0);
    EXPECT_EQ(error_of([&] { ended.wait(); }).code(), Code::kCancelled);
    rank.backend->leave();
    EXPECT_LT(Clock::now() - begun, 10s);
    all_told.arrive_and_wait();
    held.go();
    aborts.go();
    data.read();
  });
}

TEST_F(NcclTest, WhoLeavesDoesNotWaitForTheAbortOfWhatDoesNotEnd) {
  warm_up();
  Held aborts;
  library->hold_aborts(aborts.until());
  library->let_ends_fail();
  const size_t there = library->communicators();
  on_each([](Rank& rank) { rank.backend->leave(); });
  EXPECT_EQ(library->communicators(), there);
  aborts.go();
  EXPECT_TRUE(farspan::testing::eventually([&] { return library->aborted() == there; }));
}

TEST_F(NcclTest, RefusesWhatWouldCostTheGroupBeforeOthersHearOfIt) {
  warm_up();
  on_each([](Rank& rank) {
    device::Stream elsewhere = rank.stream;
    elsewhere.device = (rank.number + 1) % kRanks;
    const Error error = error_of([&] { rank.backend->check_device(elsewhere); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("the group's communicator on device"));
  });
  devices->let_streams_be_captured(true);
  const Error error = error_of([&] { ranks[0].backend->check_device(ranks[0].stream); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
  EXPECT_THAT(error.what(), HasSubstr("CUDA graph"));
  devices->let_streams_be_captured(false);
  EXPECT_EQ(ranks[0].backend->why_not_on_device(ReduceOp::kSum, DType::FLOAT32), "");
  EXPECT_EQ(ranks[0].backend->why_not_on_device(ReduceOp::kBand, DType::INT64),
            "NCCL has no BAND of int64");
  warm_up();
}

TEST_F(NcclTest, MixesMemoryOfDevicesAndOfTheProcessor) {
  on_each([](Rank& rank) {
    for (int round = 0; round < 10; ++round) {
      const Array data = rank.array({rank.number + 1});
      const Future<int> ended = rank.all_reduce(data);
      int64_t number = rank.number + 1;
      Call call = rank.next(Op::kAllReduce, 1);
      call.signature.on_device = false;
      rank.backend->all_reduce(call, {reinterpret_cast<std::byte*>(&number), 1});
      EXPECT_EQ(number, 6);
      EXPECT_EQ(data.read(), Numbers{6});
      ended.wait();
    }
  });
}

TEST_F(NcclTest, SubgroupsWorkAtOnce) {
  on_each([](Rank& rank) {
    // Two that overlap at rank 1, whose device has them in the order of its stream.
    const std::vector<std::vector<int>> members{{0, 1}, {1, 2}};
    for (size_t group = 0; group < members.size(); ++group) {
      const auto& mine = members[group];
      const auto at = std::find(mine.begin(), mine.end(), rank.number);
      if (at == mine.end()) continue;
      GroupSpec spec;
      spec.name = "group " + std::to_string(group);
      spec.ranks = mine;
      spec.rank = static_cast<int>(at - mine.begin());
      Rank part{rank.number, rank.backend->subgroup(spec), rank.devices, rank.stream};
      for (int round = 0; round < 10; ++round) {
        const Array data = part.array({rank.number});
        part.all_reduce(data);
        EXPECT_EQ(data.read(), Numbers{group == 0 ? 1 : 3});
      }
    }
  });
}

TEST_F(NcclTest, ARankThatNeverBeginsEndsTheFirstCallAtItsDeadline) {
  on_each([](Rank& rank) {
    if (rank.number == 1) return std::this_thread::sleep_for(1s);
    rank.timeout = 300ms;
    const Array data = rank.array({1});
    const Error error = error_of([&] { rank.all_reduce(data).wait(); });
    EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("rank 1"));
  });
  EXPECT_EQ(library->begun(), 0u);
}

}  // namespace
}  // namespace farspan::dist::nccl
