// The rules that a tensor's description must keep, one by one; see read_tensors().
#include <gmock/gmock.h>

#include <ATen/ATen.h>

#include <functional>
#include <limits>

#include "c10d/values/message_fixture.h"
#include "support/errors.h"

namespace farspan::testing {
namespace {

using schema::DType;
using schema::Layout;
using ::testing::HasSubstr;

// A description that is right, of a tensor float32 [2, 3], for the tests to spoil.
void describe(schema::TensorDesc::Builder desc, std::initializer_list<int64_t> sizes = {2, 3}) {
  desc.setLayout(Layout::STRIDED);
  desc.setDtype(DType::FLOAT32);
  auto list = desc.initSizes(static_cast<unsigned>(sizes.size()));
  unsigned i = 0;
  for (const int64_t size : sizes) list.set(i++, size);
}

void set_strides(schema::TensorDesc::Builder desc, std::initializer_list<int64_t> strides) {
  auto list = desc.initStrides(static_cast<unsigned>(strides.size()));
  unsigned i = 0;
  for (const int64_t stride : strides) list.set(i++, stride);
}

// What reading says: "OK", or why the message is corrupt.
std::string verdict(schema::Payload::Reader payload, const std::vector<Buffer>& segments) {
  try {
    read_tensors(payload, segments);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kCorrupt);
    return error.message();
  }
  return "OK";
}

// Of a message of one tensor and the given segments.
std::string verdict(const std::function<void(schema::TensorDesc::Builder)>& spoil,
                    std::vector<size_t> segment_bytes = {24}) {
  MetaBuilder meta;
  auto payload = meta.init_root<schema::Payload>();
  spoil(payload.initTensors(1)[0]);
  std::vector<Buffer> segments;
  for (const size_t bytes : segment_bytes) segments.push_back(Buffer::allocate(bytes));
  return verdict(payload.asReader(), segments);
}

TEST(TensorChecks, PassARightDescription) {
  EXPECT_EQ(verdict([](auto desc) { describe(desc); }), "OK");
  EXPECT_EQ(verdict([](auto desc) {
              describe(desc);
              set_strides(desc, {1, 2});
            }),
            "OK");
}

TEST(TensorChecks, RefuseAnUnknownDtype) {
  EXPECT_THAT(verdict([](auto desc) {
                describe(desc);
                desc.setDtype(static_cast<DType>(999));
              }),
              HasSubstr("unknown dtype 999"));
}

TEST(TensorChecks, RefuseADeviceWhereThereIsNone) {
  const auto on_device = [](auto desc) {
    describe(desc);
    desc.setDevice(0);
  };
  EXPECT_THAT(verdict(on_device), HasSubstr("a device, where there can be none"));
  const auto lent = [](auto desc) {
    describe(desc);
    desc.initLent().setBytes(24);
  };
  EXPECT_THAT(verdict(lent), HasSubstr("a device, where there can be none"));
}

// Their indices are looked at.
TEST(TensorChecks, RefuseSparsePartsOnADevice) {
  for (const bool is_lent : {false, true}) {
    const auto verdict_on = verdict(
        [&](auto desc) {
          describe(desc, {2, 2});
          desc.setLayout(Layout::SPARSE_COO);
          auto parts = desc.initParts(2);
          for (unsigned i = 0; i < 2; ++i) {
            describe(parts[i], {1, 1});
            parts[i].setSegment(i);
          }
          if (is_lent) {
            parts[0].initLent().setBytes(4);
          } else {
            parts[0].setDevice(0);
          }
        },
        {4, 4});
    EXPECT_THAT(verdict_on, HasSubstr("or on a device"));
  }
}

TEST(TensorChecks, RefuseAnUnknownLayout) {
  EXPECT_THAT(verdict([](auto desc) {
                describe(desc);
                desc.setLayout(static_cast<Layout>(99));
              }),
              HasSubstr("unknown layout"));
}

TEST(TensorChecks, RefuseANegativeSize) {
  EXPECT_THAT(verdict([](auto desc) { describe(desc, {-1, -6}); }), HasSubstr("negative size"));
}

TEST(TensorChecks, RefuseSizesThatOverflow) {
  const int64_t large = int64_t{1} << 32;
  const auto says = HasSubstr("a size that no memory holds");
  EXPECT_THAT(verdict([=](auto desc) { describe(desc, {large, large}); }), says);
  EXPECT_THAT(verdict([=](auto desc) { describe(desc, {large, large, 0}); }), says);
  EXPECT_THAT(verdict([=](auto desc) { describe(desc, {large, large / 4}); }), says);
  // Times the size of an element, it would be the 24 bytes that there are.
  EXPECT_THAT(verdict([=](auto desc) { describe(desc, {(int64_t{1} << 62) + 6}); }), says);
}

TEST(TensorChecks, RefuseMoreThanSixtyFourDimensions) {
  EXPECT_THAT(verdict([](auto desc) {
                describe(desc);
                auto sizes = desc.initSizes(65);
                for (unsigned i = 0; i < 65; ++i) sizes.set(i, 1);
              }),
              HasSubstr("65 dimensions"));
}

TEST(TensorChecks, RefuseASegmentOfAnotherLength) {
  for (const size_t bytes : {0, 23, 25, 48}) {
    EXPECT_THAT(verdict([](auto desc) { describe(desc); }, {bytes}),
                HasSubstr("where its shape needs 24"));
  }
}

TEST(TensorChecks, RefuseASegmentThatThereIsNot) {
  EXPECT_THAT(verdict([](auto desc) { describe(desc); }, {}), HasSubstr("segment 0 of 0"));
  EXPECT_THAT(verdict([](auto desc) {
                describe(desc);
                desc.setSegment(std::numeric_limits<uint32_t>::max());
              }),
              HasSubstr("segment 4294967295 of 1"));
}

TEST(TensorChecks, RefuseASegmentThatBelongsToAnotherTensor) {
  MetaBuilder meta;
  auto tensors = meta.init_root<schema::Payload>();
  for (auto desc : tensors.initTensors(2)) describe(desc);
  const std::vector<Buffer> segments{Buffer::allocate(24)};
  EXPECT_EQ(error_of([&] { read_tensors(tensors.asReader(), segments); }).code(), Code::kCorrupt);
}

TEST(TensorChecks, RefuseStridesThatLeaveTheBytesOverlapOrHaveGaps) {
  const auto with = [](std::initializer_list<int64_t> strides) {
    return verdict([strides](auto desc) {
      describe(desc);
      set_strides(desc, strides);
    });
  };
  EXPECT_THAT(with({1}), HasSubstr("more or fewer strides"));
  EXPECT_THAT(with({3, -1}), HasSubstr("outside of its bytes"));
  EXPECT_THAT(with({int64_t{1} << 62, 1}), HasSubstr("outside of its bytes"));
  EXPECT_THAT(with({6, 1}), HasSubstr("gaps or overlap"));
  EXPECT_THAT(with({0, 0}), HasSubstr("gaps or overlap"));
  EXPECT_THAT(with({1, 1}), HasSubstr("gaps or overlap"));
}

TEST(TensorChecks, RefuseRequiresGradOnIntegers) {
  EXPECT_THAT(verdict([](auto desc) {
                describe(desc);
                desc.setDtype(DType::INT32);
                desc.setRequiresGrad(true);
              }),
              HasSubstr("requires_grad"));
}

// ---- sparse: the parts of a good tensor, spoilt ----

struct Spoil {
  const char* says;
  std::vector<int64_t> sizes;
  bool coalesced;
  std::vector<at::Tensor> parts;
};

std::string sparse_verdict(Layout layout, const Spoil& spoil) {
  MetaBuilder meta;
  auto payload = meta.init_root<schema::Payload>();
  auto desc = payload.initTensors(1)[0];
  desc.setLayout(layout);
  desc.setDtype(DType::FLOAT32);
  desc.setCoalesced(spoil.coalesced);
  auto sizes = desc.initSizes(static_cast<unsigned>(spoil.sizes.size()));
  for (unsigned i = 0; i < sizes.size(); ++i) sizes.set(i, spoil.sizes[i]);
  std::vector<Buffer> segments;
  auto parts = desc.initParts(static_cast<unsigned>(spoil.parts.size()));
  for (unsigned i = 0; i < parts.size(); ++i) {
    const at::Tensor part = spoil.parts[i].contiguous();
    parts[i].setLayout(Layout::STRIDED);
    parts[i].setDtype(part.scalar_type() == at::kFloat  ? DType::FLOAT32
                      : part.scalar_type() == at::kInt  ? DType::INT32
                      : part.scalar_type() == at::kLong ? DType::INT64
                                                        : DType::FLOAT64);
    parts[i].setSegment(i);
    auto part_sizes = parts[i].initSizes(static_cast<unsigned>(part.dim()));
    for (unsigned d = 0; d < part_sizes.size(); ++d) part_sizes.set(d, part.size(d));
    segments.push_back(
        Buffer::copy_of({static_cast<const std::byte*>(part.const_data_ptr()), part.nbytes()}));
  }
  return verdict(payload.asReader(), segments);
}

at::Tensor longs(std::vector<int64_t> numbers, std::vector<int64_t> sizes) {
  return at::tensor(numbers, at::kLong).reshape(sizes);
}

TEST(TensorChecks, RefuseACooTensorThatBreaksARule) {
  const at::Tensor good = longs({0, 1, 1, 0}, {2, 2}), values = at::rand({2});
  const Spoil cases[] = {
      {"OK", {2, 2}, true, {good, values}},
      {"wrong number of sparse parts", {2, 2}, true, {good, good, values}},
      {"indices of the wrong kind", {2, 2}, true, {good.to(at::kInt), values}},
      {"indices of the wrong kind", {2, 2}, true, {good.reshape({4}), values}},
      {"more or fewer values", {2, 2}, true, {good, at::rand({3})}},
      {"more or fewer values", {2, 2}, true, {good, at::rand({})}},
      {"another size", {2}, true, {good, values}},
      {"another size", {2, 2, 4}, true, {good, at::rand({2, 3})}},
      {"another dtype", {2, 2}, true, {good, values.to(at::kDouble)}},
      {"index outside", {1, 2}, true, {good, values}},
      {"index outside", {2, 2}, true, {longs({0, -1, 0, 0}, {2, 2}), values}},
  };
  for (const Spoil& spoil : cases) {
    EXPECT_THAT(sparse_verdict(Layout::SPARSE_COO, spoil), HasSubstr(spoil.says));
  }
}

TEST(TensorChecks, DropACoalescedFlagThatIsNotTrue) {
  const at::Tensor values = at::rand({2});
  for (const at::Tensor& indices : {longs({1, 0, 0, 0}, {2, 2}), longs({1, 1, 0, 0}, {2, 2})}) {
    const at::Tensor claimed = at::sparse_coo_tensor(indices, values, {2, 2})._coalesced_(true);
    const at::Tensor got = round_trip(claimed);
    EXPECT_FALSE(got.is_coalesced());
    EXPECT_TRUE(got._indices().equal(indices));
  }
}

TEST(TensorChecks, RefuseACompressedTensorThatBreaksARule) {
  const at::Tensor rows = longs({0, 1, 2}, {3}), columns = longs({0, 1}, {2});
  const at::Tensor values = at::rand({2});
  const Spoil cases[] = {
      {"OK", {2, 2}, false, {rows, columns, values}},
      {"OK", {2, 2}, false, {rows.to(at::kInt), columns.to(at::kInt), values}},
      {"wrong number of sparse parts", {2, 2}, false, {rows, values}},
      {"indices of two kinds", {2, 2}, false, {rows.to(at::kInt), columns, values}},
      {"indices of the wrong kind", {2, 2}, false, {at::rand({3}), at::rand({2}), values}},
      {"more or fewer values", {2, 2}, false, {rows, columns, at::rand({3})}},
      {"more or fewer values", {3, 2}, false, {rows, columns, values}},
      {"wrong dimensions", {2}, false, {rows, columns, values}},
      {"wrong dimensions", {2, 2}, false, {rows, columns, at::rand({2, 1})}},
      {"wrong dimensions", {2, 2}, false, {longs({0}, {}), columns, values}},
      {"another size",
       {2, 2, 2},
       false,
       {longs({0, 1, 2}, {1, 3}), longs({0, 1}, {1, 2}), at::rand({1, 2})}},
      {"index outside", {2, 1}, false, {rows, columns, values}},
      {"index outside", {2, 2}, false, {rows, longs({0, -1}, {2}), values}},
      {"do not cover", {2, 2}, false, {longs({1, 1, 2}, {3}), columns, values}},
      {"do not cover", {2, 2}, false, {longs({0, 1, 1}, {3}), columns, values}},
      {"rows that overlap", {2, 2}, false, {longs({0, 9, 2}, {3}), columns, values}},
      {"rows that overlap", {3, 2}, false, {longs({0, 2, 1, 2}, {4}), columns, values}},
  };
  for (const Spoil& spoil : cases) {
    EXPECT_THAT(sparse_verdict(Layout::SPARSE_CSR, spoil), HasSubstr(spoil.says));
  }
}

TEST(TensorChecks, RefuseBlocksThatDoNotDivideTheSize) {
  const at::Tensor rows = longs({0, 1}, {2}), columns = longs({0}, {1});
  const Spoil cases[] = {
      {"OK", {2, 2}, false, {rows, columns, at::rand({1, 2, 2})}},
      {"blocks that do not divide", {3, 2}, false, {rows, columns, at::rand({1, 2, 2})}},
      {"blocks that do not divide", {2, 2}, false, {rows, columns, at::rand({1, 0, 2})}},
      {"wrong dimensions", {2, 2}, false, {rows, columns, at::rand({1, 2})}},
  };
  for (const Spoil& spoil : cases) {
    EXPECT_THAT(sparse_verdict(Layout::SPARSE_BSR, spoil), HasSubstr(spoil.says));
    EXPECT_EQ(sparse_verdict(Layout::SPARSE_BSC, cases[0]), "OK");
  }
}

}  // namespace
}  // namespace farspan::testing
