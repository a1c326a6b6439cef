// The rules under test: c10d/base/buffer.h.
#include <farspan/c10d/base/buffer.h>

#include <gtest/gtest.h>

#include <cstdint>

namespace farspan::testing {
namespace {

TEST(Buffer, IsAlignedForTheMetadataOfFrames) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{8}, size_t{100}, size_t{1} << 20}) {
    const Buffer buffer = Buffer::allocate(size);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 16, 0u) << size;
    EXPECT_EQ(buffer.size(), size);
  }
}

TEST(Buffer, TheLastCopyReleasesTheOwner) {
  std::byte bytes[4] = {};
  int released = 0;
  {
    Buffer whole(bytes, 4, std::shared_ptr<void>(bytes, [&](void*) { ++released; }));
    Buffer part = whole.slice(1, 2);
    whole = Buffer();
    // Expect: a part keeps the whole.
    EXPECT_EQ(released, 0);
    EXPECT_EQ(part.data(), bytes + 1);
    EXPECT_EQ(part.size(), 2u);
  }
  EXPECT_EQ(released, 1);
}

TEST(Buffer, BorrowsWithoutAnOwner) {
  const int word = 7;
  const Buffer buffer = Buffer::borrowed(&word, sizeof word);
  EXPECT_EQ(buffer.owner(), nullptr);
  EXPECT_EQ(static_cast<const void*>(buffer.data()), &word);
}

TEST(Buffer, CopiesBytes) {
  const std::byte bytes[3] = {std::byte{1}, std::byte{2}, std::byte{3}};
  const Buffer copy = Buffer::copy_of(bytes);
  EXPECT_NE(copy.data(), bytes);
  EXPECT_EQ(copy.data()[2], std::byte{3});
  EXPECT_TRUE(Buffer::copy_of({}).empty());
}

}  // namespace
}  // namespace farspan::testing
