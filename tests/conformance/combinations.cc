#include "conformance/combinations.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <farspan/c10d/group/tensor_block.h>

#include "c10d/group/allowed_reductions.h"

namespace farspan::testing {
namespace {

using dist::ReduceOp;

constexpr size_t kWithoutChunks = 7;  // sizes, the first of them

size_t place_of(int ranks) {
  return static_cast<size_t>(std::ranges::find(kWorlds, ranks) - kWorlds.begin());
}
const Size& size_at(size_t turn) { return kSizes[turn % std::size(kSizes)]; }

}  // namespace

bool has_meaning(ReduceOp::Kind op, at::ScalarType type) {
  return dist::testing::is_allowed(op, dist::dtype_of(at::empty({0}, type)));
}

void for_reductions(int ranks,
                    const std::function<void(ReduceOp::Kind, at::ScalarType, const Size&)>& body) {
  size_t first = 0;
  for (const at::ScalarType type : kTypes) {
    std::vector<ReduceOp::Kind> ops;
    std::ranges::copy_if(kOps, std::back_inserter(ops),
                         [&](ReduceOp::Kind op) { return has_meaning(op, type); });
    // Many chunks in many ranks take long: with some of the types.
    const bool some = first % 24 == 0;
    size_t turn = first + place_of(ranks) * ops.size();  // each world goes on where the last ended
    for (const ReduceOp::Kind op : ops) {
      if (all_combinations()) {
        for (const Size& size : kSizes) body(op, type, size);
      } else {
        const Size& size = size_at(turn);
        body(op, type,
             size.chunks == 0 || ranks < 7 || some ? size : kSizes[turn % kWithoutChunks]);
        ++turn;
      }
    }
    first += 6;  // found by trial: no operation misses a size
  }
}

void for_moves(int ranks, const std::function<void(at::ScalarType, const Size&)>& body) {
  constexpr size_t kSome = (std::size(kSizes) + std::size(kWorlds) - 2) / (std::size(kWorlds) - 1);
  const size_t sizes = all_combinations() ? std::size(kSizes) : kSome;
  size_t first = kSome * place_of(ranks);
  for (const at::ScalarType type : kTypes) {
    for (size_t i = 0; i < sizes; ++i) body(type, size_at(first + i));
    ++first;
  }
}

void for_some_types(int ranks, const std::vector<Size>& sizes,
                    const std::function<void(at::ScalarType, const Size&)>& body) {
  for (size_t i = 0; i < std::size(kSomeTypes); ++i) {
    const bool with_last = (i + place_of(ranks)) % 3 == 0 || all_combinations();
    for (size_t size = 0; size + (with_last ? 0 : 1) < sizes.size(); ++size) {
      body(kSomeTypes[i], sizes[size]);
    }
  }
}

namespace {

enum Dimension { kOp, kType, kSize, kWorld };
using Value = std::pair<Dimension, int>;

// How many pairs of values there were, for each two dimensions.
class Pairs {
 public:
  void meet(const std::vector<Value>& values) {
    for (const Value& one : values) {
      for (const Value& other : values) met_[{one.first, other.first}].emplace(one, other);
    }
  }
  size_t operator()(Dimension one, Dimension other) { return met_[{one, other}].size(); }

 private:
  std::map<std::pair<Dimension, Dimension>, std::set<std::pair<Value, Value>>> met_;
};

TEST(Combinations, EveryPairIsMet) {
  Pairs reductions, moves;
  size_t meaningful = 0;
  for (const ReduceOp::Kind op : kOps) {
    for (const at::ScalarType type : kTypes) meaningful += has_meaning(op, type) ? 1 : 0;
  }
  size_t allowed = 0;
  for (const auto& row : dist::testing::kAllowedReductions)
    allowed += std::ranges::count(row.ops, '+');
  EXPECT_EQ(meaningful, allowed) << "kTypes, or kOps, lacks one";
  for (const int ranks : kWorlds) {
    const auto meet = [ranks](Pairs& pairs, const Size& size, std::vector<Value> values) {
      values.emplace_back(kSize, static_cast<int>(&size - kSizes));
      for (const Value& value : values) pairs.meet({value, {kWorld, ranks}});
      if (ranks > 1) pairs.meet(values);  // one rank has little to do
    };
    for_reductions(ranks, [&](ReduceOp::Kind op, at::ScalarType type, const Size& size) {
      meet(reductions, size, {{kOp, static_cast<int>(op)}, {kType, static_cast<int>(type)}});
    });
    for_moves(ranks, [&](at::ScalarType type, const Size& size) {
      meet(moves, size, {{kType, static_cast<int>(type)}});
    });
  }
  constexpr size_t kOpCount = std::size(kOps), kTypeCount = std::size(kTypes),
                   kSizeCount = std::size(kSizes), kWorldCount = std::size(kWorlds);
  EXPECT_EQ(reductions(kOp, kType), meaningful);
  EXPECT_EQ(reductions(kOp, kSize), kOpCount * kSizeCount);
  EXPECT_EQ(reductions(kOp, kWorld), kOpCount * kWorldCount);
  for (Pairs* pairs : {&reductions, &moves}) {
    EXPECT_EQ((*pairs)(kType, kSize), kTypeCount * kSizeCount);
    EXPECT_EQ((*pairs)(kType, kWorld), kTypeCount * kWorldCount);
    EXPECT_EQ((*pairs)(kSize, kWorld), kSizeCount * kWorldCount);
  }
}

TEST(Combinations, SomeTypesMeetEverySizeInAWorldOfSeveralRanks) {
  const std::vector<Size> sizes = {{0}, {1}, {2}};
  std::set<std::pair<at::ScalarType, int64_t>> met;
  for (const int ranks : kWorlds) {
    if (ranks == 1) continue;
    for_some_types(ranks, sizes, [&](at::ScalarType type, const Size& size) {
      met.emplace(type, size.elements);
    });
  }
  EXPECT_EQ(met.size(), std::size(kSomeTypes) * sizes.size());
}

}  // namespace
}  // namespace farspan::testing
