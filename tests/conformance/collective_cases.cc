// The rule under test: c10d/group/collectives.h. The oracle is LibTorch in this process, on the
// inputs of all ranks.
#include "conformance/collective_suite.h"

#include <farspan/c10d/group/tensor_block.h>

#include <ATen/ops/stack.h>

#include <string>

namespace farspan::testing {
namespace {

using at::Tensor;
using dist::ReduceOp;

constexpr at::ScalarType kTypes[] = {
    at::kByte,         at::kChar,          at::kShort,  at::kInt,    at::kLong,
    at::kHalf,         at::kBFloat16,      at::kFloat,  at::kDouble, at::kBool,
    at::kComplexFloat, at::kComplexDouble, at::kUInt16, at::kUInt32, at::kUInt64};
constexpr ReduceOp::Kind kOps[] = {ReduceOp::kSum, ReduceOp::kAvg,  ReduceOp::kProduct,
                                   ReduceOp::kMin, ReduceOp::kMax,  ReduceOp::kBand,
                                   ReduceOp::kBor, ReduceOp::kBxor, ReduceOp::kPremulSum};
// Elements: none, one, odd, about what travels with the call, about a chunk. For many chunks see
// LargeTensors.
constexpr int64_t kSizes[] = {0, 1, 7, 1023, 2047, 2048, 2049, 4097, 16384, 20'001};

std::vector<Tensor> inputs(int ranks, int64_t count, at::ScalarType type, int64_t salt) {
  std::vector<Tensor> all;
  for (int rank = 0; rank < ranks; ++rank) all.push_back(input_of(rank, count, type, salt));
  return all;
}

// In a type that LibTorch reduces, and that is exact for what input_of() makes.
Tensor wide(const Tensor& tensor) {
  if (tensor.is_complex()) return tensor.to(at::kComplexDouble);
  return c10::isIntegralType(tensor.scalar_type(), true) ? tensor.to(at::kLong)
                                                         : tensor.to(at::kDouble);
}

Tensor expected(ReduceOp::Kind op, const std::vector<Tensor>& all, double factor) {
  const auto type = all.front().scalar_type();
  std::vector<Tensor> wides;
  for (const Tensor& one : all) wides.push_back(wide(one));
  Tensor result = wides.front().clone();
  for (size_t rank = 1; rank < wides.size(); ++rank) {
    const Tensor& next = wides[rank];
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAvg:
      case ReduceOp::kPremulSum:
        result = result + next;
        break;
      case ReduceOp::kProduct:
        result = result * next;
        break;
      case ReduceOp::kMin:
        result = at::minimum(result, next);
        break;
      case ReduceOp::kMax:
        result = at::maximum(result, next);
        break;
      case ReduceOp::kBand:
        result = at::bitwise_and(result, next);
        break;
      case ReduceOp::kBor:
        result = at::bitwise_or(result, next);
        break;
      case ReduceOp::kBxor:
        result = at::bitwise_xor(result, next);
        break;
    }
  }
  if (op == ReduceOp::kAvg) {  // part by part: LibTorch divides complex numbers by complex ones
    const auto ranks = static_cast<double>(all.size());
    result = result.is_complex() ? at::view_as_complex(at::view_as_real(result) / ranks)
                                 : result / ranks;
  }
  if (op == ReduceOp::kPremulSum) result = result * factor;
  return type == at::kBool ? result != 0 : result.to(type);
}

// LibTorch compares no unsigned numbers of more than a byte.
bool same(const Tensor& one, const Tensor& other) {
  return one.scalar_type() == other.scalar_type() && at::equal(wide(one), wide(other));
}

ReduceOp op_of(ReduceOp::Kind kind) {
  return kind == ReduceOp::kPremulSum ? ReduceOp::premul_sum(0.5) : ReduceOp(kind);
}
bool has_meaning(ReduceOp::Kind op, at::ScalarType type) {
  return dist::why_not(op, dist::dtype_of(at::empty({0}, type))).empty();
}
std::string about(ReduceOp::Kind op, at::ScalarType type, int64_t count, int ranks) {
  return std::string(dist::name_of(op)) + " of " + std::to_string(count) + " " +
         c10::toString(type) + " over " + std::to_string(ranks) + " ranks";
}

// Calls `body` with each operation and type that make sense, and sizes in turn: every pair of two
// of the three is met over all worlds. With FARSPAN_ALL_COMBINATIONS set, all of them.
void for_reductions(int ranks,
                    const std::function<void(ReduceOp::Kind, at::ScalarType, int64_t)>& body) {
  static const bool all = std::getenv("FARSPAN_ALL_COMBINATIONS") != nullptr;
  size_t turn = static_cast<size_t>(ranks);
  for (const ReduceOp::Kind op : kOps) {
    for (const at::ScalarType type : kTypes) {
      if (!has_meaning(op, type)) continue;
      if (all) {
        for (const int64_t count : kSizes) body(op, type, count);
      } else {
        body(op, type, kSizes[turn++ % std::size(kSizes)]);
      }
    }
  }
}

TEST_P(CollectiveSuite, AllReduce) {
  for (const int ranks : kWorlds) {
    on_each(ranks, [ranks](int rank) {
      int64_t salt = 0;
      for_reductions(ranks, [&](ReduceOp::Kind op, at::ScalarType type, int64_t count) {
        const auto all = inputs(ranks, count, type, ++salt);
        const Tensor own = all[static_cast<size_t>(rank)].clone();
        dist::all_reduce(own, {.op = op_of(op)});
        EXPECT_TRUE(same(own, expected(op, all, 0.5))) << about(op, type, count, ranks);
      });
    });
  }
}

TEST_P(CollectiveSuite, Reduce) {
  for (const int ranks : kWorlds) {
    on_each(ranks, [ranks](int rank) {
      int64_t salt = 0;
      for_reductions(ranks, [&](ReduceOp::Kind op, at::ScalarType type, int64_t count) {
        const auto all = inputs(ranks, count, type, ++salt);
        const auto root = static_cast<int>(salt) % ranks;
        const Tensor own = all[static_cast<size_t>(rank)].clone();
        dist::reduce(own, root, {.op = op_of(op)});
        const Tensor want = rank == root ? expected(op, all, 0.5) : all[static_cast<size_t>(rank)];
        EXPECT_TRUE(same(own, want)) << about(op, type, count, ranks) << " at rank " << rank;
      });
    });
  }
}

TEST_P(CollectiveSuite, ReduceScatter) {
  for (const int ranks : kWorlds) {
    on_each(ranks, [ranks](int rank) {
      int64_t salt = 0;
      for_reductions(ranks, [&](ReduceOp::Kind op, at::ScalarType type, int64_t whole) {
        const int64_t count = whole / ranks;
        const auto all = inputs(ranks, count * ranks, type, ++salt);
        const Tensor want = expected(op, all, 0.5).narrow(0, rank * count, count);
        const Tensor& own = all[static_cast<size_t>(rank)];
        const Tensor one = at::zeros({count}, type), two = at::zeros({count}, type);
        dist::reduce_scatter_tensor(one, own, {.op = op_of(op)});
        EXPECT_TRUE(same(one, want)) << about(op, type, count, ranks);
        std::vector<Tensor> list;
        for (int part = 0; part < ranks; ++part) list.push_back(own.narrow(0, part * count, count));
        dist::reduce_scatter(two, list, {.op = op_of(op)});
        EXPECT_TRUE(same(two, want)) << about(op, type, count, ranks) << ", of a list";
      });
    });
  }
}

// Those that only move elements: every type and size.
void for_moves(int ranks, const std::function<void(at::ScalarType, int64_t)>& body) {
  size_t turn = static_cast<size_t>(ranks);
  for (const at::ScalarType type : kTypes) {
    for (int some = 0; some < 2; ++some) body(type, kSizes[turn++ % std::size(kSizes)]);
  }
}

TEST_P(CollectiveSuite, Broadcast) {
  for (const int ranks : kWorlds) {
    on_each(ranks, [ranks](int rank) {
      int salt = 0;
      for_moves(ranks, [&](at::ScalarType type, int64_t count) {
        const int root = ++salt % ranks;
        const auto all = inputs(ranks, count, type, salt);
        const Tensor own = all[static_cast<size_t>(rank)].clone();
        dist::broadcast(own, root);
        EXPECT_TRUE(same(own, all[static_cast<size_t>(root)]))
            << c10::toString(type) << " " << count;
      });
    });
  }
}

TEST_P(CollectiveSuite, AllGather) {
  for (const int ranks : kWorlds) {
    on_each(ranks, [ranks](int rank) {
      int salt = 0;
      for_moves(ranks, [&](at::ScalarType type, int64_t count) {
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

TEST_P(CollectiveSuite, AllGatherOfUnequalSizes) {
  for (const int ranks : kWorlds) {
    on_each(ranks, [ranks](int rank) {
      for (const int64_t step : {0, 1, 1000, 70'000}) {
        std::vector<Tensor> all, list;
        for (int other = 0; other < ranks; ++other) {
          all.push_back(input_of(other, other * step, at::kInt));
          list.push_back(at::zeros_like(all.back()));
        }
        dist::all_gather(list, all[static_cast<size_t>(rank)]);
        for (size_t other = 0; other < list.size(); ++other) {
          EXPECT_TRUE(same(list[other], all[other])) << step;
        }
      }
    });
  }
}

TEST_P(CollectiveSuite, GatherAndScatter) {
  for (const int ranks : kWorlds) {
    on_each(ranks, [ranks](int rank) {
      int salt = 0;
      for_moves(ranks, [&](at::ScalarType type, int64_t count) {
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
    on_each(ranks, [ranks](int rank) {
      // What `from` has for `to`.
      const auto part = [&](int from, int to, at::ScalarType type, int64_t count) {
        return input_of(from, count, type, to);
      };
      for_moves(ranks, [&](at::ScalarType type, int64_t count) {
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

TEST_P(CollectiveSuite, AllToAllOfUnequalSizes) {
  for (const int ranks : kWorlds) {
    on_each(ranks, [ranks](int rank) {
      for (const int64_t step : {1, 300, 40'000}) {
        const auto rows = [&](int from, int to) { return step * ((from * 3 + to) % 4); };
        std::vector<int64_t> in_rows, out_rows;
        std::vector<Tensor> in, want;
        for (int other = 0; other < ranks; ++other) {
          in_rows.push_back(rows(rank, other));
          out_rows.push_back(rows(other, rank));
          in.push_back(input_of(rank, 2 * in_rows.back(), at::kFloat, other).view({-1, 2}));
          want.push_back(input_of(other, 2 * out_rows.back(), at::kFloat, rank).view({-1, 2}));
        }
        const Tensor expected_rows = at::cat(want), out = at::zeros_like(expected_rows);
        dist::all_to_all_single(out, at::cat(in), out_rows, in_rows);
        EXPECT_TRUE(at::equal(out, expected_rows)) << step;
      }
    });
  }
}

// More chunks than a rank may be ahead of the others, and the last one short.
TEST_P(CollectiveSuite, LargeTensors) {
  for (const int ranks : {2, 3}) {
    on_each(ranks, [ranks](int rank) {
      const int64_t part = 500'003, whole = part * ranks;
      const auto all = inputs(ranks, whole, at::kInt, 1);
      const Tensor sum = expected(ReduceOp::kSum, all, 1);
      const Tensor& own = all[static_cast<size_t>(rank)];
      const int last = ranks - 1;
      Tensor got = own.clone();
      dist::all_reduce(got);
      EXPECT_TRUE(at::equal(got, sum)) << "all_reduce";
      got = own.clone();
      dist::reduce(got, last);
      EXPECT_TRUE(at::equal(got, rank == last ? sum : own)) << "reduce";
      got = own.clone();
      dist::broadcast(got, last);
      EXPECT_TRUE(at::equal(got, all.back())) << "broadcast";
      got = at::zeros({part}, at::kInt);
      dist::reduce_scatter_tensor(got, own);
      EXPECT_TRUE(at::equal(got, sum.narrow(0, rank * part, part))) << "reduce_scatter";
      got = at::zeros({whole * ranks}, at::kInt);
      dist::all_gather_into_tensor(got, own);
      EXPECT_TRUE(at::equal(got, at::cat(all))) << "all_gather";
      const auto parts_of = [&](const Tensor& tensor) { return tensor.split(part); };
      std::vector<Tensor> in = parts_of(own), out;
      for (int other = 0; other < ranks; ++other) out.push_back(at::zeros({part}, at::kInt));
      dist::all_to_all(out, in);
      for (size_t other = 0; other < out.size(); ++other) {
        const Tensor want = parts_of(all[other])[static_cast<size_t>(rank)];
        EXPECT_TRUE(at::equal(out[other], want)) << "all_to_all";
      }
      const std::vector<Tensor> nothing;
      dist::scatter(out[0], rank == 0 ? parts_of(all[0]) : nothing, 0);
      EXPECT_TRUE(at::equal(out[0], parts_of(all[0])[static_cast<size_t>(rank)])) << "scatter";
      dist::gather(out[0], rank == 0 ? parts_of(got.narrow(0, 0, whole).zero_()) : nothing, 0);
      EXPECT_TRUE(rank != 0 || at::equal(got.narrow(0, 0, whole), all[0])) << "gather";
    });
  }
}

TEST_P(CollectiveSuite, TensorsMayBeStridedInAnyWay) {
  on_each(3, [](int rank) {
    const Tensor whole = at::zeros({40, 50});
    const Tensor view = whole.t().slice(1, 0, 40, 2);  // neither dense nor in order
    view.copy_(input_of(rank, 50 * 20, at::kFloat).view({50, 20}));
    dist::all_reduce(view);
    const Tensor sum = expected(ReduceOp::kSum, inputs(3, 1000, at::kFloat, 0), 1).view({50, 20});
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

TEST_P(CollectiveSuite, ManyTensorsInOneOperation) {
  on_each(3, [](int rank) {
    const std::vector<Tensor> some = {at::full({2, 2}, rank + 1.0), at::full({}, 10.0 * rank),
                                      at::zeros({0}), at::full({5000}, -1.0)};
    dist::all_reduce_coalesced(some);
    EXPECT_TRUE(at::equal(some[0], at::full({2, 2}, 6.0)));
    EXPECT_EQ(some[1].item<float>(), 30);
    EXPECT_TRUE(at::equal(some[3], at::full({5000}, -3.0)));
  });
}

TEST_P(CollectiveSuite, SparseTensorsAreSummed) {
  for (const int ranks : {1, 2, 4}) {
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

}  // namespace
}  // namespace farspan::testing
