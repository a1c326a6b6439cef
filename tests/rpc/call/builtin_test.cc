#include <farspan/rpc/call/builtin.h>

#include <gmock/gmock.h>

#include <ATen/ATen.h>

#include "rpc/call/call_fixture.h"
#include "support/errors.h"

namespace farspan::testing {
namespace {

using ::testing::HasSubstr;

template <class... Args>
std::shared_ptr<Result> builtin(std::string_view op, Args&&... args) {
  const Message message = message_of([&](schema::Payload::Builder payload, Writer& writer) {
    write_builtin_arguments(op, payload, writer, std::forward<Args>(args)...);
  });
  return with_arguments(message,
                        [&](Arguments& arguments) { return invoke_builtin(op, arguments); });
}

template <class T, class... Args>
T get(std::string_view op, Args&&... args) {
  return result_cast<T>(*builtin(op, std::forward<Args>(args)...));
}

const at::Tensor kA = at::arange(6, at::kDouble).reshape({2, 3});

TEST(Builtin, RunsOperatorsOnTensorsAndNumbers) {
  EXPECT_TRUE(get<at::Tensor>("aten::add.Tensor", kA, kA).equal(kA + kA));
  EXPECT_TRUE(get<at::Tensor>("aten::add.Tensor", kA, kA, 2).equal(kA + 2 * kA));
  EXPECT_TRUE(get<at::Tensor>("aten::mul.Scalar", kA, 0.5).equal(kA * 0.5));
  EXPECT_TRUE(get<at::Tensor>("aten::relu", kA - 3).equal(at::relu(kA - 3)));
}

TEST(Builtin, TakesListsOptionalsStringsAndDtypes) {
  EXPECT_TRUE(get<at::Tensor>("aten::sum.dim_IntList", kA, std::vector<int64_t>{1}, true)
                  .equal(kA.sum({1}, true)));
  EXPECT_TRUE(
      get<at::Tensor>("aten::cat", std::vector<at::Tensor>{kA, kA}, 1).equal(at::cat({kA, kA}, 1)));
  EXPECT_TRUE(get<at::Tensor>("aten::clamp", kA, std::nullopt, 3).equal(kA.clamp_max(3)));
  EXPECT_TRUE(get<at::Tensor>("aten::zeros", std::vector<int64_t>{2}, at::kLong)
                  .equal(at::zeros({2}, at::kLong)));
  EXPECT_TRUE(get<at::Tensor>("aten::div.Tensor_mode", kA, kA + 1, "floor")
                  .equal(at::div(kA, kA + 1, "floor")));
}

TEST(Builtin, GivesNumbersAndSeveralTensors) {
  EXPECT_EQ(get<int64_t>("aten::size.int", kA, -1), 3);
  EXPECT_EQ(get<bool>("aten::equal", kA, kA), true);
  const auto pair = get<std::vector<at::Tensor>>("aten::max.dim", kA, 0);
  EXPECT_TRUE(pair.at(1).equal(at::ones({3}, at::kLong)));
  EXPECT_EQ(get<std::vector<at::Tensor>>("aten::unbind.int", kA).size(), 2u);
}

TEST(Builtin, RefusesOperatorsThatThereAreNot) {
  const Error error = error_of([] { builtin("aten::add.Tensors", kA, kA); });
  EXPECT_EQ(error.code(), Code::kNotRegistered);
  EXPECT_THAT(error.what(), HasSubstr("LibTorch has no operator 'aten::add.Tensors'"));
  EXPECT_EQ(error_of([] { builtin("", kA); }).code(), Code::kNotRegistered);
}

TEST(Builtin, RefusesOperatorsThatTrustTheirArguments) {
  for (const char* op :
       {"aten::from_file", "aten::_sparse_coo_tensor_unsafe", "aten::unsafe_split.Tensor",
        "aten::set_.source_Tensor", "aten::resize_", "aten::empty_like",
        "aten::sparse_csr_tensor.crow_col_value_size", "prim::device", "quantized::add"}) {
    const Error error = error_of([op] { builtin(op, kA); });
    EXPECT_EQ(error.code(), Code::kNotRegistered) << op;
    EXPECT_THAT(error.what(), HasSubstr("no operator that may be called"));
  }
}

TEST(Builtin, NamesTheArgumentThatIsWrongMissingOrTooMany) {
  EXPECT_EQ(error_of([] { builtin("aten::add.Tensor", kA, "text"); }).message(),
            "argument 'other' of 'aten::add.Tensor': expected tensor, got string");
  EXPECT_EQ(error_of([] { builtin("aten::add.Tensor", kA); }).message(),
            "argument 'other' of 'aten::add.Tensor' is missing, and has no default");
  EXPECT_EQ(error_of([] { builtin("aten::relu", kA, 1, 2, 3); }).message(),
            "'aten::relu' takes 1 arguments, got 4");
  EXPECT_THAT(
      error_of([] { builtin("aten::rand.generator", std::vector<int64_t>{1}, 5); }).message(),
      HasSubstr("argument 'generator'"));
}

TEST(Builtin, GivesTheOperatorsOwnError) {
  const Error error = error_of([] { builtin("aten::mm", kA, kA); });
  EXPECT_EQ(error.code(), Code::kRemote);
  EXPECT_THAT(error.message(), HasSubstr("2x3 and 2x3"));
  EXPECT_EQ(error.operation(), "aten::mm");
  EXPECT_EQ(error_of([] { builtin("aten::select.int", kA, 0, 99); }).code(), Code::kRemote);
}

}  // namespace
}  // namespace farspan::testing
