// Collectives of tensors on devices, by backends that work in the processor's memory: the same
// results as of tensors that are there, in the order of the streams that write and read them.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <optional>
#include <vector>

#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/group/subgroups.h>

#include "conformance/every_collective.h"
#include "conformance/nccl_in_threads.h"
#include "conformance/ranks_in_threads.h"
#include "support/accelerator.h"
#include "support/eventually.h"

namespace farspan::testing {
namespace {

using namespace std::chrono_literals;
using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int kRanks = 3;
constexpr char kOneEach[] = "NCCL needs a device for each rank";
constexpr char kNotCounted[] = "nobody counts requests of pinned memory";
class DeviceCollectives : public CollectiveSuite {
 protected:
  void SetUp() override {
    if (ranks() < 2) GTEST_SKIP() << kOneEach;
  }
  static int ranks() {
    return GetParam().name == "Nccl" ? std::min(kRanks, accelerators()) : kRanks;
  }
  void TearDown() override { expect_idle_devices(); }
};

// NCCL's own means of three may differ in the last bit.
bool is_same(const Tensor& x, const Tensor& expected) {
  const bool may_differ = accelerator(0).is_cuda() && at::isFloatingType(expected.scalar_type());
  if (!may_differ) return at::equal(x, expected);
  return x.sizes() == expected.sizes() && at::allclose(x, expected, 1e-6);
}

TEST_P(DeviceCollectives, GiveTheResultsOfThoseOfTheProcessor) {
  on_each(ranks(), [](int rank) {
    const Tensors expected = results_of({at::kCPU, ranks()}, rank);
    for (int round = 0; round < repetitions(10); ++round) {
      const OnAnotherStream stream(accelerator_of(rank));
      const Tensors results = results_of({accelerator_of(rank), ranks()}, rank);
      ASSERT_EQ(results.size(), expected.size());
      for (size_t i = 0; i < results.size(); ++i) {
        EXPECT_TRUE(is_same(results[i], expected[i])) << "result " << i;
      }
    }
  });
}

// By backends that work in the processor's memory.
class StagedCollectives : public DeviceCollectives {};

TEST_P(StagedCollectives, MayMixDevicesAndTheProcessor) {
  on_each(2, [](int rank) {
    const at::Device device = rank == 0 ? at::Device(at::kCPU) : accelerator_of(1);
    const Tensor t = at::full({100}, rank + 1, at::kLong).to(device);
    dist::all_reduce(t);
    EXPECT_TRUE(at::equal(t.cpu(), at::full({100}, 3, at::kLong)));
  });
}

TEST_P(DeviceCollectives, TakeLeavesThatRequireAGradient) {
  on_each(2, [](int rank) {
    const Tensor leaf =
        at::full({100}, rank + 1, at::kDouble).to(accelerator_of(rank)).requires_grad_();
    dist::all_reduce(leaf);
    dist::all_reduce_coalesced({leaf});
    dist::broadcast(leaf, 1);
    EXPECT_TRUE(leaf.is_leaf() && leaf.requires_grad());
    EXPECT_TRUE(at::equal(leaf.detach().cpu(), at::full({100}, 6, at::kDouble)));
  });
}

TEST_P(DeviceCollectives, AReceiveDoesNotOvertakeWhatReadsTheTensor) {
  on_each(2, [](int rank) {
    for (int round = 0; round < repetitions(20); ++round) {
      const OnAnotherStream stream(accelerator_of(rank));
      const Tensor own = at::full({1000}, rank, at::kLong).to(accelerator_of(rank));
      const Tensor t = own + own;
      const dist::Work sent = dist::isend(own, 1 - rank);
      const Tensor twice = t + t;  // not done when the message is there
      const dist::Work got = dist::irecv(t, 1 - rank);
      got.wait();
      sent.wait();
      EXPECT_TRUE(at::equal((t + t).cpu(), at::full({1000}, 2 * (1 - rank), at::kLong)));
      EXPECT_TRUE(at::equal(twice.cpu(), at::full({1000}, 4 * rank, at::kLong)));
    }
  });
}

// Rows rank, rank + 1 and so on, of a tensor with one row for each and as many more; written late.
Tensor rows_of(int rank, int ranks, at::Device device) {
  const Tensor rows = (at::arange(ranks).view({1, ranks}) + rank).to(device);
  const Tensor values = input_of(rank, 4 * ranks, at::kDouble).view({ranks, 4}).to(device);
  return at::_sparse_coo_tensor_unsafe(rows + at::zeros({1, ranks}, at::kLong).to(device),
                                       values + values, {2 * ranks, 4},
                                       at::TensorOptions(device).layout(at::kSparse));
}

// By NCCL's groups, too: through the processor's memory.
TEST_P(DeviceCollectives, SparseTensorsAreSummedInTheOrderOfTheStreams) {
  on_each(ranks(), [](int rank) {
    Tensor expected = rows_of(rank, ranks(), at::kCPU);
    dist::all_reduce(expected);
    for (int round = 0; round < repetitions(10); ++round) {
      const OnAnotherStream stream(accelerator_of(rank));
      const Tensor sum = rows_of(rank, ranks(), accelerator_of(rank));
      if (round % 2 == 0) {
        dist::all_reduce(sum);
      } else {
        dist::all_reduce_async(sum).wait();
      }
      EXPECT_TRUE(sum.is_sparse() && sum.device() == accelerator_of(rank));
      const Tensor twice = sum._values() + sum._values();
      EXPECT_TRUE(at::equal(twice.cpu(), 2 * expected._values()));
      EXPECT_TRUE(at::equal(sum._indices().cpu(), expected._indices()));
    }
  });
}

// A reduction, and a message from rank 0 to rank 1.
void reduce_and_send(int rank) {
  const Tensor t = at::full({100}, rank + 1, at::kLong).to(accelerator_of(rank));
  dist::all_reduce(t);
  if (rank == 0) {
    dist::send(t + t, 1);
  } else {
    dist::recv(t, 0);
  }
  EXPECT_TRUE(at::equal(t.cpu(), at::full({100}, rank == 0 ? 3 : 6, at::kLong)));
}

TEST_P(StagedCollectives, AskForPinnedMemory) {
  const auto before = requests_of_pinned_memory();
  if (!before) GTEST_SKIP() << kNotCounted;
  on_each(2, reduce_and_send);
  EXPECT_GE(*requests_of_pinned_memory() - *before, 4u);  // of both on each rank
}

TEST_P(StagedCollectives, WhoseDeviceIsNotDoneEndAtTheirDeadline) {
  on_each(2, [](int rank) {
    const OnAnotherStream stream(accelerator_of(rank));
    const Promise<void> go;
    const Tensor t = at::ones({100}, at::kLong).to(accelerator_of(rank));
    const Tensor sparse = rows_of(rank, 2, accelerator_of(rank));
    const dist::Group own = dist::new_group({0, 1});
    if (rank == 1) hold_up_current_stream(accelerator_of(rank), go.future());
    const Error of_sparse =
        error_of([&] { dist::all_reduce(sparse, {.group = own, .timeout = 300ms}); });
    EXPECT_EQ(of_sparse.code(), Code::kTimeout) << of_sparse.what();
    const Error error = error_of([&] { dist::all_reduce(t, {.timeout = 300ms}); });
    go.set_value();
    EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
    if (rank == 1) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("is at was not done in time"));
    }
  });
}

std::vector<BackendKind> staged_kinds() {
  using namespace dist::testing;
  const auto chunk = [](int) { return Chunk{}; };
  return {{"Fake", run_fake, chunk, false},
          {"CpuInThreads", cpu_in_threads(one_host), chunk},
          {"CpuMixed", cpu_in_threads(mixed_hosts), chunk}};
}
std::vector<BackendKind> all_kinds() {
  std::vector<BackendKind> kinds = staged_kinds();
  kinds.push_back(
      {"Nccl", [](int ranks, Millis timeout, const Body& body) { run_nccl(ranks, timeout, body); },
       [](int) { return Chunk{}; }});
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(Each, DeviceCollectives, ::testing::ValuesIn(all_kinds()),
                         [](const auto& kind) { return kind.param.name; });
INSTANTIATE_TEST_SUITE_P(Each, StagedCollectives, ::testing::ValuesIn(staged_kinds()),
                         [](const auto& kind) { return kind.param.name; });

// Those of a backend that gives the device work, and does not wait for it.
class NcclCollectives : public ::testing::Test {
 protected:
  void SetUp() override {
    if (accelerators() < 2) GTEST_SKIP() << kOneEach;
  }
  void TearDown() override { expect_idle_devices(); }
  static void on_each(const Body& body, Millis timeout = 60s) { run_nccl(2, timeout, body); }
  // On the rank's device.
  static Tensor number(int rank, int64_t value) {
    return at::full({100}, value, at::kLong).to(accelerator_of(rank));
  }
  static Tensor number(int rank) { return number(rank, rank + 1); }
};

TEST_F(NcclCollectives, AskForNoPinnedMemory) {
  const auto before = requests_of_pinned_memory();
  if (!before) GTEST_SKIP() << kNotCounted;
  on_each(reduce_and_send);
  EXPECT_EQ(requests_of_pinned_memory(), before);
}

TEST_F(NcclCollectives, ReduceWhatNcclHasOfEachTypeAndRefuseTheRest) {
  const int ranks = std::min(kRanks, accelerators());
  run_nccl(ranks, 60s, [ranks](int rank) {
    const OnAnotherStream stream(accelerator_of(rank));
    expect_reductions_of_nccl({accelerator_of(rank), ranks}, rank);
  });
}

TEST_F(NcclCollectives, GroupsOfSomeRanksGoOnWhileTheWorldWaits) {
  if (accelerators() < kRanks) GTEST_SKIP() << kOneEach;
  const Promise<void> go;
  std::atomic<int> have_looked = 0;
  run_nccl(kRanks, 60s, [&](int rank) {
    const bool is_held = rank == 1;
    const dist::Group made = dist::new_group({2, 0});
    const dist::Group split = dist::split_group(is_held ? 1 : 0);
    const Tensor own = number(rank), of_world = number(rank), of_split = number(rank);
    const Tensor rows = at::empty({2, 100}, own.options());
    dist::all_reduce(of_world);
    dist::all_reduce(of_split, {.group = split});
    if (!is_held) dist::all_gather_into_tensor(rows, own, {.group = made});
    EXPECT_TRUE(at::equal(of_world.cpu(), at::full({100}, 6, at::kLong)));
    EXPECT_TRUE(at::equal(of_split.cpu(), at::full({100}, is_held ? 2 : 4, at::kLong)));

    if (is_held) hold_up_current_stream(accelerator_of(rank), go.future());
    const dist::Work of_all = dist::all_reduce_async(of_world);
    if (!is_held) {
      const dist::Work sum = dist::all_reduce_async(of_split, {.group = split});
      const dist::Work gathered =
          dist::all_gather_into_tensor_async(rows, own + own, {.group = made});
      EXPECT_TRUE(eventually([&] { return sum.is_success() && gathered.is_success(); }));
      EXPECT_FALSE(of_all.is_completed());
      if (++have_looked == 2) go.set_value();
      sum.wait();
      gathered.wait();
      EXPECT_TRUE(at::equal(of_split.cpu(), at::full({100}, 8, at::kLong)));
      // In the order of its own ranks: 2 and 0.
      const Tensor twice = at::tensor({int64_t{6}, int64_t{2}}).view({2, 1}).expand({2, 100});
      EXPECT_TRUE(at::equal(rows.cpu(), twice));
    }
    of_all.wait();
    EXPECT_TRUE(at::equal(of_world.cpu(), at::full({100}, 18, at::kLong)));
  });
}

// More of each than there are streams to choose from.
TEST_F(NcclCollectives, OfGroupsDoNotWaitForThoseThatOtherRanksBeginLater) {
  on_each([](int rank) {
    // Once: the next one could be what a group keeps.
    const OnAnotherStream stream(accelerator_of(rank));
    std::vector<dist::Group> groups{dist::new_group({0, 1}), dist::new_group({0, 1})};
    for (const dist::Group& group : groups) dist::all_reduce(number(rank), {.group = group});
    if (rank == 1) std::ranges::reverse(groups);
    for (int round = 0; round < repetitions(5); ++round) {
      Tensors sums;
      std::vector<dist::Work> works;
      for (const dist::Group& group : groups) {
        for (int call = 0; call < 40; ++call) {
          sums.push_back(number(rank));
          works.push_back(dist::all_reduce_async(sums.back(), {.group = group}));
        }
      }
      for (const dist::Work& work : works) work.wait();
      for (const Tensor& sum : sums) {
        EXPECT_TRUE(at::equal(sum.cpu(), at::full({100}, 3, at::kLong)));
      }
    }
  });
}

TEST_F(NcclCollectives, TheCallerGoesOnAndHisStreamWaits) {
  const Promise<void> go;
  std::atomic<int> have_looked = 0;
  on_each([&](int rank) {
    const OnAnotherStream stream(accelerator_of(rank));
    const Tensor warm = number(rank), t = number(rank), later = number(rank);
    dist::all_reduce(warm);
    hold_up_current_stream(accelerator_of(rank), go.future());
    const dist::Work work = dist::all_reduce_async(t);
    EXPECT_FALSE(work.is_completed());
    EXPECT_EQ(code_of([&] { work.wait(50ms); }), Code::kTimeout);
    work.wait();
    dist::all_reduce(later);
    const Tensor twice = t + t;
    EXPECT_FALSE(work.is_completed());
    if (++have_looked == 2) go.set_value();
    EXPECT_TRUE(at::equal(twice.cpu(), at::full({100}, 6, at::kLong)));
    EXPECT_TRUE(at::equal(later.cpu(), at::full({100}, 3, at::kLong)));
    work.wait(10s);
    EXPECT_TRUE(work.is_completed() && work.is_success());
  });
}

TEST_F(NcclCollectives, WhatIsComputedMeanwhileDoesNotWaitForThem) {
  const Promise<void> go;
  on_each([&](int rank) {
    const OnAnotherStream stream(accelerator_of(rank));
    const Tensor warm = number(rank), t = number(rank);
    dist::all_reduce(warm);
    warm.cpu();
    std::optional<dist::Work> work;
    if (rank == 0) {
      work = dist::all_reduce_async(t);  // rank 1 comes later
      const Tensor computed = warm + warm;
      EXPECT_TRUE(at::equal(computed.cpu(), at::full({100}, 6, at::kLong)));
      EXPECT_FALSE(work->is_completed());
      go.set_value();
    } else {
      go.future().wait();
      work = dist::all_reduce_async(t);
    }
    work->wait();
    EXPECT_TRUE(at::equal((t + t).cpu(), at::full({100}, 6, at::kLong)));
  });
}

TEST_F(NcclCollectives, TensorsMayBeLetGoOfAtOnce) {
  on_each([&](int rank) {
    const OnAnotherStream stream(accelerator_of(rank));
    for (int round = 0; round < repetitions(50); ++round) {
      const Tensor sum = number(rank);
      dist::Work work = dist::all_reduce_async(number(rank));
      Tensor own = number(rank);
      std::vector<Tensor> all{at::empty_like(own), at::empty_like(own)};
      (void)dist::all_gather_async(all, own);
      own = number(rank, 7);  // in the memory of before, if that is free
      all.clear();
      dist::all_reduce(sum);
      EXPECT_TRUE(at::equal(sum.cpu(), at::full({100}, 3, at::kLong)));
    }
  });
}

TEST_F(NcclCollectives, AMessageIsOfTheStreamsOnBothRanks) {
  const Promise<void> go;
  std::atomic<int> have_looked = 0;
  on_each([&](int rank) {
    const OnAnotherStream stream(accelerator_of(rank));
    const Tensor t = number(rank);
    const auto pass = [&] { return rank == 0 ? dist::isend(t, 1) : dist::irecv(t, 0); };
    pass().wait(10s);  // the first one connects them
    if (rank == 0) hold_up_current_stream(accelerator_of(rank), go.future());
    const dist::Work work = pass();
    work.wait();  // for the other rank, and for no device
    const Tensor twice = t + t;
    EXPECT_FALSE(work.is_completed());
    EXPECT_EQ(code_of([&] { work.wait(50ms); }), Code::kTimeout);
    if (rank == 1) {
      EXPECT_EQ(work.source_rank(), 0);
    }
    if (++have_looked == 2) go.set_value();
    EXPECT_TRUE(at::equal(twice.cpu(), at::full({100}, 2, at::kLong)));
    work.wait(10s);
    EXPECT_TRUE(work.is_completed() && work.is_success());
    EXPECT_THAT(dist::default_group()->dump(),
                ::testing::ContainsRegex("of int64 \\[100\\] (to|from) rank .*, took "));
  });
}

TEST_F(NcclCollectives, TensorsOfMessagesMayBeLetGoOfAtOnce) {
  on_each([&](int rank) {
    const OnAnotherStream stream(accelerator_of(rank));
    for (int round = 0; round < repetitions(50); ++round) {
      const Tensor got = number(rank, -1);
      (void)dist::isend(number(rank, round), 1 - rank);
      (void)dist::irecv(number(rank, -1), 1 - rank, {.tag = 1});
      const Tensor other = number(rank, 7);  // in the memory of before, if that is free
      (void)dist::isend(other, 1 - rank, {.tag = 1});
      dist::recv(got, 1 - rank);
      EXPECT_TRUE(at::equal(got.cpu(), at::full({100}, round, at::kLong)));
      EXPECT_TRUE(at::equal(other.cpu(), at::full({100}, 7, at::kLong)));
    }
  });
}

TEST_F(NcclCollectives, AMessageOfADeviceDoesNotGoToTheProcessor) {
  on_each([&](int rank) {
    const Tensor here = number(rank), there = at::full({100}, 1, at::kLong);
    const Error error = error_of(
        [&] { rank == 0 ? dist::send(here, 1) : static_cast<void>(dist::recv(there, 0)); });
    EXPECT_EQ(error.code(), Code::kShapeMismatch) << error.what();
    EXPECT_THAT(error.what(), ::testing::HasSubstr("sent 100 elements of int64 on a device, and"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("of int64 in the processor's memory"));
    rank == 0 ? dist::send(here, 1) : static_cast<void>(dist::recv(here, 0));
    EXPECT_TRUE(at::equal(here.cpu(), at::full({100}, 1, at::kLong)));
    rank == 0 ? static_cast<void>(dist::recv(there, 1)) : dist::send(there + 4, 0);
    EXPECT_EQ(there[0].item<int64_t>(), rank == 0 ? 5 : 1);
  });
}

TEST_F(NcclCollectives, AMistakeOfOneRankIsRefusedHere) {
  on_each([&](int rank) {
    const Tensor here = number(rank), there = here.to(accelerator_of(1 - rank));
    dist::all_reduce(here);
    const Error other = error_of([&] { dist::all_reduce(there); });
    EXPECT_EQ(other.code(), Code::kInvalidArgument) << other.what();
    EXPECT_THAT(other.what(), ::testing::HasSubstr("communicator on device"));
    const Error mixed = error_of([&] {
      dist::all_gather({at::empty({100}, at::kLong), here}, here);
    });
    EXPECT_THAT(mixed.what(), ::testing::HasSubstr("give tensors of one device"));
    const Error bits = error_of([&] { dist::all_reduce(here, {.op = dist::ReduceOp::kBand}); });
    EXPECT_THAT(bits.what(), ::testing::HasSubstr("NCCL has no BAND of int64"));
    dist::all_reduce(here);
    EXPECT_TRUE(at::equal(here.cpu(), at::full({100}, 6, at::kLong)));
  });
}

TEST_F(NcclCollectives, AreRefusedWhileACudaGraphIsCapturedAndGoOnAfterIt) {
  std::latch have_begun(2), have_been_refused(2);
  on_each([&](int rank) {
    const OnAnotherStream stream(accelerator_of(rank));
    const Tensor t = number(rank), got = number(rank);
    dist::all_reduce(t);
    have_begun.arrive_and_wait();
    {
      const CapturedStream captured(t.device());
      const Error errors[] = {error_of([&] { dist::all_reduce(t); }),
                              error_of([&] { (void)dist::isend(t, 1 - rank); })};
      for (const Error& error : errors) {
        EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
        EXPECT_THAT(error.what(), ::testing::HasSubstr("a CUDA graph is being captured"));
      }
      have_been_refused.arrive_and_wait();
    }
    dist::all_reduce(t);
    EXPECT_TRUE(at::equal(t.cpu(), at::full({100}, 6, at::kLong)));
    const dist::Work sent = dist::isend(t, 1 - rank);
    dist::recv(got, 1 - rank);
    sent.wait();
    EXPECT_TRUE(at::equal(got.cpu(), t.cpu()));
  });
}

TEST_F(NcclCollectives, AHangIsTheGroupsFailureThatNamesTheCall) {
  const Promise<void> go;
  std::latch both(2);
  on_each(
      [&](int rank) {
        const Tensor warm = number(rank), t = number(rank);
        dist::all_reduce(warm, {.timeout = 20s});  // it makes the communicator
        warm.cpu();
        const OnAnotherStream stream(accelerator_of(rank));
        if (rank == 1) hold_up_current_stream(accelerator_of(rank), go.future());
        dist::all_reduce(t);  // returns: the device has it
        const dist::Group group = dist::default_group();
        EXPECT_TRUE(eventually([&] { return group->failure().has_value(); }));
        const Error error = error_of([&] { dist::all_reduce(warm); });
        EXPECT_EQ(error.code(), Code::kTimeout) << error.what();
        EXPECT_THAT(error.what(),
                    ::testing::HasSubstr("all_reduce SUM of int64 [100], on a device, call 2 of "
                                         "the default group on worker 'rank " +
                                         std::to_string(rank)));
        EXPECT_THAT(error.what(), ::testing::HasSubstr("its device had not done it"));
        EXPECT_THAT(group->dump(), ::testing::HasSubstr("call 2: all_reduce SUM of int64 [100]"));
        both.arrive_and_wait();
        if (rank == 0) go.set_value();
        go.future().wait();
      },
      500ms);
}

}  // namespace
}  // namespace farspan::testing
