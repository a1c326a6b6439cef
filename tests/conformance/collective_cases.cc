// The rule under test: c10d/group/collectives.h. The oracle is LibTorch in this process, on the
// inputs of all ranks.
#include <algorithm>
#include <string>
#include <tuple>

#include "conformance/combinations.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using dist::ReduceOp;

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

// Of inputs().
Tensor reduced(ReduceOp::Kind op, int ranks, int64_t count, at::ScalarType type, int64_t salt) {
  const int64_t first = std::min(count, kRepeated);
  return repeated(expected(op, inputs(ranks, first, type, salt), 0.5), count);
}

ReduceOp op_of(ReduceOp::Kind kind) {
  return kind == ReduceOp::kPremulSum ? ReduceOp::premul_sum(0.5) : ReduceOp(kind);
}
std::string about(ReduceOp::Kind op, at::ScalarType type, int64_t count, int ranks) {
  return std::string(dist::name_of(op)) + " of " + std::to_string(count) + " " +
         c10::toString(type) + " over " + std::to_string(ranks) + " ranks";
}

TEST_P(CollectiveSuite, AllReduce) {
  for (const int ranks : kWorlds) {
    const int64_t chunk = GetParam().chunk(ranks).slice * ranks;
    on_each(ranks, [ranks, chunk](int rank) {
      int64_t salt = 0;
      for_reductions(ranks, [&](ReduceOp::Kind op, at::ScalarType type, const Size& size) {
        const int64_t count = size.of(type, chunk);
        const Tensor own = input_of(rank, count, type, ++salt);
        dist::all_reduce(own, {.op = op_of(op)});
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
        dist::reduce(own, root, {.op = op_of(op)});
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

TEST_P(CollectiveSuite, FloatsOfEightBitsAreMovedAndNotReduced) {
  on_each(3, [](int rank) {
    for (const auto type : {at::kFloat8_e5m2, at::kFloat8_e4m3fn, at::kFloat8_e5m2fnuz,
                            at::kFloat8_e4m3fnuz, at::kFloat8_e8m0fnu}) {
      for (const int64_t count : {1, 20'001}) {
        std::vector<Tensor> all;
        for (int other = 0; other < 3; ++other) all.push_back(input_of(other, count, at::kByte));
        const Tensor own = all[static_cast<size_t>(rank)].clone();
        const Tensor whole = at::zeros({3 * count}, at::kByte);
        dist::all_gather_into_tensor(whole.view(type), own.view(type));
        EXPECT_TRUE(at::equal(whole, at::cat(all))) << c10::toString(type) << " " << count;
        dist::broadcast(own.view(type), 1);
        EXPECT_TRUE(at::equal(own, all[1])) << c10::toString(type) << " " << count;
        for (const ReduceOp::Kind op : kOps) {
          const Error error =
              error_of([&] { dist::all_reduce(own.view(type), {.op = op_of(op)}); });
          EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
          EXPECT_THAT(error.what(), ::testing::HasSubstr("has no meaning here"));
          EXPECT_THAT(error.what(), ::testing::HasSubstr("of float8_e"));
        }
        EXPECT_TRUE(at::equal(own, all[1])) << "untouched";
      }
    }
  });
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

TEST_P(CollectiveSuite, PartsOfListsMayDifferInSize) {
  for (const int ranks : kWorlds) {
    on_each(ranks, [ranks](int rank) {
      for (const int64_t step : {1, 300, 40'000}) {
        const auto count = [&](int from, int to) { return step * ((from * 3 + to) % 4); };
        std::vector<Tensor> parts, in, out, want;
        const Tensor sum = at::zeros({rank * step}, at::kInt), got = at::zeros_like(sum);
        for (int other = 0; other < ranks; ++other) {
          parts.push_back(input_of(rank, other * step, at::kInt, other));
          sum.add_(input_of(other, rank * step, at::kInt, rank));
          in.push_back(input_of(rank, count(rank, other), at::kInt, other));
          want.push_back(input_of(other, count(other, rank), at::kInt, rank));
          out.push_back(at::zeros_like(want.back()));
        }
        dist::reduce_scatter(got, parts);
        EXPECT_TRUE(at::equal(got, sum)) << "reduce_scatter " << step;
        dist::all_to_all(out, in);
        EXPECT_TRUE(at::equal(at::cat(out), at::cat(want))) << "all_to_all " << step;
      }
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

TEST_P(CollectiveSuite, ManyTensorsInOneOperation) {
  for (const int ranks : kWorlds) {
    on_each(ranks, [ranks](int rank) {
      const std::vector<Tensor> some = {at::full({2, 2}, rank + 1.0), at::full({}, 10.0 * rank),
                                        at::zeros({0}), at::full({5000}, -1.0)};
      dist::all_reduce_coalesced(some);
      EXPECT_TRUE(at::equal(some[0], at::full({2, 2}, ranks * (ranks + 1) / 2.0)));
      EXPECT_EQ(some[1].item<float>(), 5 * ranks * (ranks - 1));
      EXPECT_TRUE(at::equal(some[3], at::full({5000}, -1.0 * ranks)));
    });
  }
}

TEST_P(CollectiveSuite, ManyTensorsAreGatheredAndScatteredInOneOperation) {
  for (const int ranks : kWorlds) {
    on_each(ranks, [ranks](int rank) {
      const auto input = [](int r) {
        return std::vector<Tensor>{input_of(r, 6, at::kInt).reshape({2, 3}).t(),
                                   input_of(r, 0, at::kInt), input_of(r, 5000, at::kInt)};
      };
      std::vector<Tensor> outputs, parts;
      for (const Tensor& one : input(0)) {
        outputs.push_back(at::zeros({ranks * one.numel()}, at::kInt));
        parts.push_back(at::zeros({one.numel()}, at::kInt));
      }
      dist::all_gather_into_tensor_coalesced(outputs, input(rank));
      for (size_t i = 0; i < outputs.size(); ++i) {
        std::vector<Tensor> want;
        for (int r = 0; r < ranks; ++r) want.push_back(input(r)[i].reshape({-1}));
        EXPECT_TRUE(at::equal(outputs[i], at::cat(want))) << i;
      }
      dist::reduce_scatter_tensor_coalesced_async(parts, outputs).wait();
      for (size_t i = 0; i < parts.size(); ++i) {
        EXPECT_TRUE(at::equal(parts[i], ranks * input(rank)[i].reshape({-1}))) << i;
      }
      const auto refused = [&](const std::vector<Tensor>& out) {
        EXPECT_EQ(code_of([&] { dist::all_gather_into_tensor_coalesced(out, input(rank)); }),
                  Code::kInvalidArgument);
      };
      refused({outputs[0], outputs[1]});
      refused({outputs[0], outputs[0], outputs[2]});
      refused({outputs[0], outputs[1], outputs[2].to(at::kFloat)});
    });
  }
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
