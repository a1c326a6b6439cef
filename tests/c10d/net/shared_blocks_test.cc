// The rules under test: c10d/net/shared_blocks.h and mapped_blocks.h. One process is both ends
// here: it maps its own blocks a second time.
#include <farspan/c10d/net/shared_blocks.h>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <vector>

#include <farspan/c10d/net/loop.h>
#include <farspan/c10d/net/mapped_blocks.h>
#include <farspan/c10d/net/reactor.h>

#include "support/errors.h"
#include "support/eventually.h"

namespace farspan::testing {
namespace {

using net::BlockName;
using net::MappedBlocks;
using net::MappedBytes;
using net::MemoryPool;
using net::SharedBlocks;

constexpr size_t kMiB = 1 << 20;

class SharedBlocksTest : public ::testing::Test {
 protected:
  std::shared_ptr<MappedBlocks> mapping(net::MappedBlocksOptions options = {},
                                        pid_t owner = getpid()) {
    return MappedBlocks::make(
        owner, reactor_.timers(), [this](uint64_t block) { returned_.push_back(block); }, options);
  }
  BlockName name_of(const Buffer& buffer) const { return blocks_->find(buffer.data())->block; }

  const std::shared_ptr<SharedBlocks> blocks_ = std::make_shared<SharedBlocks>();
  const std::shared_ptr<MemoryPool> pool_ = MemoryPool::make({}, blocks_);
  net::Reactor reactor_{net::ReactorOptions{}};
  std::vector<uint64_t> returned_;
};

TEST_F(SharedBlocksTest, FindsTheBlockOfAnAddress) {
  const Buffer one = pool_->allocate(kMiB), other = pool_->allocate(kMiB);
  const auto begin = blocks_->find(one.data()), last = blocks_->find(one.data() + kMiB - 1);
  ASSERT_TRUE(begin && last);
  EXPECT_EQ(begin->offset, 0u);
  EXPECT_EQ(last->offset, kMiB - 1);
  EXPECT_EQ(begin->block.id, last->block.id);
  EXPECT_GE(begin->block.bytes, kMiB);
  EXPECT_NE(name_of(other).id, begin->block.id);
  int on_stack = 0;
  EXPECT_FALSE(blocks_->find(&on_stack));
  EXPECT_FALSE(blocks_->find(nullptr));
}

TEST_F(SharedBlocksTest, ABlockIsTheSameMemoryWhereItIsMapped) {
  const Buffer here = pool_->allocate(kMiB);
  std::memset(here.data(), 1, kMiB);
  const auto mapped = mapping();
  const Buffer there = mapped->map(name_of(here), 4096, kMiB - 4096);
  EXPECT_NE(there.data(), here.data() + 4096);
  EXPECT_EQ(there.size(), kMiB - 4096);
  there.data()[7] = std::byte{5};
  EXPECT_EQ(here.data()[4096 + 7], std::byte{5});
}

TEST_F(SharedBlocksTest, ABlockGoesBackWithItsLastBufferAndStaysMapped) {
  const Buffer here = pool_->allocate(kMiB);
  const BlockName name = name_of(here);
  const auto mapped = mapping();
  Buffer there = mapped->map(name, 0, kMiB), copy = there;
  const void* const place = there.data();
  there = {};
  EXPECT_TRUE(returned_.empty());
  EXPECT_EQ(mapped->bytes().in_use(), name.bytes);
  EXPECT_EQ(mapped->bytes().idle(), 0u);
  copy = {};
  EXPECT_EQ(returned_, std::vector<uint64_t>{name.id});
  EXPECT_EQ(mapped->bytes().in_use(), 0u);
  EXPECT_EQ(mapped->bytes().idle(), name.bytes);
  EXPECT_EQ(mapped->map(name, 0, kMiB).data(), place);
  EXPECT_EQ(returned_.size(), 2u);
}

// The bound is that of all makers together.
TEST_F(SharedBlocksTest, WhatIsTooMuchIsUnmapped) {
  const Buffer one = pool_->allocate(kMiB), other = pool_->allocate(kMiB);
  const auto bytes = std::make_shared<MappedBytes>(kMiB + kMiB / 2);
  const net::MappedBlocksOptions options{.bytes = bytes};
  const auto mapped = mapping(options), mapped_of_another = mapping(options);
  Buffer first = mapped->map(name_of(one), 0, kMiB);
  Buffer second = mapped_of_another->map(name_of(other), 0, kMiB);
  EXPECT_EQ(bytes->in_use(), name_of(one).bytes + name_of(other).bytes);
  first = {};
  second = {};
  EXPECT_EQ(bytes->idle(), name_of(one).bytes) << "there was no room for the second";
}

TEST_F(SharedBlocksTest, WhatIsIdleForLongIsUnmapped) {
  const Buffer one = pool_->allocate(kMiB);
  const auto mapped = mapping({.keep = std::chrono::milliseconds(20)});
  for (int round = 0; round < 3; ++round) {
    { const Buffer there = mapped->map(name_of(one), 0, kMiB); }
    EXPECT_TRUE(eventually([&] { return mapped->bytes().idle() + mapped->bytes().in_use() == 0; }));
  }
}

TEST_F(SharedBlocksTest, WhatIsKeptGoesWithItsMaker) {
  const Buffer one = pool_->allocate(kMiB), other = pool_->allocate(kMiB);
  const auto bytes = std::make_shared<MappedBytes>();
  auto closed = mapping({.bytes = bytes}), dropped = mapping({.bytes = bytes});
  closed->map(name_of(one), 0, kMiB);
  dropped->map(name_of(other), 0, kMiB);
  EXPECT_EQ(bytes->idle(), name_of(one).bytes + name_of(other).bytes);
  closed->close();
  EXPECT_EQ(bytes->idle(), name_of(other).bytes);
  dropped.reset();
  EXPECT_EQ(bytes->idle(), 0u);
}

TEST_F(SharedBlocksTest, RefusesWhatIsNotTheBlock) {
  const Buffer here = pool_->allocate(kMiB), other = pool_->allocate(kMiB);
  const auto mapped = mapping();
  const auto refused = [&](BlockName name, uint64_t offset = 0) {
    return code_of([&] { mapped->map(name, offset, kMiB); });
  };
  BlockName name = name_of(here);
  EXPECT_EQ(refused(name, 1), Code::kCorrupt) << "beyond its end";
  EXPECT_EQ(refused(name, UINT64_MAX), Code::kCorrupt);
  BlockName wrong = name;
  wrong.descriptor = name_of(other).descriptor;
  EXPECT_EQ(refused(wrong), Code::kCorrupt) << "another block's descriptor";
  wrong = name;
  wrong.descriptor = STDERR_FILENO;
  EXPECT_EQ(refused(wrong), Code::kCorrupt) << "no block at all";
  wrong = name;
  wrong.descriptor = 1 << 20;
  EXPECT_EQ(refused(wrong), Code::kUnavailable) << "not open";
  wrong = name;
  wrong.bytes *= 2;
  EXPECT_EQ(refused(wrong), Code::kCorrupt) << "another size";
  const Buffer there = mapped->map(name, 0, kMiB);
  EXPECT_EQ(refused(name), Code::kCorrupt) << "it is in use";
}

TEST_F(SharedBlocksTest, ACopyInsteadGivesTheBlockBack) {
  const auto mapped = mapping();
  Buffer copy = mapped->copy_for(77, Buffer::allocate(100));
  copy.data()[99] = std::byte{1};
  EXPECT_TRUE(returned_.empty());
  copy = {};
  EXPECT_EQ(returned_, std::vector<uint64_t>{77});
}

TEST_F(SharedBlocksTest, BuffersOutliveTheMapping) {
  Buffer here = pool_->allocate(kMiB);
  std::memset(here.data(), 3, kMiB);
  auto mapped = mapping();
  Buffer there = mapped->map(name_of(here), 0, kMiB);
  mapped->close();
  mapped.reset();
  blocks_->abandon(here.data());
  here = {};
  pool_->trim();
  EXPECT_EQ(there.data()[kMiB - 1], std::byte{3});
  there = {};
  EXPECT_TRUE(returned_.empty()) << "nobody is told after close()";
}

TEST_F(SharedBlocksTest, AnAbandonedBlockIsNotUsedAgain) {
  Buffer here = pool_->allocate(kMiB);
  const uint64_t id = name_of(here).id;
  blocks_->abandon(here.data() + 100);
  EXPECT_FALSE(blocks_->find(here.data())) << "nor handed over";
  here = {};
  EXPECT_EQ(pool_->counters().idle_bytes, 0u);
  EXPECT_NE(name_of(pool_->allocate(kMiB)).id, id);
}

}  // namespace
}  // namespace farspan::testing
