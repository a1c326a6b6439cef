#include <farspan/rpc/call/registry.h>

#include <gmock/gmock.h>

#include <thread>

#include <farspan/rpc/call/register.h>

#include "c10d/values/message_fixture.h"
#include "support/errors.h"

namespace farspan::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

int add(int a, int b) { return a + b; }
double add(double a, double b) { return a + b; }
template <class T>
T twice(T x) {
  return x + x;
}
int triple(int x) { return 3 * x; }
int quadruple(int x) { return 4 * x; }
int nobody(int x) { return x; }
int quiet(int x) noexcept { return x; }

struct Module {
  virtual ~Module() = default;
  virtual void train(bool on) { on_ = on; }
  bool is_on() const noexcept { return on_; }
  bool on_ = false;
};
struct Pad {
  virtual ~Pad() = default;
  int pad = 1;
};
struct Encoder : Pad, Module {};
struct Decoder : Pad, Module {
  void train(bool on) override { Module::train(!on); }
};

FARSPAN_REGISTER(triple, quiet);
FARSPAN_REGISTER_AS("add.int", static_cast<int (*)(int, int)>(add));
FARSPAN_REGISTER_AS("add.double", static_cast<double (*)(double, double)>(add));
FARSPAN_REGISTER_AS("twice.int64", twice<int64_t>);
FARSPAN_REGISTER_METHODS(Encoder, train, is_on);
FARSPAN_REGISTER_METHODS(Decoder, train, is_on);

std::vector<std::string> names_of(const std::vector<const Function*>& functions) {
  std::vector<std::string> names;
  for (const Function* function : functions) names.push_back(function->name);
  return names;
}

TEST(Registry, FindsAFunctionByItsPointer) {
  EXPECT_EQ(registered_function(triple).name, "triple");
  EXPECT_EQ(registered_function(triple).signature, "int32(int32)");
  EXPECT_EQ(registered_function(&quiet).name, "quiet");
  EXPECT_EQ(registered_function(static_cast<int (*)(int, int)>(add)).name, "add.int");
  EXPECT_EQ(registered_function(static_cast<double (*)(double, double)>(add)).name, "add.double");
  EXPECT_EQ(registered_function(twice<int64_t>).name, "twice.int64");
}

TEST(Registry, FindsInheritedMethodsByTheirClass) {
  EXPECT_EQ(registered_method<Encoder>(&Encoder::is_on).name, "Encoder::is_on");
  EXPECT_EQ(registered_method<Decoder>(&Decoder::is_on).name, "Decoder::is_on");
  EXPECT_EQ(registered_method<Encoder>(&Encoder::train).name, "Encoder::train");
  EXPECT_EQ(registered_method<Decoder>(&Decoder::train).name, "Decoder::train");
  EXPECT_EQ(registered_method<Encoder>(&Encoder::is_on).class_type, typeid(Encoder));
}

TEST(Registry, FindsAFunctionByIdAndByName) {
  const Function& function = registered_function(triple);
  EXPECT_EQ(Registry::global().find(function.id), &function);
  EXPECT_EQ(Registry::global().find(std::string_view("triple")), &function);
  EXPECT_EQ(Registry::global().find(uint64_t{1}), nullptr);
  EXPECT_EQ(Registry::global().find(std::string_view("nobody")), nullptr);
}

// The ids travel: they must not change from one version to the next.
TEST(Registry, GivesTheSameIdEverywhere) {
  EXPECT_EQ(function_id("square", "tensor(tensor)"), 0x4e26cdb9dc42556d);
  EXPECT_NE(function_id("square", "tensor(tensor)"), function_id("square", "tensor(tensor,int64)"));
  EXPECT_NE(function_id("ab", "c"), function_id("a", "bc"));
}

TEST(Registry, SaysWhatToDoAboutAFunctionThatIsNotRegistered) {
  const Error error = error_of([] { registered_function(nobody); });
  EXPECT_EQ(error.code(), Code::kNotRegistered);
  EXPECT_THAT(error.what(), HasSubstr("this function (int (int)) is not registered"));
  EXPECT_THAT(error.what(), HasSubstr("add FARSPAN_REGISTER(function)"));
}

TEST(Registry, SaysWhatToDoAboutAMethodThatIsNotRegistered) {
  const Error error = error_of([] { registered_method<Module>(&Module::is_on); });
  EXPECT_EQ(error.code(), Code::kNotRegistered);
  EXPECT_THAT(error.what(), HasSubstr("Module"));
  EXPECT_THAT(error.what(), HasSubstr("FARSPAN_REGISTER_METHODS"));
}

TEST(Registry, ReportsEveryNameOfTwoFunctionsAtTheCheck) {
  Registry registry;
  detail::register_function<&triple>("f", registry);
  registry.check();
  detail::register_function<&quadruple>("f", registry);
  detail::register_function<&triple>("g", registry);
  detail::register_function<&quiet>("g", registry);
  const Error error = error_of([&] { registry.check(); });
  EXPECT_EQ(error.code(), Code::kAlreadyExists);
  EXPECT_THAT(error.what(), HasSubstr("'f' names two functions"));
  EXPECT_THAT(error.what(), HasSubstr("'g' names two functions"));
  EXPECT_THAT(error.what(), HasSubstr("FARSPAN_REGISTER_AS"));
}

TEST(Registry, TakesOneFunctionTwiceUnderOneName) {
  Registry registry;
  detail::register_function<&triple>("f", registry);
  detail::register_function<&triple>("f", registry);
  registry.check();
  EXPECT_THAT(registry.notes(), SizeIs(0));
  EXPECT_THAT(registry.all(), SizeIs(1));
}

// As when the linker folds two functions with the same code into one.
TEST(Registry, NotesTwoNamesOfOneAddress) {
  Registry registry;
  detail::register_function<&triple>("f", registry);
  detail::register_function<&triple>("g", registry);
  registry.check();
  EXPECT_THAT(registry.notes(), ElementsAre(HasSubstr("'g' and 'f' are one function")));
  const Function* by_pointer = registry.find(FunctionKey::of_function(&triple));
  EXPECT_EQ(by_pointer->name, "f");
  EXPECT_NE(registry.find(std::string_view("g")), nullptr);
}

TEST(Registry, ListsItsFunctionsByName) {
  Registry registry;
  detail::register_function<&triple>("zebra", registry);
  detail::register_function<&quadruple>("ant", registry);
  EXPECT_THAT(names_of(registry.all()), ElementsAre("ant", "zebra"));
}

TEST(Registry, FindsWhatWasAddedAfterALook) {
  Registry registry;
  detail::register_function<&triple>("f", registry);
  EXPECT_NE(registry.find(function_id("f", "int32(int32)")), nullptr);
  detail::register_function<&quadruple>("g", registry);
  EXPECT_NE(registry.find(function_id("g", "int32(int32)")), nullptr);
}

TEST(Registry, MayBeReadWhileItGrows) {
  Registry registry;
  detail::register_function<&triple>("f", registry);
  const uint64_t id = function_id("f", "int32(int32)");
  std::atomic<bool> done{false};
  std::atomic<int> missing{0};
  std::thread reader([&] {
    while (!done) missing += registry.find(id) == nullptr;
  });
  for (int i = 0; i < 500; ++i) {
    registry.add(FunctionKey::of_function(&quadruple), "g" + std::to_string(i), "int32(int32)",
                 typeid(void), nullptr);
    registry.find(id);
  }
  done = true;
  reader.join();
  EXPECT_EQ(missing, 0);
  EXPECT_THAT(registry.all(), SizeIs(501));
}

}  // namespace
}  // namespace farspan::testing
