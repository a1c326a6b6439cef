// The rules under test: c10d/group/sparse.h.
#include <ATen/ATen.h>

#include "conformance/collective_suite.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using dist::ReduceOp;

TEST_P(CollectiveSuite, SparseTensorsAreSummed) {
  for (const int ranks : kWorlds) {
    on_each(ranks, [ranks](int rank) {
      // Rank r has r entries, some of them twice.
      const auto make = [](int r) {
        const Tensor at_rows = at::arange(r) % 3, columns = at::arange(r) % 2;
        return at::sparse_coo_tensor(at::stack({at_rows, columns}), at::ones({r, 2}) * (r + 1),
                                     {3, 2, 2});
      };
      Tensor dense = at::zeros({3, 2, 2});
      for (int other = 0; other < ranks; ++other) dense += make(other).to_dense();
      const Tensor own = make(rank);
      dist::all_reduce(own);
      EXPECT_TRUE(own.is_sparse());
      EXPECT_TRUE(at::equal(own.to_dense(), dense));
    });
  }
}

TEST_P(CollectiveSuite, SparseSumsUnderWayFollowEachOther) {
  on_each(3, [](int rank) {
    // Rank r has rows r to r + 2, and none at all in each third turn.
    const auto make = [](int r, int turn) {
      const int64_t rows = (turn + r) % 3 == 0 ? 0 : 3;
      return at::sparse_coo_tensor((at::arange(rows) + r).view({1, rows}),
                                   at::full({rows, 4}, r + turn * 1.0), {6, 4});
    };
    std::vector<Tensor> tensors;
    std::vector<dist::Work> works;
    for (int turn = 0; turn < 100; ++turn) {
      tensors.push_back(make(rank, turn));
      works.push_back(dist::all_reduce_async(tensors.back()));
    }
    for (int turn = 0; turn < 100; ++turn) {
      works[static_cast<size_t>(turn)].wait();
      const Tensor want =
          make(0, turn).to_dense() + make(1, turn).to_dense() + make(2, turn).to_dense();
      EXPECT_TRUE(at::equal(tensors[static_cast<size_t>(turn)].to_dense(), want)) << turn;
    }
  });
}

TEST_P(CollectiveSuite, SparseTensorsAreRefusedWhereTheyHaveNoMeaning) {
  on_each(2, [](int rank) {
    const Tensor sparse = at::eye(3).to_sparse();
    const auto refused = [](const std::function<void()>& call, const std::string& why) {
      const Error error = error_of(call);
      EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
      EXPECT_THAT(error.what(), ::testing::HasSubstr(why));
    };
    refused([&] { dist::all_reduce(sparse, {.op = ReduceOp::kMax}); }, "MAX of a sparse tensor");
    refused([&] { dist::all_reduce(sparse, {.op = ReduceOp::kAvg}); }, "AVG of a sparse tensor");
    refused([&] { dist::broadcast(sparse, 0); }, "not strided");
    refused([&] { dist::reduce(sparse, 0); }, "not strided");
    refused([&] { dist::all_reduce_coalesced({sparse}); }, "not strided");
    refused([&] { dist::all_gather({sparse, sparse}, sparse); }, "not strided");
    dist::all_reduce(sparse);
    EXPECT_TRUE(at::equal(sparse.to_dense(), at::eye(3) * 2)) << "at rank " << rank;
  });
}

}  // namespace
}  // namespace farspan::testing
