// The rule under test: c10d/group/README.md, "How a call goes", 3.
#include <farspan/c10d/group/signature.h>

#include <gtest/gtest.h>

#include "c10d/group/allowed_reductions.h"

namespace farspan::dist {
namespace {

Signature all_reduce_of(std::initializer_list<int64_t> shape) {
  Signature signature;
  signature.sequence = 4;
  signature.op = Op::kAllReduce;
  signature.type = static_cast<uint8_t>(DType::FLOAT32);
  const std::vector<int64_t> sizes(shape);
  set_shape(signature, sizes);
  return signature;
}

TEST(Signature, SaysWhatIsCalled) {
  EXPECT_EQ(describe(all_reduce_of({2, 3})), "all_reduce SUM of float32 [2, 3]");
  Signature other = all_reduce_of({});
  EXPECT_EQ(describe(other), "all_reduce SUM of float32 []");
  other.op = Op::kBroadcast;
  other.root = 3;
  EXPECT_EQ(describe(other), "broadcast of float32 [], root 3");
  other.op = Op::kBarrier;
  EXPECT_EQ(describe(other), "barrier");
}

TEST(Signature, ManyDimensionsAreTheProductOfTheLast) {
  const Signature signature = all_reduce_of({1, 2, 3, 4, 5, 6, 7, 8});
  EXPECT_EQ(describe(signature), "all_reduce SUM of float32 [1, 2, 3, 4, 5, 336]");
}

TEST(Signature, EqualOnesDoNotDiffer) {
  EXPECT_EQ(difference("rank 0", all_reduce_of({2}), "rank 1", all_reduce_of({2})), std::nullopt);
}

TEST(Signature, WhatDiffersIsNamed) {
  Signature one = all_reduce_of({2}), other = all_reduce_of({3});
  EXPECT_EQ(difference("rank 0", one, "rank 2", other),
            "rank 0 calls all_reduce SUM of float32 [2], and rank 2 calls all_reduce SUM of "
            "float32 [3]");
  other = one;
  other.sequence = 5;
  EXPECT_EQ(difference("rank 0", one, "rank 2", other),
            "rank 0 calls all_reduce SUM of float32 [2], and rank 2 calls all_reduce SUM of "
            "float32 [2]: calls 4 and 5 of the group");
  one.sizes_hash = 7;
  one.count = 9;
  other = one;
  other.sizes_hash = 8;
  EXPECT_EQ(difference("rank 0", one, "rank 2", other),
            "rank 0 calls all_reduce SUM of float32, 9 elements in parts, and rank 2 calls "
            "all_reduce SUM of float32, 9 elements in parts: the sizes of the parts differ");
}

TEST(ReduceOp, WhatHasNoMeaningIsSaid) {
  EXPECT_EQ(why_not(ReduceOp::kSum, DType::FLOAT32), "");
  EXPECT_EQ(why_not(ReduceOp::kBand, DType::BOOL), "");
  EXPECT_EQ(why_not(ReduceOp::kAvg, DType::INT64), "AVG of int64 has no meaning here");
  EXPECT_EQ(why_not(ReduceOp::kMax, DType::COMPLEX64), "MAX of complex64 has no meaning here");
  EXPECT_EQ(why_not(ReduceOp::kSum, DType::FLOAT8E5M2), "SUM of float8_e5m2 has no meaning here");
}

TEST(ReduceOp, WhatIsAllowedOfWhichTypeIsWrittenDown) {
  using testing::kAllowedReductions, testing::kReductionNames;
  constexpr size_t kTypes = static_cast<size_t>(DType::UINT7) + 1;
  ASSERT_EQ(kAllowedReductions.size(), kTypes);
  EXPECT_EQ(size_of(static_cast<DType>(kTypes)), 0u) << "a type that the table lacks";
  for (size_t i = 0; i < kTypes; ++i) {
    const auto& [type, ops] = kAllowedReductions[i];
    EXPECT_EQ(static_cast<size_t>(type), i);
    ASSERT_EQ(ops.size(), std::size(kReductionNames));
    for (size_t number = 0; number < ops.size(); ++number) {
      const auto op = static_cast<ReduceOp::Kind>(number);
      EXPECT_EQ(name_of(op), kReductionNames[number]);
      EXPECT_EQ(why_not(op, type).empty(), ops[number] == '+')
          << name_of(op) << " of " << name_of(type);
    }
    EXPECT_NE(why_not(static_cast<ReduceOp::Kind>(ops.size()), type), "") << "a newer operation";
  }
}

}  // namespace
}  // namespace farspan::dist
