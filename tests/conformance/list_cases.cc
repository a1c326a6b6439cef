// The rules under test: c10d/group/collectives.h: parts that differ in size, and many tensors in
// one operation. The oracle: expected.h.
#include <algorithm>

#include "conformance/combinations.h"
#include "conformance/expected.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using dist::ReduceOp;

// Of those that make sense for the type; of what takes long, one.
std::vector<ReduceOp::Kind> some_ops(at::ScalarType type, const Size& size) {
  if (size.chunks > 0 && type == at::kHalf) return {ReduceOp::kAvg};
  if (size.chunks > 0 && type == at::kLong) return {ReduceOp::kMax};
  if (size.chunks > 0 && type != at::kFloat) return {ReduceOp::kPremulSum};
  std::vector<ReduceOp::Kind> ops;
  std::ranges::copy_if(std::initializer_list<ReduceOp::Kind>{ReduceOp::kSum, ReduceOp::kAvg,
                                                             ReduceOp::kMax, ReduceOp::kPremulSum},
                       std::back_inserter(ops),
                       [type](ReduceOp::Kind op) { return has_meaning(op, type); });
  return ops;
}

// What rank `from` has for rank `to`.
int64_t parts_of(int from, int to) { return (from * 3 + to) % 4; }

TEST_P(CollectiveSuite, AllGatherOfUnequalSizes) {
  for (const int ranks : kWorlds) {
    const int64_t chunk = GetParam().chunk(ranks).block;
    on_each(ranks, [ranks, chunk](int rank) {
      for_some_types(
          ranks, {{0}, {1}, {1000}, {7, 0, 1}}, [&](at::ScalarType type, const Size& size) {
            const int64_t step = size.of(type, chunk);
            std::vector<Tensor> all, list;
            for (int other = 0; other < ranks; ++other) {
              all.push_back(input_of(other, other % 4 * step, type));
              list.push_back(at::zeros_like(all.back()));
            }
            dist::all_gather(list, all[static_cast<size_t>(rank)]);
            for (size_t other = 0; other < list.size(); ++other) {
              EXPECT_TRUE(same(list[other], all[other])) << step << " " << c10::toString(type);
            }
          });
    });
  }
}

TEST_P(CollectiveSuite, AllToAllOfUnequalSizes) {
  for (const int ranks : kWorlds) {
    const int64_t chunk = GetParam().chunk(ranks).part;
    on_each(ranks, [ranks, chunk](int rank) {
      for_some_types(ranks, {{1}, {300}, {7, 0, 1}}, [&](at::ScalarType type, const Size& size) {
        const int64_t step = size.of(type, chunk);
        std::vector<int64_t> in_rows, out_rows;
        std::vector<Tensor> in, out, want;
        for (int other = 0; other < ranks; ++other) {
          in_rows.push_back(step * parts_of(rank, other));
          out_rows.push_back(step * parts_of(other, rank));
          in.push_back(input_of(rank, 2 * in_rows.back(), type, other).view({-1, 2}));
          want.push_back(input_of(other, 2 * out_rows.back(), type, rank).view({-1, 2}));
          out.push_back(at::zeros_like(want.back()));
        }
        const Tensor rows = at::cat(want), single = at::zeros_like(rows);
        dist::all_to_all_single(single, at::cat(in), out_rows, in_rows);
        EXPECT_TRUE(same(single, rows)) << step << " " << c10::toString(type);
        dist::all_to_all(out, in);
        EXPECT_TRUE(same(at::cat(out), rows)) << step << " " << c10::toString(type) << ", lists";
      });
    });
  }
}

TEST_P(CollectiveSuite, PartsOfListsMayDifferInSize) {
  for (const int ranks : kWorlds) {
    const int64_t chunk = GetParam().chunk(ranks).slice;
    on_each(ranks, [ranks, chunk](int rank) {
      for_some_types(ranks, {{1}, {300}, {7, 0, 1}}, [&](at::ScalarType type, const Size& size) {
        const int64_t step = size.of(type, chunk);
        const auto count = [step](int part) { return part % 4 * step; };
        std::vector<Tensor> parts, own;  // this rank's of all, and all ranks' of this one
        for (int other = 0; other < ranks; ++other) {
          parts.push_back(input_of(rank, count(other), type, other));
          own.push_back(input_of(other, count(rank), type, rank));
        }
        for (const ReduceOp::Kind op : some_ops(type, size)) {
          const Tensor got = at::zeros({count(rank)}, type);
          dist::reduce_scatter(got, parts, {.op = op_of(op, rank)});
          EXPECT_TRUE(same(got, expected(op, own))) << about(op, type, step, ranks);
        }
      });
    });
  }
}

// Some that lie in no order, one without dimensions, and one without elements.
std::vector<Tensor> many_of(int rank, int64_t count, at::ScalarType type, int64_t salt = 0) {
  return {input_of(rank, 6, type, salt).view({2, 3}).t(), input_of(rank, 1, type, salt + 1)[0],
          input_of(rank, 0, type), input_of(rank, count, type, salt + 2)};
}

// The same of all ranks: entry i has what each has as number i.
std::vector<std::vector<Tensor>> many_of_all(int ranks, int64_t count, at::ScalarType type) {
  std::vector<std::vector<Tensor>> all(4);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<Tensor> own = many_of(rank, count, type);
    for (size_t i = 0; i < all.size(); ++i) all[i].push_back(own[i]);
  }
  return all;
}

void expect_reduced_in_one_operation(ReduceOp::Kind op, int ranks, int rank,
                                     const std::vector<std::vector<Tensor>>& all) {
  std::vector<Tensor> own;
  for (const auto& each : all) own.push_back(each[static_cast<size_t>(rank)].clone());
  dist::all_reduce_coalesced(own, {.op = op_of(op, rank)});
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_TRUE(same(own[i], expected(op, all[i])))
        << about(op, own[i].scalar_type(), own[i].numel(), ranks) << ", number " << i;
  }
}

TEST_P(CollectiveSuite, ManyTensorsInOneOperation) {
  for (const int ranks : kWorlds) {
    const int64_t chunk = GetParam().chunk(ranks).slice * ranks;
    on_each(ranks, [ranks, chunk](int rank) {
      for_some_types(ranks, {{1}, {5000}, {7, 0, 1}}, [&](at::ScalarType type, const Size& size) {
        const auto all = many_of_all(ranks, size.of(type, chunk), type);
        for (const ReduceOp::Kind op : some_ops(type, size)) {
          expect_reduced_in_one_operation(op, ranks, rank, all);
        }
      });
    });
  }
}

TEST_P(CollectiveSuite, ManyTensorsOfEveryTypeAreReducedInOneOperation) {
  on_each(3, [](int rank) {
    for (const at::ScalarType type : kTypes) {
      const auto all = many_of_all(3, 40, type);
      for (const ReduceOp::Kind op : kOps) {
        if (has_meaning(op, type)) expect_reduced_in_one_operation(op, 3, rank, all);
      }
    }
  });
}

TEST_P(CollectiveSuite, ManyTensorsAreGatheredInOneOperation) {
  for (const int ranks : kWorlds) {
    const int64_t chunk = GetParam().chunk(ranks).block;
    on_each(ranks, [ranks, chunk](int rank) {
      for_some_types(ranks, {{1}, {5000}, {7, 0, 1}}, [&](at::ScalarType type, const Size& size) {
        const int64_t count = size.of(type, chunk);
        const auto all = many_of_all(ranks, count, type);
        std::vector<Tensor> own, outputs;
        for (const auto& each : all) own.push_back(each[static_cast<size_t>(rank)]);
        for (const Tensor& one : own) outputs.push_back(at::zeros({ranks * one.numel()}, type));
        dist::all_gather_into_tensor_coalesced(outputs, own);
        for (size_t i = 0; i < outputs.size(); ++i) {
          std::vector<Tensor> want;
          for (const Tensor& one : all[i]) want.push_back(one.reshape(-1));
          EXPECT_TRUE(same(outputs[i], at::cat(want)))
              << count << " " << c10::toString(type) << ", number " << i;
        }
      });
    });
  }
}

TEST_P(CollectiveSuite, ManyTensorsAreReducedAndScatteredInOneOperation) {
  for (const int ranks : kWorlds) {
    const int64_t chunk = GetParam().chunk(ranks).slice;
    on_each(ranks, [ranks, chunk](int rank) {
      for_some_types(ranks, {{1}, {5000}, {7, 0, 1}}, [&](at::ScalarType type, const Size& size) {
        const int64_t count = size.of(type, chunk);
        const std::vector<int64_t> widths = {6, 0, 1, count};
        std::vector<Tensor> inputs;
        std::vector<std::vector<Tensor>> own(widths.size());  // all ranks' parts of this one
        for (size_t i = 0; i < widths.size(); ++i) {
          for (int other = 0; other < ranks; ++other) {
            const Tensor whole = input_of(other, ranks * widths[i], type, widths[i]);
            own[i].push_back(whole.narrow(0, rank * widths[i], widths[i]));
            if (other == rank) inputs.push_back(whole);
          }
        }
        inputs[0] = inputs[0].view({ranks, 2, 3}).transpose(1, 2).contiguous().transpose(1, 2);
        for (const ReduceOp::Kind op : some_ops(type, size)) {
          std::vector<Tensor> parts;
          for (const int64_t width : widths) parts.push_back(at::zeros({width}, type));
          dist::reduce_scatter_tensor_coalesced(parts, inputs, {.op = op_of(op, rank)});
          for (size_t i = 0; i < parts.size(); ++i) {
            EXPECT_TRUE(same(parts[i], expected(op, own[i])))
                << about(op, type, count, ranks) << ", number " << i;
          }
        }
      });
    });
  }
}

TEST_P(CollectiveSuite, ManyTensorsThatDoNotFitAreRefused) {
  on_each(2, [](int rank) {
    const std::vector<Tensor> own = many_of(rank, 5000, at::kInt);
    std::vector<Tensor> outputs;
    for (const Tensor& one : own) outputs.push_back(at::zeros({2 * one.numel()}, at::kInt));
    const auto refused = [&](const std::vector<Tensor>& out) {
      EXPECT_EQ(code_of([&] { dist::all_gather_into_tensor_coalesced(out, own); }),
                Code::kInvalidArgument);
      EXPECT_EQ(code_of([&] { dist::reduce_scatter_tensor_coalesced(own, out); }),
                Code::kInvalidArgument);
    };
    refused({outputs[0], outputs[1], outputs[2]});
    refused({outputs[0], outputs[0], outputs[2], outputs[3]});
    refused({outputs[0], outputs[1], outputs[2], outputs[3].to(at::kFloat)});
    refused({});
    dist::all_gather_into_tensor_coalesced(outputs, own);  // nobody else noticed
    EXPECT_TRUE(at::equal(outputs[3], at::cat(inputs(2, 5000, at::kInt, 2))));
  });
}

}  // namespace
}  // namespace farspan::testing
