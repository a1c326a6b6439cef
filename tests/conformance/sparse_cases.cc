// The rules under test: c10d/group/sparse.h.
#include <ATen/ATen.h>

#include "conformance/combinations.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using dist::ReduceOp;

// What rank `rank` has in a tensor [rows, 2, width]: so many entries, some of them twice.
Tensor entries_of(int rank, int64_t entries, int64_t rows, int64_t width, at::ScalarType type) {
  const Tensor index = at::arange(entries);
  return at::sparse_coo_tensor(at::stack({(index * 3 + rank) % rows, index % 2}),
                               input_of(rank, entries * width, type).view({entries, width}),
                               {rows, 2, width});
}

TEST_P(CollectiveSuite, SparseTensorsAreSummed) {
  for (const int ranks : kWorlds) {
    const int64_t chunk = GetParam().chunk(ranks).block;
    on_each(ranks, [ranks, chunk](int rank) {
      for_some_types(ranks, {{1}, {40}, {7, 0, 1}}, [&](at::ScalarType type, const Size& size) {
        const int64_t step = size.chunks > 0 ? size.of(type, chunk) / 4 + 1 : size.elements;
        const auto make = [&](int r) { return entries_of(r, r % 3 * step, step + 2, 4, type); };
        Tensor dense = at::zeros({step + 2, 2, 4}, type);
        for (int other = 0; other < ranks; ++other) dense += make(other).to_dense();
        const Tensor own = make(rank);
        dist::all_reduce(own);
        EXPECT_TRUE(own.is_sparse());
        EXPECT_TRUE(same(own.to_dense(), dense)) << c10::toString(type) << " " << step;
      });
    });
  }
}

// Numbers of which each sum is rounded.
TEST_P(CollectiveSuite, SparseSumsAreRoundedOnceInTheOrderOfTheRanksAndTheSameBitsEverywhere) {
  on_each(5, [](int rank) {
    for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat}) {
      const auto make = [type](int r) {
        const Tensor index = at::arange(900).view({1, 900}) + 50 * r;
        const Tensor third = (at::arange(900 * 3, at::kDouble).view({900, 3}) + 1) / (3 + r);
        const Tensor values =
            c10::isComplexType(type) ? at::complex(third, third.cos()) : third.cos();
        return at::sparse_coo_tensor(index, values.to(type), {1200, 3});
      };
      const Tensor sum = make(rank);
      dist::all_reduce(sum);
      const bool is_short = c10::elementSize(type) == 2;
      Tensor want = at::zeros({1200, 3}, is_short ? at::kFloat : type);
      for (int other = 0; other < 5; ++other) want += make(other).to_dense().to(want.scalar_type());
      EXPECT_TRUE(at::equal(sum.to_dense(), want.to(type))) << c10::toString(type);
      const Tensor bits = at::view_as_real(sum.values().to(at::kComplexDouble)).clone();
      const Tensor first = bits.clone();
      dist::broadcast(first, 0);
      EXPECT_TRUE(at::equal(bits, first)) << c10::toString(type) << " at rank " << rank;
    }
  });
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
