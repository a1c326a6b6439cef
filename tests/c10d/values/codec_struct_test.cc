// The rules under test: codec_struct.h.
#include <gmock/gmock.h>

#include <ATen/ATen.h>

#include "c10d/values/message_fixture.h"
#include "support/errors.h"

namespace shop {

struct Item {
  std::string name;
  int64_t count = 0;
  std::optional<double> price;
  friend bool operator==(const Item&, const Item&) = default;
};
FARSPAN_STRUCT(Item, name, count, price);

// As an older version of the program has it.
struct OldItem {
  std::string name;
  int64_t count = 0;
};
FARSPAN_STRUCT(OldItem, name, count);

struct OddItem {
  std::string name;
  int64_t weight = 0;
  std::optional<double> price;
};
FARSPAN_STRUCT(OddItem, name, weight, price);

// In another order.
struct Reordered {
  std::optional<double> price;
  std::string name;
  int64_t count = 0;
};
FARSPAN_STRUCT(Reordered, price, name, count);

struct WrongType {
  std::string name;
  std::string count;
  std::optional<double> price;
};
FARSPAN_STRUCT(WrongType, name, count, price);

struct Cart {
  std::vector<Item> items;
  std::map<std::string, at::Tensor> tensors;
};
FARSPAN_STRUCT(Cart, items, tensors);

struct Tree {
  int value = 0;
  std::vector<Tree> children;
};
FARSPAN_STRUCT(Tree, value, children);

struct Empty {};
FARSPAN_STRUCT(Empty);

}  // namespace shop

namespace farspan::testing {
namespace {

using ::testing::HasSubstr;

const shop::Item kItem{"pear", 3, 0.5};

TEST(Struct, KeepsItsFields) {
  EXPECT_EQ(round_trip(kItem), kItem);
  round_trip(shop::Empty{});
}

TEST(Struct, LiesInContainersAndHoldsTensors) {
  const shop::Cart cart{{kItem, {}}, {{"w", at::ones({2, 3})}}};
  const shop::Cart copy = round_trip(cart);
  EXPECT_EQ(copy.items, cart.items);
  EXPECT_TRUE(copy.tensors.at("w").equal(at::ones({2, 3})));
}

TEST(Struct, IsNamedInSignatures) {
  EXPECT_EQ(Codec<std::vector<shop::Item>>::type_name(), "list<struct shop::Item>");
}

TEST(Struct, MayBeSentWithItsFieldsInAnotherOrder) {
  const auto copy = from_message<shop::Reordered>(to_message(kItem));
  EXPECT_EQ(copy.name, "pear");
  EXPECT_EQ(copy.count, 3);
  EXPECT_EQ(copy.price, 0.5);
}

TEST(Struct, NamesTheFieldThatIsMissing) {
  const Error error = error_of([] {
    from_message<shop::Item>(to_message(shop::OldItem{"pear", 3}));
  });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_EQ(error.message(), "value: struct shop::Item lacks its field 'price'");
}

TEST(Struct, NamesTheFieldThatItDoesNotKnow) {
  EXPECT_THAT(error_of([] { from_message<shop::OldItem>(to_message(kItem)); }).message(),
              HasSubstr("struct shop::OldItem has no field 'price'"));
  EXPECT_THAT(error_of([] { from_message<shop::OddItem>(to_message(kItem)); }).message(),
              HasSubstr("struct shop::OddItem has no field 'count'"));
}

TEST(Struct, NamesTheFieldThatHasAnotherType) {
  const std::vector<shop::Item> items{{}, kItem};
  EXPECT_THAT(
      error_of([&] { from_message<std::vector<shop::WrongType>>(to_message(items)); }).message(),
      HasSubstr("value, at [0].count: expected string, got int64 0"));
}

TEST(Struct, IsNoOtherKindOfValue) {
  EXPECT_THAT(error_of([] { from_message<shop::Item>(to_message(1)); }).message(),
              HasSubstr("expected struct shop::Item, got int64 1"));
}

TEST(Struct, RefusesAFieldThatComesTwice) {
  MetaBuilder meta;
  auto value = meta.init_root<schema::Value>();
  auto fields = value.initRecord(2);
  for (auto field : fields) {
    field.setName("name");
    field.initValue().setText("x");
  }
  Reader reader({}, {});
  EXPECT_THAT(
      error_of([&] { read_value<shop::OldItem>(value.asReader(), reader, "value"); }).message(),
      HasSubstr("got twice 'name'"));
}

shop::Tree chain(int depth) {
  shop::Tree tree{depth, {}};
  if (depth > 1) tree.children.push_back(chain(depth - 1));
  return tree;
}

int depth_of(const shop::Tree& tree) {
  return 1 + (tree.children.empty() ? 0 : depth_of(tree.children[0]));
}

TEST(Struct, MayHoldItsOwnKindUpToTheDepthLimit) {
  // Each level of the tree is a struct with a list in it.
  const int deepest = kMaxValueDepth / 2;
  EXPECT_EQ(depth_of(round_trip(chain(deepest))), deepest);
  EXPECT_THAT(error_of([&] { to_message(chain(deepest + 1)); }).message(),
              HasSubstr("more than 64 lists, maps and structs in each other"));
}

}  // namespace
}  // namespace farspan::testing
