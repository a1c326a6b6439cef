// The rule under test: c10d/group/reduce_op.h: a sum is formed in one order, so that every rank
// gets the same bits, each time. The inputs of other cases are whole numbers, of which any order is
// as good as another.
#include <ATen/CPUGeneratorImpl.h>

#include "conformance/collective_suite.h"

namespace farspan::testing {
namespace {

using at::Tensor;
using dist::ReduceOp;

constexpr at::ScalarType kFloats[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};

// What rank `rank` has: numbers of which each sum is rounded.
Tensor random_input(int rank, int64_t count, at::ScalarType type) {
  const at::Generator generator = at::detail::createCPUGenerator(100 + static_cast<uint64_t>(rank));
  return at::randn({count}, generator, at::TensorOptions(at::kFloat)).to(type).div_(3);
}

Tensor bits_of(const Tensor& tensor) { return tensor.view(at::kByte); }

TEST_P(CollectiveSuite, EveryRankGetsTheSameBitsEachTime) {
  for (const int ranks : kWorlds) {
    on_each(ranks, [ranks](int rank) {
      for (const int64_t count : {1, 4097, 40'000, 1'000'000}) {
        for (const at::ScalarType type : kFloats) {
          const bool is_slow = count == 1'000'000 && (type != at::kFloat || ranks != 3);
          if (is_slow && !all_combinations()) continue;
          const Tensor input = random_input(rank, count, type);
          for (const ReduceOp::Kind op : {ReduceOp::kSum, ReduceOp::kAvg}) {
            const Tensor once = input.clone(), again = input.clone();
            dist::all_reduce(once, {.op = op});
            dist::all_reduce(again, {.op = op});
            const Tensor first = bits_of(once).clone();
            dist::broadcast(first, 0);
            EXPECT_TRUE(at::equal(bits_of(once), first))
                << dist::name_of(op) << " of " << count << " " << c10::toString(type);
            EXPECT_TRUE(at::equal(bits_of(once), bits_of(again)))
                << dist::name_of(op) << " of " << count << " " << c10::toString(type) << ", again";
          }
        }
      }
    });
  }
}

// Else the case above could not fail.
TEST(RandomInputs, AnotherOrderGivesOtherBits) {
  for (const at::ScalarType type : kFloats) {
    const Tensor a = random_input(0, 4097, type), b = random_input(1, 4097, type);
    const Tensor c = random_input(2, 4097, type);
    EXPECT_FALSE(at::equal(bits_of(a + b + c), bits_of(c + b + a))) << c10::toString(type);
  }
}

}  // namespace
}  // namespace farspan::testing
