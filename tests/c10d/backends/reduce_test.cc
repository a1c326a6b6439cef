// The rule under test: c10d/backends/kernels/reduce.h, on both kinds of processors.
#include <farspan/c10d/backends/kernels/reduce.h>
#include <farspan/c10d/backends/kernels/table.h>

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace farspan::dist::kernels {
namespace {

template <class T>
std::vector<T> reduced(DType type, ReduceOp::Kind op, const std::vector<std::vector<T>>& in,
                       int divisor = 1) {
  std::vector<T> out(in.front().size());
  std::vector<const std::byte*> parts;
  for (const auto& one : in) parts.push_back(reinterpret_cast<const std::byte*>(one.data()));
  reduce(type, op, reinterpret_cast<std::byte*>(out.data()), parts, out.size(), divisor);
  return out;
}

TEST(Reduce, AddsInTheOrderOfTheRanks) {
  // In another order it would be 0.
  const std::vector<std::vector<float>> in = {{1e8f}, {-1e8f}, {1.0f}};
  EXPECT_EQ(reduced(DType::FLOAT32, ReduceOp::kSum, in)[0], 1.0f);
  EXPECT_EQ(reduced<float>(DType::FLOAT32, ReduceOp::kSum, {{1.0f}, {1e8f}, {-1e8f}})[0], 0.0f);
}

TEST(Reduce, TheResultMayBeOneOfTheInputs) {
  for (const size_t count : {1u, 511u, 512u, 513u, 5000u}) {
    for (size_t place = 0; place < 3; ++place) {
      std::vector<std::vector<int32_t>> in(3, std::vector<int32_t>(count));
      for (size_t r = 0; r < 3; ++r) {
        for (size_t i = 0; i < count; ++i) in[r][i] = static_cast<int32_t>((r + 1) * i);
      }
      std::vector<const std::byte*> parts;
      for (const auto& one : in) parts.push_back(reinterpret_cast<const std::byte*>(one.data()));
      reduce(DType::INT32, ReduceOp::kSum, reinterpret_cast<std::byte*>(in[place].data()), parts,
             count);
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(in[place][i], static_cast<int32_t>(6 * i));
    }
  }
}

TEST(Reduce, IntegersWrapAround) {
  EXPECT_EQ(reduced<int8_t>(DType::INT8, ReduceOp::kSum, {{127}, {1}})[0], -128);
  EXPECT_EQ(reduced<uint8_t>(DType::UINT8, ReduceOp::kProduct, {{16}, {17}})[0], 16);
  EXPECT_EQ(reduced<uint16_t>(DType::UINT16, ReduceOp::kProduct, {{65535}, {65535}})[0], 1);
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(reduced<int64_t>(DType::INT64, ReduceOp::kSum, {{most}, {1}, {0}})[0],
            std::numeric_limits<int64_t>::min());
}

TEST(Reduce, WhatIsNoNumberWins) {
  const float nan = std::nanf("");
  for (const auto op : {ReduceOp::kMin, ReduceOp::kMax}) {
    EXPECT_TRUE(std::isnan(reduced<float>(DType::FLOAT32, op, {{nan}, {1}})[0]));
    EXPECT_TRUE(std::isnan(reduced<float>(DType::FLOAT32, op, {{1}, {nan}})[0]));
    EXPECT_TRUE(std::isnan(reduced<float>(DType::FLOAT32, op, {{1}, {nan}, {2}})[0]));
  }
}

TEST(Reduce, ComplexNumbersAreMultiplied) {
  using C = std::complex<float>;
  EXPECT_EQ(reduced<C>(DType::COMPLEX64, ReduceOp::kProduct, {{C(1, 2)}, {C(3, -1)}})[0], C(5, 5));
  EXPECT_EQ(reduced<C>(DType::COMPLEX64, ReduceOp::kAvg, {{C(1, 2)}, {C(3, -1)}}, 2)[0], C(2, 0.5));
}

// All 65,536 halves, through a sum with zero, against the definition of the format.
TEST(Reduce, EveryHalfIsReadAndWrittenExactly) {
  std::vector<uint16_t> all(65536), zero(65536, 0x8000);  // -0: what x + -0 is is x
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  const auto out = reduced<uint16_t>(DType::FLOAT16, ReduceOp::kSum, {all, zero});
  for (size_t i = 0; i < all.size(); ++i) {
    const bool is_nan = (i & 0x7c00) == 0x7c00 && (i & 0x3ff) != 0;
    EXPECT_EQ(out[i], is_nan ? (i | 0x200) : i) << i;
  }
  const auto brain = reduced<uint16_t>(DType::BFLOAT16, ReduceOp::kSum, {all, zero});
  for (size_t i = 0; i < all.size(); ++i) {
    const bool is_nan = (i & 0x7f80) == 0x7f80 && (i & 0x7f) != 0;
    EXPECT_EQ(brain[i], is_nan ? 0x7fc0 : i) << i;
  }
}

double half_value(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 0x3ff;
  const double size =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  return bits & 0x8000 ? -size : size;
}

// The nearest half of a sum, by trying its neighbours.
TEST(Reduce, SumsOfHalvesAreRoundedToTheNearestEven) {
  std::mt19937 random(1);
  std::vector<uint16_t> one(20000), other(20000);
  for (size_t i = 0; i < one.size(); ++i) {
    one[i] = static_cast<uint16_t>(random() % 0x7c00 | (random() & 0x8000));
    other[i] = static_cast<uint16_t>(random() % 0x7c00 | (random() & 0x8000));
  }
  const auto sums = reduced<uint16_t>(DType::FLOAT16, ReduceOp::kSum, {one, other});
  for (size_t i = 0; i < one.size(); ++i) {
    const double exact = half_value(one[i]) + half_value(other[i]);
    if (std::abs(exact) >= 65520) {
      EXPECT_EQ(sums[i] & 0x7fff, 0x7c00) << i;
      continue;
    }
    const double error = std::abs(half_value(sums[i]) - exact);
    for (const int step : {-1, 1}) {
      const auto near = static_cast<uint16_t>(sums[i] + step);
      if ((near & 0x7c00) == 0x7c00) continue;
      const double other_error = std::abs(half_value(near) - exact);
      EXPECT_LE(error, other_error) << i;
      EXPECT_TRUE(error != other_error || sums[i] % 2 == 0) << i;
    }
  }
}

TEST(Reduce, HalvesAreRoundedOnceHoweverManyRanks) {
  // 2048 + 1 is 2048 in a half, but 2048 + 1 + 1 is 2050.
  const auto half = [](float x) { return static_cast<uint16_t>(x == 1 ? 0x3c00 : 0x6800); };
  const auto sum =
      reduced<uint16_t>(DType::FLOAT16, ReduceOp::kSum, {{half(2048)}, {half(1)}, {half(1)}});
  EXPECT_EQ(half_value(sum[0]), 2050);
}

#if defined(__x86_64__)
TEST(Reduce, AllProcessorsGiveTheSameBits) {
  if (!__builtin_cpu_supports("avx2")) GTEST_SKIP() << "this processor has no AVX2";
  std::mt19937_64 random(2);
  constexpr size_t kBytes = 16 * 1501;
  std::vector<std::vector<uint64_t>> in(3, std::vector<uint64_t>(kBytes / 8));
  for (auto& one : in) {
    // No NaN among them: which of two a sum keeps is the processor's affair.
    for (uint64_t& word : one) word = random() & 0xbfffbfffbfffbfffu;
  }
  for (size_t type = 0; type <= static_cast<size_t>(DType::BOOL); ++type) {
    const size_t count = kBytes / size_of(static_cast<DType>(type)) / 2;  // complex: two a piece
    for (int op = 0; op <= ReduceOp::kPremulSum; ++op) {
      for (const int ranks : {1, 2, 3}) {
        for (const int divisor : {1, 3}) {
          const Loop one = kBaseline.rows[type][op];
          const Loop other = kAvx2.rows[type][op];
          ASSERT_EQ(one == nullptr, other == nullptr);
          if (!one) continue;
          const void* parts[] = {in[0].data(), in[1].data(), in[2].data()};
          std::vector<uint64_t> a(kBytes / 8), b(kBytes / 8);
          one(a.data(), parts, ranks, count, divisor);
          other(b.data(), parts, ranks, count, divisor);
          EXPECT_EQ(a, b) << name_of(static_cast<ReduceOp::Kind>(op)) << " of "
                          << name_of(static_cast<DType>(type)) << " of " << ranks << " ranks";
        }
      }
    }
  }
}
#endif

}  // namespace
}  // namespace farspan::dist::kernels
