#include <farspan/rpc/call/invoke.h>

#include <gmock/gmock.h>

#include <ATen/ATen.h>

#include "rpc/call/call_fixture.h"
#include "support/errors.h"

namespace farspan::testing {

struct Point {
  double x = 0, y = 0;
};
FARSPAN_STRUCT(Point, x, y);

namespace {

using ::testing::HasSubstr;

// Counts its copies, and can be moved only when taken by value.
struct Token {
  Token() = default;
  Token(const Token& other) : copies(other.copies + 1) {}
  Token(Token&& other) noexcept : copies(other.copies) {}
  Token& operator=(const Token&) = delete;
  int copies = 0;
};

struct Net {
  explicit Net(int64_t size) : weight(at::ones({size})) {}
  Net(const Net&) = delete;
  at::Tensor forward(const at::Tensor& x) const { return x * weight; }
  void scale(double by) & { weight.mul_(by); }
  Future<int64_t> later_size() { return pending.future(); }
  at::Tensor weight;
  Promise<int64_t> pending;
};
struct OtherNet {
  int64_t size() { return 1; }
};

at::Tensor square(const at::Tensor& x) { return x * x; }
double norm(Point p) { return p.x * p.x + p.y * p.y; }
std::string join(std::vector<std::string>&& words, const std::string& by) {
  std::string all;
  for (const auto& word : words) all += (all.empty() ? "" : by) + word;
  return all;
}
double half(double x) { return x / 2; }
int64_t size_of(int64_t count, at::ScalarType type) {
  return count * static_cast<int64_t>(c10::elementSize(type));
}
int calls = 0;
void count_call() { ++calls; }
int copies_of(Token token) { return token.copies; }
int copies_of_reference(const Token& token) { return token.copies; }
std::shared_ptr<Net> make_net(int64_t size) { return std::make_shared<Net>(size); }
std::unique_ptr<Net> make_unique_net(int64_t size) { return std::make_unique<Net>(size); }
std::shared_ptr<Net> make_no_net() { return nullptr; }
Promise<double> delivery;
Future<double> wait_for_delivery() { return delivery.future(); }
Future<void> wait_for_nothing() { return make_ready_future(); }
Future<double> promise_nothing() { return {}; }
Future<std::shared_ptr<Net>> make_net_later() {
  return make_ready_future(std::make_shared<Net>(int64_t{2}));
}

struct Refusal : std::runtime_error {
  using std::runtime_error::runtime_error;
};
int64_t refuse(int64_t) { throw Refusal("not today"); }
int64_t fail_with_error() { throw Error(Code::kTimeout, "no answer").worker("ps"); }
int64_t throw_number() { throw 42; }
int64_t break_tensor() { return at::ones({2, 3}).matmul(at::ones({2, 3})).numel(); }

}  // namespace
}  // namespace farspan::testing

template <>
struct farspan::Codec<farspan::testing::Token> {
  static std::string type_name() { return "token"; }
  static void write(schema::Value::Builder out, const farspan::testing::Token& token, Writer&) {
    out.setInt64(token.copies);
  }
  static farspan::testing::Token read(schema::Value::Reader in, Reader&) {
    farspan::testing::Token token;
    token.copies = static_cast<int>(in.getInt64());
    return token;
  }
};

namespace farspan::testing {
namespace {

FARSPAN_REGISTER(square, norm, join, half, size_of, count_call, copies_of, copies_of_reference,
                 make_net, make_unique_net, make_no_net, wait_for_delivery, wait_for_nothing,
                 promise_nothing, make_net_later, refuse, fail_with_error, throw_number,
                 break_tensor);
FARSPAN_REGISTER_METHODS(Net, forward, scale, later_size);
FARSPAN_REGISTER_METHODS(OtherNet, size);

TEST(Invoke, PassesArgumentsAndGivesTheResult) {
  EXPECT_TRUE(call(square, at::tensor({2.0, 3.0})).equal(at::tensor({4.0, 9.0})));
  EXPECT_EQ(call(norm, Point{3, 4}), 25);
  EXPECT_EQ(call(join, std::vector<std::string>{"a", "b"}, "+"), "a+b");
}

TEST(Invoke, ConvertsArgumentsAsALocalCallWould) {
  EXPECT_EQ(call(half, 3), 1.5);  // int to double
  const std::string_view view = "b";
  EXPECT_EQ(call(join, std::initializer_list<std::string>{"a", "b"}, std::string(view)), "abb");
}

TEST(Invoke, CallsFunctionsWithoutArgumentsAndResult) {
  calls = 0;
  call(count_call);
  EXPECT_EQ(calls, 1);
}

TEST(Invoke, CopiesNoArgument) {
  const Token token;
  EXPECT_EQ(call(copies_of, token), 0);
  EXPECT_EQ(call(copies_of_reference, token), 0);
}

TEST(Invoke, KeepsAResultThatCannotTravel) {
  const auto net = invoke_here(make_net, 4);
  EXPECT_EQ(net->type(), typeid(std::shared_ptr<Net>));
  EXPECT_EQ(*net->object().type, typeid(Net));
  const Error error = error_of([&] { result_of<int>(registered_function(make_net), *net); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("cannot travel"));
  EXPECT_THAT(error.what(), HasSubstr("remote()"));
}

TEST(Invoke, CallsMethodsOnWhatAPointerHolds) {
  for (const auto& net :
       {invoke_here(make_net, 2), invoke_here(make_unique_net, 2), invoke_here(make_net_later)}) {
    invoke_on<Net>(net, &Net::scale, 3);
    const auto result = invoke_on<Net>(net, &Net::forward, at::ones({2}));
    EXPECT_TRUE(result_cast<at::Tensor>(*result).equal(at::full({2}, 3.0)));
  }
}

TEST(Invoke, CallsMethodsOnAValue) {
  const auto other = make_result([] { return OtherNet(); });
  EXPECT_EQ(result_cast<int64_t>(*invoke_on<OtherNet>(other, &OtherNet::size)), 1);
}

TEST(Invoke, RefusesAMethodOnAnotherObjectOrNone) {
  const auto net = invoke_here(make_net, 2);
  EXPECT_THAT(error_of([&] { invoke_on<OtherNet>(net, &OtherNet::size); }).what(),
              HasSubstr("is a method of farspan::testing::(anonymous namespace)::OtherNet, and was "
                        "called on farspan::testing::(anonymous namespace)::Net"));
  EXPECT_THAT(error_of([&] { invoke_on<OtherNet>(nullptr, &OtherNet::size); }).what(),
              HasSubstr("called on no object"));
  EXPECT_THAT(error_of([&] { invoke_on<Net>(invoke_here(make_no_net), &Net::scale, 1); }).what(),
              HasSubstr("called on a pointer that is null"));
}

TEST(Invoke, GivesAnAsynchronousResultWhenItIsThere) {
  delivery = Promise<double>();
  const auto result = invoke_here(wait_for_delivery);
  EXPECT_FALSE(result->ready());
  bool told = false;
  result->on_ready([&] { told = true; });
  EXPECT_FALSE(told);
  delivery.set_value(2.5);
  EXPECT_TRUE(told);
  ASSERT_TRUE(result->ready());
  EXPECT_EQ(result->error(), nullptr);
  EXPECT_EQ(result_of<double>(registered_function(wait_for_delivery), *result), 2.5);
  EXPECT_EQ(result_cast<double>(*result), 2.5);
  EXPECT_EQ(invoke_here(wait_for_nothing)->type(), typeid(void));
}

TEST(Invoke, GivesTheErrorOfAnAsynchronousFunction) {
  delivery = Promise<double>();
  const auto result = invoke_here(wait_for_delivery);
  delivery.set_error(Error(Code::kNotFound, "gone"));
  ASSERT_NE(result->error(), nullptr);
  EXPECT_EQ(result->error()->message(), "gone");
}

TEST(Invoke, RefusesAFutureThatNothingDelivers) {
  EXPECT_THAT(error_of([] { invoke_here(promise_nothing); }).what(),
              HasSubstr("nothing will ever deliver"));
}

TEST(Invoke, KeepsTheObjectOfAnAsynchronousMethodUntilItsResult) {
  auto net = invoke_here(make_net, 2);
  const std::weak_ptr<Net> object = result_cast<std::shared_ptr<Net>>(*net);
  Promise<int64_t> pending = object.lock()->pending;
  const auto result = invoke_on<Net>(net, &Net::later_size);
  net.reset();
  EXPECT_FALSE(object.expired());
  pending.set_value(7);
  EXPECT_TRUE(object.expired());
  EXPECT_EQ(result_cast<int64_t>(*result), 7);
}

TEST(Invoke, GivesExceptionsWithTypeMessageAndFunction) {
  const Error error = error_of([] { invoke_here(refuse, 1); });
  EXPECT_EQ(error.code(), Code::kRemote);
  EXPECT_EQ(error.message(), "not today");
  EXPECT_THAT(error.remote_type(), HasSubstr("Refusal"));
  EXPECT_EQ(error.operation(), "refuse");
}

TEST(Invoke, PassesErrorsOnAsTheyAre) {
  const Error error = error_of([] { invoke_here(fail_with_error); });
  EXPECT_EQ(error.code(), Code::kTimeout);
  EXPECT_EQ(error.worker(), "ps");
  EXPECT_EQ(error.operation(), "fail_with_error");
}

TEST(Invoke, GivesWhatIsNoException) {
  const Error error = error_of([] { invoke_here(throw_number); });
  EXPECT_EQ(error.code(), Code::kRemote);
  EXPECT_EQ(error.remote_type(), "int");
}

TEST(Invoke, GivesLibTorchErrorsWithoutTheStackTrace) {
  const Error error = error_of([] { invoke_here(break_tensor); });
  EXPECT_EQ(error.remote_type(), "c10::Error");
  EXPECT_THAT(error.message(), HasSubstr("2x3"));
  EXPECT_THAT(error.message(), ::testing::Not(HasSubstr("frame #")));
}

TEST(Invoke, NamesFunctionPositionAndTypesOfAWrongArgument) {
  const Function& function = registered_function(join);
  const Message wrong = to_message(std::vector<std::string>{"a"}, 5);
  const Error error = error_of([&] {
    with_arguments(wrong, [&](Arguments& arguments) { return invoke(function, arguments); });
  });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_EQ(error.message(), "argument 2 of 'join': expected string, got int64 5");
}

TEST(Invoke, NamesFunctionAndPositionOfAnArgumentThatCannotTravel) {
  EXPECT_EQ(error_of([] { call(size_of, 1, at::kQInt8); }).message(),
            "argument 2 of 'size_of': dtype QInt8 does not travel");
}

TEST(Invoke, RefusesAnotherNumberOfArguments) {
  const Message none = to_message();
  EXPECT_EQ(error_of([&] {
              with_arguments(none, [&](Arguments& arguments) {
                return invoke(registered_function(square), arguments);
              });
            }).message(),
            "'square' takes 1 arguments, got 0");
}

TEST(Invoke, RefusesAnAnswerOfAnotherType) {
  const auto result = make_result([] { return std::string("text"); });
  const Error error = error_of([&] { result_of<double>(registered_function(norm), *result); });
  EXPECT_EQ(error.message(), "result of 'norm': expected float64, got string");
}

TEST(ResultCast, RefusesAnotherType) {
  const auto result = make_result([] { return 5; });
  EXPECT_EQ(result_cast<int>(*result), 5);
  EXPECT_THAT(error_of([&] { result_cast<double>(*result); }).message(),
              HasSubstr("of type 'int', not 'double'"));
}

}  // namespace
}  // namespace farspan::testing
