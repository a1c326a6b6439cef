// The rule under test: c10d/group/collectives.h. The oracle: expected.h.
#include <algorithm>
#include <cctype>
#include <string>
#include <tuple>

#include <farspan/c10d/group/point_to_point.h>

#include "conformance/combinations.h"
#include "conformance/expected.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using dist::ReduceOp;
using ::testing::HasSubstr;

TEST_P(CollectiveSuite, AllReduce) {
  for (const int ranks : kWorlds) {
    const int64_t chunk = GetParam().chunk(ranks).slice * ranks;
    on_each(ranks, [ranks, chunk](int rank) {
      int64_t salt = 0;
      for_reductions(ranks, [&](ReduceOp::Kind op, at::ScalarType type, const Size& size) {
        const int64_t count = size.of(type, chunk);
        const Tensor own = input_of(rank, count, type, ++salt);
        dist::all_reduce(own, {.op = op_of(op, rank)});
        EXPECT_TRUE(same(own, reduced(op, ranks, count, type, salt)))
            << about(op, type, count, ranks);
      });
    });
  }
}

TEST_P(CollectiveSuite, Reduce) {
  for (const int ranks : kWorlds) {
    const int64_t chunk = GetParam().chunk(ranks).slice * ranks;
    on_each(ranks, [ranks, chunk](int rank) {
      int64_t salt = 0;
      for_reductions(ranks, [&](ReduceOp::Kind op, at::ScalarType type, const Size& size) {
        const int64_t count = size.of(type, chunk);
        const auto root = static_cast<int>(++salt) % ranks;
        const Tensor own = input_of(rank, count, type, salt);
        dist::reduce(own, root, {.op = op_of(op, rank)});
        const Tensor want = rank == root ? reduced(op, ranks, count, type, salt)
                                         : input_of(rank, count, type, salt);
        EXPECT_TRUE(same(own, want)) << about(op, type, count, ranks) << " at rank " << rank;
      });
    });
  }
}

TEST_P(CollectiveSuite, ReduceScatter) {
  for (const int ranks : kWorlds) {
    const int64_t chunk = GetParam().chunk(ranks).slice;
    on_each(ranks, [ranks, chunk](int rank) {
      int64_t salt = 0;
      for_reductions(ranks, [&](ReduceOp::Kind op, at::ScalarType type, const Size& size) {
        const int64_t count = size.of(type, chunk);
        const Tensor own = input_of(rank, count * ranks, type, ++salt);
        const Tensor want =
            reduced(op, ranks, count * ranks, type, salt).narrow(0, rank * count, count);
        const Tensor one = at::zeros({count}, type), two = at::zeros({count}, type);
        dist::reduce_scatter_tensor(one, own, {.op = op_of(op, rank)});
        EXPECT_TRUE(same(one, want)) << about(op, type, count, ranks);
        std::vector<Tensor> list;
        for (int part = 0; part < ranks; ++part) list.push_back(own.narrow(0, part * count, count));
        dist::reduce_scatter(two, list, {.op = op_of(op, rank)});
        EXPECT_TRUE(same(two, want)) << about(op, type, count, ranks) << ", of a list";
      });
    });
  }
}

TEST_P(CollectiveSuite, Broadcast) {
  for (const int ranks : kWorlds) {
    const int64_t chunk = GetParam().chunk(ranks).block;
    on_each(ranks, [ranks, chunk](int rank) {
      int salt = 0;
      for_moves(ranks, [&](at::ScalarType type, const Size& size) {
        const int64_t count = size.of(type, chunk);
        const int root = ++salt % ranks;
        const Tensor own = input_of(rank, count, type, salt);
        dist::broadcast(own, root);
        EXPECT_TRUE(same(own, input_of(root, count, type, salt)))
            << c10::toString(type) << " " << count;
      });
    });
  }
}

TEST_P(CollectiveSuite, AllGather) {
  for (const int ranks : kWorlds) {
    const int64_t chunk = GetParam().chunk(ranks).block;
    on_each(ranks, [ranks, chunk](int rank) {
      int salt = 0;
      for_moves(ranks, [&](at::ScalarType type, const Size& size) {
        const int64_t count = size.of(type, chunk);
        const auto all = inputs(ranks, count, type, ++salt);
        const Tensor& own = all[static_cast<size_t>(rank)];
        std::vector<Tensor> list;
        for (int other = 0; other < ranks; ++other) list.push_back(at::zeros({count}, type));
        dist::all_gather(list, own);
        for (size_t other = 0; other < list.size(); ++other) {
          EXPECT_TRUE(same(list[other], all[other])) << c10::toString(type) << " " << count;
        }
        const Tensor whole = at::zeros({ranks, count}, type);
        dist::all_gather_into_tensor(whole, own);
        EXPECT_TRUE(same(whole.flatten(), at::cat(all))) << c10::toString(type) << " " << count;
      });
    });
  }
}

// As errors have it.
std::string python_name(at::ScalarType type) {
  std::string name = c10::toString(type);
  for (char& one : name) one = static_cast<char>(std::tolower(static_cast<unsigned char>(one)));
  return name;
}

// Among three ranks. The bytes count, since LibTorch compares no numbers of such types.
void expect_moved_and_not_reduced(int rank, at::ScalarType type) {
  const auto element = static_cast<int64_t>(c10::elementSize(type));
  const auto before = static_cast<size_t>((rank + 2) % 3);
  for (const int64_t count : {1, 20'001}) {
    const std::string what = python_name(type) + " " + std::to_string(count);
    const auto all = inputs(3, count * element, at::kByte);
    const Tensor own = all[static_cast<size_t>(rank)].clone(), got = at::zeros_like(own);
    const Tensor whole = at::zeros({3 * count * element}, at::kByte);
    dist::all_gather_into_tensor(whole.view(type), own.view(type));
    EXPECT_TRUE(at::equal(whole, at::cat(all))) << what << ", all_gather";
    const dist::Work sent = dist::isend(own.view(type), (rank + 1) % 3);
    dist::recv(got.view(type), static_cast<int>(before));
    sent.wait();
    EXPECT_TRUE(at::equal(got, all[before])) << what << ", recv";
    dist::broadcast(own.view(type), 1);
    EXPECT_TRUE(at::equal(own, all[1])) << what << ", broadcast";
    for (const ReduceOp::Kind op : kOps) {
      const Error error =
          error_of([&] { dist::all_reduce(own.view(type), {.op = op_of(op, rank)}); });
      EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(" of " + python_name(type) + " has no meaning here"));
    }
    EXPECT_TRUE(at::equal(own, all[1])) << "untouched";
  }
}

TEST_P(CollectiveSuite, FloatsOfEightBitsAreMovedAndNotReduced) {
  on_each(3, [](int rank) {
    for (const auto type : {at::kFloat8_e5m2, at::kFloat8_e4m3fn, at::kFloat8_e5m2fnuz,
                            at::kFloat8_e4m3fnuz, at::kFloat8_e8m0fnu}) {
      expect_moved_and_not_reduced(rank, type);
    }
  });
}

constexpr at::ScalarType kPackedTypes[] = {at::kFloat4_e2m1fn_x2, at::kBits8,   at::kBits16,
                                           at::kBits1x8,          at::kBits2x4, at::kBits4x2};
// Which LibTorch can make, and cannot copy.
constexpr at::ScalarType kTypesBelowAByte[] = {
    at::kInt1,  at::kInt2,  at::kInt3,  at::kInt4,  at::kInt5,  at::kInt6,  at::kInt7,
    at::kUInt1, at::kUInt2, at::kUInt3, at::kUInt4, at::kUInt5, at::kUInt6, at::kUInt7};

TEST_P(CollectiveSuite, PackedTypesAndThoseBelowAByteAreMovedAndNotReduced) {
  on_each(3, [](int rank) {
    for (const auto type : kPackedTypes) expect_moved_and_not_reduced(rank, type);
    for (const auto type : kTypesBelowAByte) expect_moved_and_not_reduced(rank, type);
  });
}

TEST_P(CollectiveSuite, TypesBelowAByteAreMovedWhereTheyDoNotLieInOrder) {
  on_each(2, [](int rank) {
    for (const auto type : kTypesBelowAByte) {
      const Tensor bytes = at::arange(6, at::kByte) + 10 * rank;
      const Tensor part = bytes.view(type).slice(0, 0, 6, 2);
      const Tensor whole = at::zeros({6}, at::kByte);
      dist::all_gather_into_tensor(whole.view(type), part);
      EXPECT_TRUE(at::equal(whole, at::tensor({0, 2, 4, 10, 12, 14}, at::kByte)));
      const Tensor both = at::zeros({6}, at::kByte);
      dist::all_gather_into_tensor_coalesced({both.view(type)}, {part});
      EXPECT_TRUE(at::equal(both, whole)) << "coalesced";
      dist::broadcast(part, 1);
      EXPECT_TRUE(at::equal(bytes.slice(0, 0, 6, 2), at::tensor({10, 12, 14}, at::kByte)));
    }
  });
}

TEST_P(CollectiveSuite, GatherAndScatter) {
  for (const int ranks : kWorlds) {
    const int64_t chunk = GetParam().chunk(ranks).block;
    on_each(ranks, [ranks, chunk](int rank) {
      int salt = 0;
      for_moves(ranks, [&](at::ScalarType type, const Size& size) {
        const int64_t count = size.of(type, chunk);
        const int root = ++salt % ranks;
        const auto all = inputs(ranks, count, type, salt);
        std::vector<Tensor> list;
        for (int other = 0; rank == root && other < ranks; ++other) {
          list.push_back(at::zeros({count}, type));
        }
        dist::gather(all[static_cast<size_t>(rank)], list, root);
        for (size_t other = 0; other < list.size(); ++other) {
          EXPECT_TRUE(same(list[other], all[other])) << c10::toString(type) << " " << count;
        }
        const Tensor back = at::zeros({count}, type);
        dist::scatter(back, list, root);
        EXPECT_TRUE(same(back, all[static_cast<size_t>(rank)]))
            << c10::toString(type) << " " << count;
      });
    });
  }
}

TEST_P(CollectiveSuite, AllToAll) {
  for (const int ranks : kWorlds) {
    const int64_t chunk = GetParam().chunk(ranks).part;
    on_each(ranks, [ranks, chunk](int rank) {
      // What `from` has for `to`.
      const auto part = [&](int from, int to, at::ScalarType type, int64_t count) {
        return input_of(from, count, type, to);
      };
      for_moves(ranks, [&](at::ScalarType type, const Size& size) {
        const int64_t count = size.of(type, chunk);
        std::vector<Tensor> in, out, want;
        for (int other = 0; other < ranks; ++other) {
          in.push_back(part(rank, other, type, count));
          want.push_back(part(other, rank, type, count));
          out.push_back(at::zeros({count}, type));
        }
        dist::all_to_all(out, in);
        for (size_t other = 0; other < out.size(); ++other) {
          EXPECT_TRUE(same(out[other], want[other])) << c10::toString(type) << " " << count;
        }
        const Tensor single = at::zeros({ranks * count}, type);
        dist::all_to_all_single(single, at::cat(in));
        EXPECT_TRUE(same(single, at::cat(want))) << c10::toString(type) << " " << count;
      });
    });
  }
}

TEST_P(CollectiveSuite, TensorsMayBeStridedInAnyWay) {
  on_each(3, [](int rank) {
    const Tensor whole = at::zeros({40, 50});
    const Tensor view = whole.t().slice(1, 0, 40, 2);  // neither dense nor in order
    view.copy_(input_of(rank, 50 * 20, at::kFloat).view({50, 20}));
    dist::all_reduce(view);
    const Tensor sum = expected(ReduceOp::kSum, inputs(3, 1000, at::kFloat)).view({50, 20});
    EXPECT_TRUE(at::equal(view, sum));
    EXPECT_EQ(whole.t().slice(1, 1, 40, 2).abs().sum().item<float>(), 0) << "beside the view";
    const Tensor scalar = at::full({}, rank + 1.0);
    dist::all_reduce(scalar);
    EXPECT_EQ(scalar.item<float>(), 6);
    const Tensor number = at::full({4}, c10::complex<double>(rank, 1));
    const Tensor mirrored = at::_conj(number);
    dist::all_reduce(mirrored);
    EXPECT_TRUE(at::equal(number, at::full({4}, c10::complex<double>(3, 3)))) << "through a view";
  });
}

TEST_P(CollectiveSuite, TensorsOfListsMayBeStridedInAnyWay) {
  on_each(3, [](int rank) {
    const auto strided = [](const Tensor& values) {
      return at::zeros({30, 40}).t().slice(1, 0, 30, 2).copy_(values);
    };
    const auto of = [](int r) { return input_of(r, 600, at::kFloat).view({40, 15}); };
    const auto places = [&] {
      std::vector<Tensor> all;
      for (int other = 0; other < 3; ++other) all.push_back(strided(at::zeros({40, 15})));
      return all;
    };
    const std::vector<Tensor> list = places(), gathered = places(), out = places(), nothing;
    const Tensor own = strided(of(rank)), place = strided(at::zeros({40, 15}));
    dist::all_gather(list, own);
    dist::gather(own, rank == 0 ? gathered : nothing, 0);
    dist::all_to_all(out, {own, own, own});
    for (int other = 0; other < 3; ++other) {
      const auto at_rank = static_cast<size_t>(other);
      EXPECT_TRUE(at::equal(list[at_rank], of(other))) << "all_gather";
      EXPECT_TRUE(rank != 0 || at::equal(gathered[at_rank], of(other))) << "gather";
      EXPECT_TRUE(at::equal(out[at_rank], of(other))) << "all_to_all";
    }
    dist::scatter(place, rank == 1 ? list : nothing, 1);
    EXPECT_TRUE(at::equal(place, of(rank))) << "scatter";
    dist::reduce_scatter(place, list);
    EXPECT_TRUE(at::equal(place, of(rank) * 3)) << "reduce_scatter";
    dist::reduce(own, 2);
    EXPECT_TRUE(at::equal(own, rank == 2 ? of(0) + of(1) + of(2) : of(rank))) << "reduce";
    dist::broadcast(own, 2);
    EXPECT_TRUE(at::equal(own, of(0) + of(1) + of(2))) << "broadcast";
  });
}

TEST_P(CollectiveSuite, ParametersMayTakePart) {
  on_each(2, [](int rank) {
    const Tensor leaf = at::full({3}, rank + 1.0).requires_grad_();
    const auto version = leaf._version();
    dist::all_reduce(leaf);
    EXPECT_TRUE(at::equal(leaf.detach(), at::full({3}, 3.0)));
    EXPECT_GT(leaf._version(), version);
    EXPECT_TRUE(leaf.is_leaf());
  });
}

// Many of each under way at once.
TEST_P(CollectiveSuite, EveryOperationHasAnAsynchronousForm) {
  on_each(3, [](int rank) {
    constexpr int64_t kPart = 700;
    const bool is_first = rank == 0;
    std::vector<dist::Work> works;
    std::vector<std::tuple<std::string, Tensor, Tensor>> results;
    const auto expect = [&](const char* operation, dist::Work work, Tensor got, Tensor want) {
      works.push_back(std::move(work));
      results.emplace_back(operation, std::move(got), std::move(want));
    };
    for (int64_t salt = 0; salt < 25; ++salt) {
      const auto all = inputs(3, kPart, at::kInt, salt);
      const Tensor& own = all[static_cast<size_t>(rank)];
      const Tensor sum = all[0] + all[1] + all[2], joined = at::cat(all);
      const auto whole = [] { return at::zeros({3 * kPart}, at::kInt); };
      const auto at_first = [&](const Tensor& tensor) {
        return is_first ? tensor.split(kPart) : std::vector<Tensor>();
      };
      Tensor x = own.clone();
      expect("broadcast", dist::broadcast_async(x, 1), x, all[1]);
      x = own.clone();
      expect("reduce", dist::reduce_async(x, 0), x, is_first ? sum : own);
      x = own.clone();
      expect("all_reduce_coalesced", dist::all_reduce_coalesced_async({x}), x, sum);
      x = whole();
      expect("all_gather", dist::all_gather_async(x.split(kPart), own), x, joined);
      x = whole();
      expect("all_gather_into_tensor", dist::all_gather_into_tensor_async(x, own), x, joined);
      x = whole();
      expect("all_gather_into_tensor_coalesced",
             dist::all_gather_into_tensor_coalesced_async({x}, {own}), x, joined);
      x = whole();
      expect("gather", dist::gather_async(own, at_first(x), 0), x, is_first ? joined : whole());
      x = at::zeros_like(own);
      expect("scatter", dist::scatter_async(x, at_first(joined), 0), x, own);
      x = at::zeros_like(own);
      expect("reduce_scatter", dist::reduce_scatter_async(x, joined.split(kPart)), x, own * 3);
      x = at::zeros_like(own);
      expect("reduce_scatter_tensor", dist::reduce_scatter_tensor_async(x, joined), x, own * 3);
      x = at::zeros_like(own);
      expect("reduce_scatter_tensor_coalesced",
             dist::reduce_scatter_tensor_coalesced_async({x}, {joined}), x, own * 3);
      x = whole();
      expect("all_to_all", dist::all_to_all_async(x.split(kPart), {own, own, own}), x, joined);
      x = whole();
      expect("all_to_all_single", dist::all_to_all_single_async(x, at::cat({own, own, own})), x,
             joined);
    }
    for (const dist::Work& work : works) work.wait();
    for (const auto& [operation, got, want] : results) {
      EXPECT_TRUE(at::equal(got, want)) << operation;
    }
  });
}

}  // namespace
}  // namespace farspan::testing
