#include <farspan/c10d/values/tensor_codec.h>

#include <gmock/gmock.h>

#include <ATen/ATen.h>

#include <farspan/c10d/values/buffer_tensor.h>

#include "c10d/values/message_fixture.h"
#include "support/errors.h"

namespace farspan::testing {
namespace {

using ::testing::HasSubstr;

std::vector<at::ScalarType> all_but_quantized() {
  std::vector<at::ScalarType> types;
  for (int i = 0; i < static_cast<int>(at::ScalarType::NumOptions); ++i) {
    const auto type = static_cast<at::ScalarType>(i);
    if (type != at::ScalarType::Undefined && !c10::isQIntType(type)) types.push_back(type);
  }
  return types;
}

std::vector<std::byte> row_major_bytes(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().resolve_conj().resolve_neg().contiguous();
  const auto* begin = static_cast<const std::byte*>(plain.const_data_ptr());
  return {begin, begin + plain.nbytes()};
}

// Equal in everything that travels, to the bit; works for dtypes that cannot be compared.
void expect_same(const at::Tensor& got, const at::Tensor& sent) {
  ASSERT_EQ(got.defined(), sent.defined());
  if (!sent.defined()) return;
  EXPECT_EQ(got.scalar_type(), sent.scalar_type());
  EXPECT_EQ(got.sizes(), sent.sizes());
  EXPECT_EQ(got.layout(), sent.layout());
  EXPECT_EQ(got.requires_grad(), sent.requires_grad());
  EXPECT_TRUE(got.is_leaf());
  if (sent.layout() == at::kStrided) {
    EXPECT_EQ(row_major_bytes(got), row_major_bytes(sent));
  }
}

at::Tensor sample(at::ScalarType type, int64_t size) {
  at::Tensor tensor = at::empty({size}, type);
  const at::Tensor bytes = at::randint(0, 2, static_cast<int64_t>(tensor.nbytes()), at::kByte);
  if (size > 0) std::memcpy(tensor.mutable_data_ptr(), bytes.const_data_ptr(), tensor.nbytes());
  return tensor;
}

size_t bytes_beside(const at::Tensor& tensor) {
  size_t bytes = 0;
  for (const Buffer& segment : to_message(tensor).segments) bytes += segment.size();
  return bytes;
}

TEST(TensorCodec, KeepsTheBitsOfEveryDtype) {
  for (const at::ScalarType type : all_but_quantized()) {
    SCOPED_TRACE(c10::toString(type));
    for (const int64_t size : {0, 1, 7, 3000, 20'000}) {
      const at::Tensor tensor = sample(type, size);
      expect_same(round_trip(tensor), tensor);
    }
  }
}

TEST(TensorCodec, KeepsZeroDimensionalAndEmptyTensors) {
  for (const at::Tensor& tensor :
       {at::scalar_tensor(3.5), at::empty({0}), at::empty({0, 4}, at::kLong), at::empty({2, 0, 3}),
        at::empty({0, 4}).t()}) {
    expect_same(round_trip(tensor), tensor);
  }
}

TEST(TensorCodec, KeepsAnUndefinedTensor) { EXPECT_FALSE(round_trip(at::Tensor()).defined()); }

TEST(TensorCodec, KeepsRequiresGradAndSendsNoGraph) {
  const at::Tensor leaf = at::ones({3}).requires_grad_();
  expect_same(round_trip(leaf), leaf);
  const at::Tensor inner = leaf * 2;
  const at::Tensor got = round_trip(inner);
  EXPECT_TRUE(got.requires_grad());
  EXPECT_FALSE(got.grad_fn());
}

TEST(TensorCodec, SendsOnlyTheBytesOfAView) {
  const at::Tensor large = at::rand({1000, 1000});
  for (const at::Tensor& view : {large[3], large.narrow(1, 10, 2), large.select(1, 7),
                                 large.as_strided({4, 4}, {2000, 3}, 17)}) {
    EXPECT_EQ(bytes_beside(view), view.nbytes());
    expect_same(round_trip(view), view);
  }
}

TEST(TensorCodec, SendsAnExpandedTensorRowMajor) {
  const at::Tensor wide = at::arange(3).unsqueeze(1).expand({3, 4});
  const at::Tensor got = round_trip(wide);
  EXPECT_TRUE(got.is_contiguous());
  EXPECT_TRUE(got.equal(wide));
}

TEST(TensorCodec, KeepsTheStridesOfDenseTensors) {
  const at::Tensor image = at::rand({2, 3, 8, 8}).contiguous(at::MemoryFormat::ChannelsLast);
  const at::Tensor large = at::rand({2, 3, 64, 64}).contiguous(at::MemoryFormat::ChannelsLast);
  for (const at::Tensor& tensor :
       {image, large, at::rand({4, 6}).t(), at::rand({2, 3, 4}).permute({2, 0, 1}),
        at::rand({4, 1, 3}).as_strided({4, 1, 3}, {1, 1 << 30, 4})}) {
    const at::Tensor got = round_trip(tensor);
    EXPECT_TRUE(got.equal(tensor));
    for (int64_t d = 0; d < tensor.dim(); ++d) {
      if (tensor.size(d) == 1) continue;
      EXPECT_EQ(got.stride(d), tensor.stride(d));
    }
  }
}

TEST(TensorCodec, ResolvesConjugateNegativeAndZeroViews) {
  const at::Tensor complex = at::randn({5}, at::kComplexFloat);
  const at::Tensor zero = at::_efficientzerotensor({4});
  for (const at::Tensor& view :
       {complex.conj(), at::imag(complex.conj()), zero, complex.conj().requires_grad_()}) {
    const at::Tensor got = round_trip(view);
    EXPECT_FALSE(got.is_conj() || got.is_neg() || got._is_zerotensor());
    EXPECT_TRUE(got.equal(view));
  }
}

TEST(TensorCodec, KeepsSixtyFourDimensions) {
  const at::Tensor tensor = at::rand(std::vector<int64_t>(64, 1));
  expect_same(round_trip(tensor), tensor);
}

TEST(TensorCodec, RefusesWhatCannotTravelAndSaysWhy) {
  const auto why = [](const at::Tensor& tensor) {
    const Error error = error_of([&] { to_message(tensor); });
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    return std::string(error.what());
  };
  EXPECT_THAT(why(at::quantize_per_tensor(at::rand({3}), 0.1, 0, at::kQInt8)),
              HasSubstr("QInt8 cannot travel; dequantize()"));
  EXPECT_THAT(why(at::empty({3}, at::kMeta)), HasSubstr("a meta tensor, which has no memory"));
  EXPECT_THAT(why(at::_nested_tensor_from_tensor_list({at::ones({1}), at::ones({2})})),
              HasSubstr("nested tensor"));
  at::Tensor freed = at::rand({100});
  freed.storage().set_nbytes(0);
  EXPECT_THAT(why(freed), HasSubstr("storage was resized away"));
}

TEST(TensorCodec, NamesTheLibraryThatSendsTensorsOfGpus) {
  float nowhere = 0;  // nobody reads it
  c10::Storage storage(c10::Storage::use_byte_size_t(), sizeof nowhere,
                       c10::DataPtr(&nowhere, c10::Device(c10::kCUDA, 0)), nullptr, false);
  const at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA),
      caffe2::TypeMeta::Make<float>());
  const Error error = error_of([&] { to_message(tensor); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("on device cuda:0"), HasSubstr("link farspan::cuda")));
}

TEST(TensorCodec, SendsTheSameTensorOnce) {
  const at::Tensor tensor = at::rand({10});
  const Message message = to_message(tensor, tensor);
  EXPECT_EQ(message.segments.size(), 1u);
  EXPECT_TRUE(from_message<at::Tensor>(message, 1).equal(tensor));
}

TEST(TensorCodec, BorrowsSmallTensorsAndKeepsLargeOnesAlive) {
  MetaBuilder meta;
  auto payload = meta.init_root<schema::Payload>();
  std::vector<Buffer> segments;
  Writer writer(segments);
  at::Tensor small = at::rand({4}), large = at::rand({100'000});
  const void* bytes = large.const_data_ptr();
  writer.add(small);
  writer.add(large);
  write_tensors(payload, writer);
  EXPECT_EQ(segments[0].data(), small.const_data_ptr());
  EXPECT_FALSE(segments[0].owner());
  EXPECT_EQ(segments[1].data(), bytes);
  writer.tensors().clear();
  large.reset();
  EXPECT_EQ(segments[1].owner().use_count(), 1);
  EXPECT_EQ(static_cast<const c10::Storage*>(segments[1].owner().get())->data(), bytes);
}

// A reply may still be on its way when the next request changes the parameter.
TEST(TensorCodec, CopiesALargeResultThatSomebodyElseCanChange) {
  const auto data_sent_for = [](at::Tensor result, Bulk bulk) {
    MetaBuilder meta;
    auto payload = meta.init_root<schema::Payload>();
    std::vector<Buffer> segments;
    Writer writer(segments);
    writer.add(result);
    result.reset();
    write_tensors(payload, writer, bulk);
    return static_cast<const void*>(segments.at(0).data());
  };
  const at::Tensor held = at::rand({100'000});
  EXPECT_EQ(data_sent_for(held, Bulk::kShare), held.const_data_ptr());
  EXPECT_NE(data_sent_for(held, Bulk::kCopyIfShared), held.const_data_ptr());
  at::Tensor given = at::rand({100'000});
  const void* const place = given.const_data_ptr();
  EXPECT_EQ(data_sent_for(std::move(given), Bulk::kCopyIfShared), place);
  at::Tensor aliased = at::rand({100'000});
  const at::Tensor alias = aliased.detach();
  EXPECT_NE(data_sent_for(std::move(aliased), Bulk::kCopyIfShared), alias.const_data_ptr());
}

TEST(TensorCodec, TakesTheStorageOverOfALargeTensorThatNobodyElseHas) {
  for (const Bulk bulk : {Bulk::kShare, Bulk::kCopyIfShared}) {
    MetaBuilder meta;
    auto payload = meta.init_root<schema::Payload>();
    std::vector<Buffer> segments;
    Writer writer(segments);
    const Buffer buffer = Buffer::allocate(400'000);
    writer.add(at::rand({100'000}));
    writer.add(tensor_over(buffer, {100'000}, {}, at::kFloat));
    writer.add(at::rand({10}));
    const void* const bytes = writer.tensors()[0].const_data_ptr();
    BorrowedTensors borrowed;
    write_tensors(payload, writer, bulk, &borrowed);
    EXPECT_EQ(segments[0].data(), bytes);
    EXPECT_FALSE(writer.tensors()[0].defined());
    EXPECT_FALSE(writer.tensors()[1].defined());
    EXPECT_EQ(segments[1].owner(), buffer.owner()) << "the buffer's own, and nothing above it";
    EXPECT_EQ(buffer.owner().use_count(), 2);
    EXPECT_TRUE(writer.tensors()[2].defined()) << "a small one is borrowed";
  }
}

TEST(TensorCodec, AdoptsLargeAlignedSegmentsAndCopiesOthers) {
  const at::Tensor tensor = at::rand({100'000});
  Message message = to_message(tensor);
  const std::weak_ptr<void> owner = message.segments[0].owner();
  const std::byte* bytes = message.segments[0].data();
  at::Tensor got = from_message<at::Tensor>(message);
  EXPECT_EQ(got.const_data_ptr(), bytes);
  message.segments.clear();
  EXPECT_FALSE(owner.expired());
  EXPECT_TRUE(got.equal(tensor));
  got.reset();
  EXPECT_TRUE(owner.expired());

  message = to_message(tensor);
  const Buffer shifted = Buffer::allocate(tensor.nbytes() + 64);
  const size_t offset = 8 + (64 - reinterpret_cast<uintptr_t>(shifted.data()) % 64) % 64;
  std::memcpy(shifted.data() + offset, message.segments[0].data(), tensor.nbytes());
  message.segments[0] = shifted.slice(offset, tensor.nbytes());
  got = from_message<at::Tensor>(message);
  EXPECT_NE(got.const_data_ptr(), message.segments[0].data());
  EXPECT_TRUE(got.equal(tensor));
}

TEST(TensorCodec, GivesTensorsThatMayBeResizedWhateverTheirSize) {
  for (const int64_t size : {10, 100'000}) {
    at::Tensor got = round_trip(at::rand({size}));
    got.resize_({size * 2});
    got.fill_(1);
    EXPECT_EQ(got.numel(), size * 2);
  }
}

// ---- sparse ----

at::Tensor sparse_sample(at::Layout layout) {
  const at::Tensor dense = at::eye(4, at::kDouble) + at::eye(4, at::kDouble).roll(2, 1);
  if (layout == at::kSparseBsr || layout == at::kSparseBsc) {
    return dense.to_sparse(layout, at::IntArrayRef({2, 2}));
  }
  return dense.to_sparse(layout);
}

TEST(TensorCodec, KeepsSparseTensorsOfEveryLayout) {
  for (const at::Layout layout :
       {at::kSparse, at::kSparseCsr, at::kSparseCsc, at::kSparseBsr, at::kSparseBsc}) {
    for (const bool grad : {false, true}) {
      const at::Tensor tensor = sparse_sample(layout).requires_grad_(grad);
      const at::Tensor got = round_trip(tensor);
      expect_same(got, tensor);
      EXPECT_TRUE(got.detach().to_dense().equal(tensor.detach().to_dense()));
    }
  }
}

TEST(TensorCodec, KeepsUncoalescedHybridAndEmptySparseTensors) {
  const at::Tensor indices = at::tensor({1, 1, 0}, at::kLong).reshape({1, 3});
  const at::Tensor hybrid = at::sparse_coo_tensor(indices, at::rand({3, 2}), {4, 2});
  EXPECT_FALSE(hybrid.is_coalesced());
  const at::Tensor empty =
      at::sparse_coo_tensor({1000, 1000}, at::TensorOptions(at::kFloat).layout(at::kSparse));
  const at::Tensor coalesced = hybrid.coalesce();
  for (const at::Tensor& tensor : {hybrid, coalesced, empty}) {
    const at::Tensor got = round_trip(tensor);
    EXPECT_EQ(got.is_coalesced(), tensor.is_coalesced());
    EXPECT_EQ(got._nnz(), tensor._nnz());
    EXPECT_EQ(got.sparse_dim(), tensor.sparse_dim());
    EXPECT_TRUE(got.to_dense().equal(tensor.to_dense()));
  }
}

// Made row-major for the message, which must keep what was made for it.
TEST(TensorCodec, KeepsSparseTensorsOfTransposedParts) {
  const at::Tensor indices = at::arange(60, at::kLong).reshape({30, 2}).t();
  const at::Tensor values = at::rand({2, 30}).t();
  const at::Tensor tensor = at::sparse_coo_tensor(indices, values, {60, 60, 2});
  ASSERT_FALSE(tensor._indices().is_contiguous());
  ASSERT_FALSE(tensor._values().is_contiguous());
  const at::Tensor got = round_trip(tensor);
  EXPECT_TRUE(at::equal(got._indices(), indices));
  EXPECT_TRUE(at::equal(got._values(), values));
}

TEST(TensorCodec, KeepsLargeSparseTensors) {
  const at::Tensor indices = at::randint(0, 100'000, {1, 20'000}, at::kLong);
  const at::Tensor rows = at::sparse_coo_tensor(indices, at::rand({20'000, 4}), {100'000, 4});
  EXPECT_TRUE(round_trip(rows).to_dense().equal(rows.to_dense()));
}

TEST(TensorCodec, KeepsBatchedCsrWithInt32Indices) {
  const at::Tensor dense = at::eye(3).expand({2, 3, 3}).contiguous();
  const at::Tensor csr = dense.to_sparse(at::kSparseCsr);
  const at::Tensor narrow =
      at::sparse_csr_tensor(csr.crow_indices().to(at::kInt), csr.col_indices().to(at::kInt),
                            csr.values(), csr.sizes(), csr.options());
  const at::Tensor got = round_trip(narrow);
  EXPECT_EQ(got.crow_indices().scalar_type(), at::kInt);
  EXPECT_TRUE(got.to_dense().equal(dense));
}

}  // namespace
}  // namespace farspan::testing
