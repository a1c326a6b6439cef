// What travels, and whose it is meanwhile.
#include "conformance/rpc_suite.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <utility>

namespace farspan::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

struct Layer {
  std::string name;
  Tensor weight;
  std::optional<Tensor> bias;
};
FARSPAN_STRUCT(Layer, name, weight, bias);
struct Model {
  std::vector<Layer> layers;
  std::map<std::string, double> settings;
  int64_t epoch = 0;
};
FARSPAN_STRUCT(Model, layers, settings, epoch);

using Numbers = std::vector<int64_t>;
using Named = std::map<std::string, Tensor>;
using Mixed = std::tuple<bool, int64_t, std::string, std::optional<double>>;
using CounterRef = RRef<int64_t>;
struct Basket {
  std::vector<CounterRef> refs;
  std::map<std::string, CounterRef> named;
};
FARSPAN_STRUCT(Basket, refs, named);

template <class T>
T same(const T& value) {
  return value;
}
int64_t sum_of_basket(const Basket& basket) {
  int64_t sum = 0;
  for (const auto& ref : basket.refs) sum += ref.to_here();
  for (const auto& [name, ref] : basket.named) sum += ref.to_here();
  return sum;
}
Basket basket_of(const std::vector<CounterRef>& refs, int64_t own) {
  return {refs, {{"own", CounterRef(own)}}};
}
std::vector<Tensor> split(const Tensor& x, int64_t parts) { return x.chunk(parts); }
bool are_one(const Tensor& a, const Tensor& b) { return a.is_same(b); }
// 1 + the size of the storage, for what arrived of a view.
int64_t storage_bytes(const Tensor& x) { return static_cast<int64_t>(x.storage().nbytes()); }

FARSPAN_REGISTER_AS("same.bool", same<bool>);
FARSPAN_REGISTER_AS("same.int", same<int64_t>);
FARSPAN_REGISTER_AS("same.double", same<double>);
FARSPAN_REGISTER_AS("same.text", same<std::string>);
FARSPAN_REGISTER_AS("same.numbers", same<Numbers>);
FARSPAN_REGISTER_AS("same.named", same<Named>);
FARSPAN_REGISTER_AS("same.mixed", same<Mixed>);
FARSPAN_REGISTER_AS("same.model", same<Model>);
FARSPAN_REGISTER_AS("same.tensor", same<Tensor>);
// Of tensors that came, and kept for those that will.
int64_t memory_of_tensors() {
  const auto counters = current_worker().counters();
  return static_cast<int64_t>(counters.received_memory + counters.idle_memory);
}
FARSPAN_REGISTER(memory_of_tensors);
FARSPAN_REGISTER(sum_of_basket, basket_of, split, are_one, storage_bytes);

// A value of each kind of tensor.
std::vector<std::pair<const char*, Tensor>> every_kind() {
  const Tensor x = at::arange(24, at::kFloat).reshape({4, 6});
  const Tensor dense = at::eye(5) * 3;
  std::vector<std::pair<const char*, Tensor>> kinds = {
      {"contiguous", x},
      {"transposed", x.t()},
      {"sliced", x.slice(1, 1, 5, 2)},
      {"expanded", at::ones({1, 3}).expand({4, 3})},
      {"channels last", at::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)},
      {"0-dim", at::scalar_tensor(2.5)},
      {"empty", at::empty({0, 3})},
      {"empty and strided", at::empty({3, 0}).t()},
      {"large", at::rand({512, 1024})},
      {"large and transposed", at::rand({512, 1024}).t()},
      {"large view", at::rand({4, 512, 512})[2]},
      {"not a number", at::full({3}, std::numeric_limits<double>::quiet_NaN(), at::kDouble)},
      {"requires a gradient", at::rand({3}).requires_grad_(true)},
      {"conjugate", at::rand({3}, at::kComplexFloat).conj()},
      {"negative view", at::_neg_view(at::rand({3}))},
      {"sparse", dense.to_sparse()},
      {"sparse, not coalesced",
       at::_sparse_coo_tensor_unsafe(at::zeros({1, 3}, at::kLong), at::ones({3}), {4})},
      {"sparse rows", dense.to_sparse_csr()},
      {"sparse columns", dense.to_sparse_csc()},
      {"large and sparse", at::rand({300, 300}).to_sparse()},
  };
  for (const auto dtype :
       {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kFloat, at::kDouble,
        at::kBFloat16, at::kBool, at::kComplexFloat, at::kComplexDouble, at::kComplexHalf,
        at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kUInt16, at::kUInt32, at::kUInt64}) {
    kinds.emplace_back(c10::toString(dtype), at::arange(10, at::kFloat).to(dtype));
  }
  return kinds;
}

Tensor plain(const Tensor& x) {
  const c10::AutoGradMode no_grad(false);
  const Tensor dense = x.layout() == at::kStrided ? x : x.to_dense();
  return dense.detach().resolve_conj().resolve_neg().contiguous();
}
bool same_bits(const Tensor& a, const Tensor& b) {
  return a.nbytes() == b.nbytes() &&
         (a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0);
}

}  // namespace

TEST_P(RpcSuite, PlainValuesTravelBothWays) {
  start();
  for (const bool value : {true, false}) EXPECT_EQ(w0().rpc_sync("w1", same<bool>, value), value);
  using Limits = std::numeric_limits<int64_t>;
  for (const int64_t value : {int64_t{0}, int64_t{-1}, Limits::min(), Limits::max()}) {
    EXPECT_EQ(w0().rpc_sync("w1", same<int64_t>, value), value);
  }
  for (const double value : {0.1, -0.0, std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(w0().rpc_sync("w1", same<double>, value), value);
  }
  for (const size_t size : {size_t{0}, size_t{1}, size_t{20'000}, size_t{1'000'000}}) {
    const std::string text(size, '\0');
    EXPECT_EQ(w0().rpc_sync("w1", same<std::string>, text), text);
  }
  EXPECT_EQ(w0().rpc_sync("w1", same<Numbers>, Numbers{}), Numbers{});
  const Numbers many(100'000, 7);
  EXPECT_EQ(w0().rpc_sync("w1", same<Numbers>, many), many);
  const Mixed mixed{true, 5, "five", std::nullopt};
  EXPECT_EQ(w0().rpc_sync("w1", same<Mixed>, mixed), mixed);
}

TEST_P(RpcSuite, EveryKindOfTensorTravels) {
  start();
  for (const auto& [kind, tensor] : every_kind()) {
    SCOPED_TRACE(kind);
    for (const int worker : {0, 1}) {
      const Tensor back = w0().rpc_sync(worker, same<Tensor>, tensor);
      EXPECT_EQ(back.sizes(), tensor.sizes());
      EXPECT_EQ(back.scalar_type(), tensor.scalar_type());
      EXPECT_EQ(back.layout(), tensor.layout());
      EXPECT_EQ(back.requires_grad(), tensor.requires_grad());
      EXPECT_TRUE(same_bits(plain(back), plain(tensor)));
      if (tensor.layout() == at::kStrided && tensor.numel() > 0 &&
          tensor.is_non_overlapping_and_dense()) {
        EXPECT_EQ(back.strides(), tensor.strides());
      }
    }
  }
  EXPECT_FALSE(w0().rpc_sync("w1", same<Tensor>, Tensor()).defined());
}

TEST_P(RpcSuite, ATensorThatCannotTravelIsRefusedByName) {
  start();
  const Tensor quantized = at::quantize_per_tensor(at::rand({4}), 0.1, 0, at::kQInt8);
  const Error error = error_of([&] { w0().rpc_sync("w1", same<Tensor>, quantized); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("dequantize()"));
  EXPECT_EQ(w0().rpc_sync("w1", add, 1, 1), 2);
}

TEST_P(RpcSuite, OfAViewOnlyWhatItSeesTravels) {
  start();
  const Tensor large = at::rand({1024, 1024});
  EXPECT_EQ(w0().rpc_sync("w1", storage_bytes, large[3]), 4096);
  const auto parts = w0().rpc_sync("w1", split, large, 2);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_TRUE(at::equal(at::cat(parts), large));
  // Expect: one tensor given twice is one there.
  EXPECT_TRUE(w0().rpc_sync("w1", are_one, large, large));
}

TEST_P(RpcSuite, StructsListsAndMapsTravelInsideEachOther) {
  start();
  const Model model{
      {{"first", at::rand({3, 3}), at::rand({3})}, {"second", at::rand({100, 100}), {}}},
      {{"lr", 0.1}, {"momentum", 0.9}},
      7};
  const Model back = w0().rpc_sync("w1", same<Model>, model);
  ASSERT_EQ(back.layers.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(back.layers[i].name, model.layers[i].name);
    EXPECT_TRUE(at::equal(back.layers[i].weight, model.layers[i].weight));
    EXPECT_EQ(back.layers[i].bias.has_value(), model.layers[i].bias.has_value());
  }
  EXPECT_EQ(back.settings, model.settings);
  EXPECT_EQ(back.epoch, 7);
  const Named named = {{"a", at::ones({2})}, {"b", at::zeros({2, 2}, at::kBFloat16)}};
  const Named named_back = w0().rpc_sync("w1", same<Named>, named);
  ASSERT_EQ(named_back.size(), 2u);
  EXPECT_TRUE(at::equal(named_back.at("b"), named.at("b")));
}

TEST_P(RpcSuite, AnArgumentThatIsReturnedIsNotCopied) {
  start();
  if (!GetParam().real) GTEST_SKIP() << "simulated messengers have no memory of their own";
  constexpr int64_t kBytes = 9 << 20;  // a size of this test's only
  const Tensor x = at::ones({kBytes}, at::kByte);
  const int64_t before = w0().rpc_sync("w1", memory_of_tensors);
  EXPECT_TRUE(at::equal(w0().rpc_sync("w1", same<Tensor>, x), x));
  EXPECT_LT(w0().rpc_sync("w1", memory_of_tensors) - before, 3 * kBytes / 2);
}

TEST_P(RpcSuite, ReferencesTravelInsideContainers) {
  start();
  const CounterRef near = w0().remote("w1", add, 1, 1);
  const CounterRef far = w0().remote("w2", add, 20, 1);
  const CounterRef own(w0(), 300);
  EXPECT_EQ(w0().rpc_sync("w1", sum_of_basket, Basket{{near, far, near}, {{"own", own}}}), 325);
  const Basket back = w0().rpc_sync("w2", basket_of, std::vector<CounterRef>{near, own}, 4000);
  ASSERT_EQ(back.refs.size(), 2u);
  EXPECT_EQ(back.refs[0], near);
  EXPECT_EQ(back.refs[1], own);
  EXPECT_TRUE(back.refs[1].is_owner());
  EXPECT_EQ(back.named.at("own").owner().name, "w2");
  EXPECT_EQ(back.named.at("own").to_here(), 4000);
}

TEST_P(RpcSuite, AWrongArgumentIsNamedWithItsPlaceAndTypes) {
  start();
  const Tensor x = at::ones({2});
  const Error error = error_of(
      [&] { rpc_sync<Tensor>("w1", builtin("aten::add.Tensor"), x, std::string("no tensor")); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.what(), HasSubstr("aten::add"));
}

}  // namespace farspan::testing
