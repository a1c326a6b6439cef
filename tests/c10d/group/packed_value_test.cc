// The rule under test: c10d/group/packed_value.h.
#include <farspan/c10d/group/packed_value.h>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "support/errors.h"

namespace farspan::dist {
namespace {

using at::Tensor;
using testing::code_of;

TEST(PackedValue, GoesThereAndBack) {
  const std::map<std::string, std::vector<double>> value = {{"a", {1, 2}}, {"b", {}}};
  EXPECT_EQ((unpack_value<std::map<std::string, std::vector<double>>>(pack_value(value, "x"), "x")),
            value);
  const std::string large(100'000, 'y');
  EXPECT_EQ(unpack_value<std::string>(pack_value(large, "x"), "x"), large);
}

TEST(PackedValue, TensorsKeepWhatTheyAreAndLargeOnesStayWhereTheyCame) {
  const Tensor large = at::arange(100'000, at::kFloat).view({10, 100, 100}).transpose(0, 1);
  const Tensor packed = pack_value(large, "x");
  const Tensor got = unpack_value<Tensor>(packed, "x");
  EXPECT_TRUE(at::equal(got, large));
  EXPECT_EQ(got.strides(), large.strides());
  const auto* begin = static_cast<const std::byte*>(packed.data_ptr());
  const auto* data = static_cast<const std::byte*>(got.data_ptr());
  EXPECT_TRUE(data >= begin && data < begin + packed.nbytes());
}

TEST(PackedValue, AnotherTypeIsRefusedByName) {
  const Tensor packed = pack_value(std::string("text"), "x");
  const Error error = testing::error_of([&] { unpack_value<int64_t>(packed, "the count"); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_EQ(error.message(), "the count: expected int64, got string");
}

TEST(PackedValue, DamagedBytesAreFoundOutOrHarmless) {
  const auto value = std::make_pair(std::string(20'000, 'z'), at::ones({300, 30}));
  using Value = std::pair<std::string, Tensor>;
  const Tensor packed = pack_value(value, "x");
  for (const int64_t size : {0, 7, 8, 15, 16, 24, 64, 200, 20'000}) {
    const Code code = code_of([&] { unpack_value<Value>(packed.narrow(0, 0, size).clone(), "x"); });
    EXPECT_TRUE(code == Code::kCorrupt || code == Code::kInvalidArgument) << size;
  }
  std::mt19937 random(3);
  for (int turn = 0; turn < 3000; ++turn) {
    const Tensor damaged = packed.clone();
    auto* bytes = static_cast<uint8_t*>(damaged.data_ptr());
    for (int flips = 0; flips < 3; ++flips) bytes[random() % 600] ^= uint8_t(1u << random() % 8);
    const Code code = code_of([&] { unpack_value<Value>(damaged, "x"); });
    EXPECT_TRUE(code == Code::kOk || code == Code::kCorrupt || code == Code::kInvalidArgument)
        << static_cast<int>(code);
  }
}

}  // namespace
}  // namespace farspan::dist
