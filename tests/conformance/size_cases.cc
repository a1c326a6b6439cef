// The rule under test: c10d/group/collectives.h, for sizes at which a backend cuts what it moves.
#include <farspan/c10d/group/point_to_point.h>

#include "conformance/collective_suite.h"

namespace farspan::testing {
namespace {

using at::Tensor;

// Expect: each operation, of parts of so many elements, and of as many parts as there are ranks.
void run_every_operation(int rank, int ranks, int64_t part, at::ScalarType type) {
  const int64_t whole = part * ranks;
  const std::string what = " of " + std::to_string(part) + " over " + std::to_string(ranks);
  const auto all = inputs(ranks, whole, type, 1);
  Tensor sum = at::zeros({whole}, type);
  for (const Tensor& one : all) sum += one;
  const Tensor& own = all[static_cast<size_t>(rank)];
  const int last = ranks - 1;
  for (const int64_t count : {part, whole}) {
    const auto begin = [&](const Tensor& tensor) { return tensor.narrow(0, 0, count); };
    Tensor got = begin(own).clone();
    dist::all_reduce(got);
    EXPECT_TRUE(at::equal(got, begin(sum))) << "all_reduce" << what;
    got = begin(own).clone();
    dist::reduce(got, last);
    EXPECT_TRUE(at::equal(got, begin(rank == last ? sum : own))) << "reduce" << what;
    got = begin(own).clone();
    dist::broadcast(got, last);
    EXPECT_TRUE(at::equal(got, begin(all.back()))) << "broadcast" << what;
    got = at::zeros({count * ranks}, type);
    dist::all_gather_into_tensor(got, begin(own));
    std::vector<Tensor> want;
    for (const Tensor& one : all) want.push_back(begin(one));
    EXPECT_TRUE(at::equal(got, at::cat(want))) << "all_gather" << what;
  }
  const auto parts_of = [&](const Tensor& tensor) { return tensor.split(part); };
  const auto at_rank = static_cast<size_t>(rank);
  const Tensor got = at::zeros({part}, type), gathered = at::zeros({whole}, type);
  const std::vector<Tensor> out = parts_of(at::zeros({whole}, type)), nothing;
  dist::reduce_scatter_tensor(got, own);
  EXPECT_TRUE(at::equal(got, parts_of(sum)[at_rank])) << "reduce_scatter" << what;
  dist::all_to_all(out, parts_of(own));
  for (size_t other = 0; other < out.size(); ++other) {
    EXPECT_TRUE(at::equal(out[other], parts_of(all[other])[at_rank])) << "all_to_all" << what;
  }
  dist::scatter(got, rank == 0 ? parts_of(all[0]) : nothing, 0);
  EXPECT_TRUE(at::equal(got, parts_of(all[0])[at_rank])) << "scatter" << what;
  dist::gather(got, rank == 0 ? parts_of(gathered) : nothing, 0);
  EXPECT_TRUE(rank != 0 || at::equal(gathered, all[0])) << "gather" << what;
}

TEST_P(CollectiveSuite, TensorsOfAboutAChunk) {
  for (const int ranks : {2, 5}) {
    on_each(ranks, [ranks](int rank) {
      for (const int64_t part : kAboutAChunk) run_every_operation(rank, ranks, part, at::kFloat);
    });
  }
}

// More chunks than a rank may be ahead of the others, and the last one short.
TEST_P(CollectiveSuite, LargeTensors) {
  for (const int ranks : {2, 3}) {
    on_each(ranks, [ranks](int rank) { run_every_operation(rank, ranks, 500'003, at::kInt); });
  }
}

// Sizes that 32 bits do not hold, at every place where they are counted in bytes or in elements.
TEST_P(CollectiveSuite, MoreThanTwoGibibytes) {
  if (!all_combinations()) GTEST_SKIP() << "it needs 5 GiB: set FARSPAN_ALL_COMBINATIONS";
  constexpr int64_t kCount = (int64_t{1} << 31) + 4099;
  on_each(2, [](int rank) {
    const Tensor x = at::empty({kCount}, at::kChar);
    const auto fill = [&] { x.fill_(rank + 1).narrow(0, kCount - 7, 7).fill_(10 * (rank + 1)); };
    const auto holds = [](const Tensor& tensor, int most, int last) {
      for (const Tensor& piece : tensor.narrow(0, 0, kCount - 7).split(int64_t{64} << 20)) {
        if (!piece.eq(most).all().item<bool>()) return false;
      }
      return tensor.narrow(0, kCount - 7, 7).eq(last).all().item<bool>();
    };
    fill();
    dist::all_reduce(x);
    EXPECT_TRUE(holds(x, 3, 30)) << "all_reduce";
    fill();
    dist::broadcast(x, 1);
    EXPECT_TRUE(holds(x, 2, 20)) << "broadcast";
    fill();
    if (rank == 0) {
      dist::send(x, 1);
    } else {
      dist::recv(x, 0);
      EXPECT_TRUE(holds(x, 1, 10)) << "send";
    }
    dist::barrier();
  });
}

}  // namespace
}  // namespace farspan::testing
