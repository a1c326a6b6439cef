#include <farspan/c10d/values/codec.h>

#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <random>

#include "c10d/values/message_fixture.h"
#include "support/errors.h"

namespace farspan::testing {
namespace {

using ::testing::HasSubstr;

enum class Colour : uint8_t { kRed = 1, kBlue = 200 };

template <class T>
std::vector<T> interesting() {
  using Limits = std::numeric_limits<T>;
  return {T(0), T(1), Limits::lowest(), Limits::max(), T(42)};
}

template <class T>
class CodecOfNumber : public ::testing::Test {};
using Numbers = ::testing::Types<int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t,
                                 uint64_t, float, double, char, long long, unsigned long long>;
TYPED_TEST_SUITE(CodecOfNumber, Numbers);

TYPED_TEST(CodecOfNumber, KeepsEveryValue) {
  for (const TypeParam value : interesting<TypeParam>()) EXPECT_EQ(round_trip(value), value);
}

TYPED_TEST(CodecOfNumber, KeepsVectorsOfAnyLength) {
  for (const size_t size : {0, 1, 3, 7, 1000, 20'000}) {
    std::vector<TypeParam> values(size);
    for (size_t i = 0; i < size; ++i) values[i] = static_cast<TypeParam>(i * 7);
    EXPECT_EQ(round_trip(values), values);
  }
}

TYPED_TEST(CodecOfNumber, KeepsArrays) {
  const std::array<TypeParam, 5> values{1, 2, 3, 4, 5};
  EXPECT_EQ(round_trip(values), values);
  EXPECT_EQ((round_trip(std::array<TypeParam, 0>{})), (std::array<TypeParam, 0>{}));
}

TEST(Codec, KeepsTheBitsOfFloats) {
  EXPECT_TRUE(std::isnan(round_trip(std::nan(""))));
  EXPECT_TRUE(std::signbit(round_trip(-0.0)));
  EXPECT_EQ(round_trip(std::numeric_limits<float>::denorm_min()),
            std::numeric_limits<float>::denorm_min());
  EXPECT_EQ(round_trip(-std::numeric_limits<double>::infinity()),
            -std::numeric_limits<double>::infinity());
}

TEST(Codec, KeepsStringsOfAnyBytesAndLength) {
  for (const std::string& text : {std::string(), std::string("plain"), std::string("a\0b\xff", 4),
                                  std::string(kMaxInlineBytes, 'x'), std::string(1 << 20, 'y')}) {
    EXPECT_EQ(round_trip(text), text);
  }
}

TEST(Codec, SendsLongTextBesideTheMessage) {
  const Message small = to_message(std::string(kMaxInlineBytes, 'x'));
  const Message large = to_message(std::string(kMaxInlineBytes + 1, 'x'));
  EXPECT_TRUE(small.segments.empty());
  ASSERT_EQ(large.segments.size(), 1u);
  EXPECT_EQ(large.segments[0].size(), kMaxInlineBytes + 1);
  EXPECT_LT(large.meta.size(), 100u);
}

TEST(Codec, KeepsBytes) {
  const std::vector<std::byte> bytes{std::byte{0}, std::byte{255}, std::byte{7}};
  EXPECT_EQ(round_trip(bytes), bytes);
}

TEST(Codec, KeepsBoolsEnumsAndDurations) {
  EXPECT_TRUE(round_trip(true));
  EXPECT_FALSE(round_trip(false));
  EXPECT_EQ(round_trip(Colour::kBlue), Colour::kBlue);
  EXPECT_EQ(round_trip(Millis(-5)), Millis(-5));
  EXPECT_EQ(round_trip(std::chrono::duration<double>(0.25)), std::chrono::duration<double>(0.25));
  EXPECT_EQ(round_trip(std::vector<bool>{true, false, true}),
            (std::vector<bool>{true, false, true}));
  EXPECT_EQ(round_trip(std::vector<Colour>{Colour::kRed, Colour::kBlue}),
            (std::vector<Colour>{Colour::kRed, Colour::kBlue}));
}

TEST(Codec, KeepsContainersInContainers) {
  using Nested = std::map<std::string, std::vector<std::pair<int, std::optional<std::string>>>>;
  const Nested nested{{"a", {{1, "x"}, {2, std::nullopt}}}, {"", {}}};
  EXPECT_EQ(round_trip(nested), nested);
  const std::unordered_map<int64_t, std::set<std::string>> sets{{1, {"p", "q"}}, {-2, {}}};
  EXPECT_EQ(round_trip(sets), sets);
  const std::unordered_set<std::string> words{"one", "two"};
  EXPECT_EQ(round_trip(words), words);
  const std::tuple<> nothing;
  EXPECT_EQ(round_trip(nothing), nothing);
  const std::tuple<int, std::string, double> three{1, "2", 3.0};
  EXPECT_EQ(round_trip(three), three);
  const std::array<std::string, 2> two{"a", "b"};
  EXPECT_EQ(round_trip(two), two);
}

TEST(Codec, KeepsVariants) {
  using Choice = std::variant<std::monostate, int, std::string, std::vector<double>>;
  for (const Choice& choice :
       {Choice(), Choice(7), Choice("text"), Choice(std::vector<double>{1, 2})}) {
    EXPECT_EQ(round_trip(choice), choice);
  }
}

TEST(Codec, NamesTypesAlikeForBothSides) {
  EXPECT_EQ(Codec<int>::type_name(), "int32");
  EXPECT_EQ(Codec<long long>::type_name(), Codec<int64_t>::type_name());
  EXPECT_EQ((Codec<std::vector<std::optional<std::string>>>::type_name()),
            "list<optional<string>>");
  EXPECT_EQ((Codec<std::map<std::string, at::Tensor>>::type_name()), "map<string,tensor>");
  EXPECT_EQ((Codec<std::unordered_map<std::string, at::Tensor>>::type_name()),
            "map<string,tensor>");
  EXPECT_EQ((Codec<std::tuple<float, bool>>::type_name()), "tuple<float32,bool>");
  EXPECT_EQ((Codec<std::variant<int, float>>::type_name()), "variant<int32|float32>");
  EXPECT_EQ((Codec<std::array<double, 3>>::type_name()), "array<float64,3>");
  EXPECT_EQ(Codec<std::vector<uint8_t>>::type_name(), "bytes");
}

TEST(Codec, RefusesAnotherTypeAndNamesBoth) {
  const Error error = error_of([] { from_message<std::string>(to_message(int64_t{7})); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_EQ(error.message(), "value: expected string, got int64 7");
}

TEST(Codec, RefusesNumbersOutOfRange) {
  const auto refuses = [](auto wanted, auto value) {
    const Error error = error_of([&] { from_message<decltype(wanted)>(to_message(value)); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << +value;
  };
  refuses(int8_t{}, 128);
  refuses(int8_t{}, -129);
  refuses(uint8_t{}, -1);
  refuses(uint8_t{}, 256);
  refuses(uint64_t{}, -1);
  refuses(uint32_t{}, int64_t{1} << 32);
  refuses(int64_t{}, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(from_message<int8_t>(to_message(int64_t{-128})), -128);
  EXPECT_EQ(from_message<uint64_t>(to_message(int64_t{5})), 5u);
}

TEST(Codec, TellsWhereInAListTheMistakeIs) {
  using Wrong = std::vector<std::map<std::string, std::string>>;
  using Right = std::vector<std::map<std::string, bool>>;
  const Wrong wrong{{}, {{"a", "b"}}};
  const Error error = error_of([&] { from_message<Right>(to_message(wrong)); });
  EXPECT_EQ(error.message(), "value, at [1][0]: expected bool, got string");
}

TEST(Codec, RefusesListsOfTheWrongLength) {
  const std::vector<std::string> three{"a", "b", "c"};
  using Pair = std::pair<std::string, std::string>;
  EXPECT_THAT(error_of([&] { from_message<Pair>(to_message(three)); }).message(),
              HasSubstr("expected tuple<string,string>, got a list of 3"));
  using Two = std::array<std::string, 2>;
  EXPECT_EQ(error_of([&] { from_message<Two>(to_message(three)); }).code(), Code::kInvalidArgument);
  using TwoNumbers = std::array<int, 2>;
  EXPECT_EQ(error_of([&] { from_message<TwoNumbers>(to_message(std::vector<int>{1})); }).code(),
            Code::kInvalidArgument);
}

TEST(Codec, RefusesKeysAndElementsThatComeTwice) {
  const std::vector<std::string> twice{"a", "a"};
  EXPECT_EQ(error_of([&] { from_message<std::set<std::string>>(to_message(twice)); }).code(),
            Code::kCorrupt);
}

TEST(Codec, RefusesAFullOptionalThatCannotBeToldFromAnEmptyOne) {
  const std::optional<std::optional<int>> confusing{std::optional<int>()};
  EXPECT_EQ(error_of([&] { to_message(confusing); }).code(), Code::kInvalidArgument);
  const std::optional<std::optional<int>> clear{std::optional<int>(3)};
  EXPECT_EQ(round_trip(clear), clear);
}

TEST(Codec, RefusesAVariantAlternativeThatThereIsNot) {
  using Large = std::variant<int, float, std::string>;
  using Small = std::variant<int, float>;
  EXPECT_EQ(error_of([] { from_message<Small>(to_message(Large("x"))); }).code(),
            Code::kInvalidArgument);
}

TEST(Codec, KeepsScalarsOfEveryKind) {
  EXPECT_TRUE(round_trip(at::Scalar(true)).isBoolean());
  EXPECT_EQ(round_trip(at::Scalar(int64_t{-3})).toLong(), -3);
  EXPECT_EQ(round_trip(at::Scalar(std::numeric_limits<uint64_t>::max())).toUInt64(),
            std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(round_trip(at::Scalar(0.5)).toDouble(), 0.5);
  EXPECT_EQ(round_trip(at::Scalar(c10::complex<double>(1, -2))).toComplexDouble(),
            c10::complex<double>(1, -2));
}

TEST(Codec, KeepsDtypesAndDevices) {
  EXPECT_EQ(round_trip(at::kBFloat16), at::kBFloat16);
  EXPECT_EQ(round_trip(at::Device("cuda:1")), at::Device("cuda:1"));
  EXPECT_EQ(error_of([] { to_message(at::kQInt8); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([] { from_message<at::Device>(to_message(std::string("toaster"))); }).code(),
            Code::kInvalidArgument);
}

TEST(Codec, RefusesMoreMetadataThanAMessageMayHave) {
  const std::vector<std::string> many(1 << 20, "x");
  const Error error = error_of([&] { to_message(many); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("pass large data as tensors"));
}

TEST(Codec, WritesMessagesWithinMessages) {
  MetaBuilder outer;
  auto payload = outer.init_root<schema::Payload>();
  payload.initValues(1)[0].setInt64(1);
  const std::vector<std::string> inner{"while", "the outer one is", "being written"};
  EXPECT_EQ(round_trip(inner), inner);
  EXPECT_EQ(outer.finish().size() % 8, 0u);
}

TEST(Codec, KeepsLargeListsWhoseMessageTakesManyBlocks) {
  std::vector<std::pair<std::string, int>> many;
  for (int i = 0; i < 50'000; ++i) many.emplace_back(std::to_string(i), i);
  EXPECT_EQ(round_trip(many), many);
}

TEST(MetaReader, RefusesWhatIsNoMessage) {
  alignas(8) std::byte bytes[24]{};
  EXPECT_EQ(error_of([&] { MetaReader reader({bytes, 0}); }).code(), Code::kCorrupt);
  EXPECT_EQ(error_of([&] { MetaReader reader({bytes, 12}); }).code(), Code::kCorrupt);
  EXPECT_EQ(error_of([&] { MetaReader reader({bytes + 4, 16}); }).code(), Code::kCorrupt);
}

TEST(Reader, RefusesASegmentUsedByManyValues) {
  std::vector<Buffer> segments;
  segments.push_back(Buffer::allocate(kMaxInlineBytes + 8));
  Reader reader({}, segments);
  EXPECT_EQ(reader.segment(0).size(), kMaxInlineBytes + 8);
  EXPECT_THROW(reader.segment(0), BadValue);
  EXPECT_THROW(reader.segment(1), BadValue);
  EXPECT_THROW(reader.tensor(0), BadValue);
}

}  // namespace
}  // namespace farspan::testing
