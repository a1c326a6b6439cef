#include <farspan/rpc/call/signature.h>

#include <farspan/c10d/values/codec.h>

#include <gtest/gtest.h>

#include <memory>

namespace farspan {
namespace {

struct Base {
  double forward(const double& x) { return x; }
  void train(bool) {}
};
struct Net : Base {
  int size() const noexcept { return 1; }
};

[[maybe_unused]] at::Tensor square(const at::Tensor& x) { return x; }
[[maybe_unused]] void log_line(std::string, int64_t) {}
[[maybe_unused]] int64_t fast(int32_t) noexcept { return 0; }
[[maybe_unused]] Future<at::Tensor> later(at::Tensor x) { return make_ready_future(std::move(x)); }
[[maybe_unused]] std::shared_ptr<Net> make_net(int64_t) { return nullptr; }
[[maybe_unused]] const std::string& name_of_it() {
  static const std::string name = "it";
  return name;
}

using Square = decltype(&square);
using LogLine = decltype(&log_line);

static_assert(CallableWith<Square, at::Tensor>);
static_assert(CallableWith<Square, at::Tensor&>);
static_assert(CallableWith<decltype(square), const at::Tensor&>);
static_assert(!CallableWith<Square, std::string>);
static_assert(!CallableWith<Square>);
static_assert(!CallableWith<Square, at::Tensor, int>);
static_assert(CallableWith<LogLine, const char*, int>);
static_assert(!CallableWith<LogLine, int, int>);
static_assert(!CallableWith<int, int>);
static_assert(CallableWith<decltype(&fast), int>);

static_assert(MethodCallableWith<Net, decltype(&Net::forward), int>);
static_assert(MethodCallableWith<Net, decltype(&Net::size)>);
static_assert(MethodCallableWith<Base, decltype(&Base::train), bool>);
static_assert(!MethodCallableWith<Base, decltype(&Net::size)>);
static_assert(!MethodCallableWith<Net, decltype(&Net::forward)>);
static_assert(!MethodCallableWith<Net, Square, at::Tensor>);
static_assert(!CallableWith<decltype(&Net::size)>);

static_assert(std::same_as<result_of_t<decltype(&later)>, at::Tensor>);
static_assert(std::same_as<result_of_t<LogLine>, void>);
static_assert(std::same_as<result_of_t<decltype(&name_of_it)>, std::string>);
static_assert(ResultTravels<Square> && ResultTravels<LogLine> && ResultTravels<decltype(&later)>);
static_assert(!ResultTravels<decltype(&make_net)>);

static_assert(detail::InputOnly<const int&> && detail::InputOnly<int> && detail::InputOnly<int&&>);
static_assert(!detail::InputOnly<int&> && !detail::InputOnly<int*>);

TEST(Signature, NamesResultAndParametersByValue) {
  EXPECT_EQ(signature_of<Square>(), "tensor(tensor)");
  EXPECT_EQ(signature_of<LogLine>(), "none(string,int64)");
  EXPECT_EQ(signature_of<decltype(&Net::size)>(), "int32()");
  EXPECT_EQ(signature_of<decltype(&name_of_it)>(), "string()");
}

TEST(Signature, OfAnAsynchronousFunctionIsThatOfItsValue) {
  EXPECT_EQ(signature_of<decltype(&later)>(), "tensor(tensor)");
}

TEST(Signature, NamesTheTypeOfAResultThatStays) {
  EXPECT_NE(signature_of<decltype(&make_net)>().find("object std::shared_ptr<"), std::string::npos);
}

}  // namespace
}  // namespace farspan
