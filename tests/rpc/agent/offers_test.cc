// The rules under test: rpc/agent/offers.h and pull.h. One process reads its own memory here, by
// the system call that reads another's.
#include <farspan/rpc/agent/offers.h>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include <farspan/c10d/net/memory_pool.h>
#include <farspan/rpc/agent/pull.h>

#include "rpc/wire/frame_bytes.h"
#include "support/seeded_random.h"

namespace farspan::testing {
namespace {

constexpr std::chrono::microseconds kPatience{200};

using agent::Offers;
using agent::Pull;

constexpr uint64_t kFrom = 1000;

wire::OutFrame frame_of(std::vector<Buffer> segments) {
  wire::OutFrame frame;
  frame.segments = std::move(segments);
  return frame;
}

uint64_t standing(const wire::Offer& offer) {
  return reinterpret_cast<const std::atomic<uint64_t>*>(offer.mark_address)->load();
}

class HandedOver : public ::testing::Test {
 protected:
  Buffer block(uint64_t bytes = kFrom) { return pool_->allocate(bytes); }

  const std::shared_ptr<net::SharedBlocks> blocks_ = std::make_shared<net::SharedBlocks>();
  const std::shared_ptr<net::MemoryPool> pool_ = net::MemoryPool::make({}, blocks_);
  Offers offers_{blocks_};
};

TEST_F(HandedOver, WhatHasABlockToItselfIsThePeersUntilItComesBack) {
  const Buffer kept = block(), on_heap = Buffer::copy_of(pattern(kFrom));
  const Buffer lent = block();
  const Buffer wrapped(lent.data(), lent.size(), std::make_shared<Buffer>(lent));
  auto frame = frame_of({block(), kept, on_heap, block(kFrom - 1), wrapped});
  const auto place = *blocks_->find(frame.segments[0].data());
  const uint64_t id = offers_.make(frame, kFrom, true);
  EXPECT_TRUE(frame.header.flags & wire::kHandsOver);
  ASSERT_EQ(frame.handed_over.size(), 5u);
  EXPECT_EQ(frame.handed_over[0].block, place.block.id);
  EXPECT_EQ(frame.handed_over[0].block_bytes, place.block.bytes);
  EXPECT_EQ(frame.handed_over[0].descriptor, static_cast<uint64_t>(place.block.descriptor));
  EXPECT_EQ(frame.handed_over[0].offset, 0u);
  EXPECT_EQ(frame.handed_over[1].block, 0u) << "somebody else has it, too";
  EXPECT_EQ(frame.handed_over[2].block, 0u) << "no shared memory";
  EXPECT_EQ(frame.handed_over[3].block, 0u) << "too small";
  EXPECT_EQ(frame.handed_over[4].block, 0u) << "its owner may have lent it elsewhere, too";
  EXPECT_EQ(offers_.handed_over(), kFrom);
  EXPECT_EQ(offers_.segments_of(id).size(), 4u) << "who cannot map it gets it otherwise";
  frame.segments.clear();

  const uint64_t used = pool_->counters().used_bytes;
  offers_.withdraw(id);
  EXPECT_EQ(pool_->counters().used_bytes, used) << "it is not this process's any more";
  offers_.take_back(place.block.id + 1);
  offers_.take_back(place.block.id);
  EXPECT_LT(pool_->counters().used_bytes, used);
  EXPECT_GT(pool_->counters().idle_bytes, 0u);
  EXPECT_EQ(offers_.handed_over(), 0u);
  offers_.take_back(place.block.id);  // again: nothing
}

TEST_F(HandedOver, NothingIsWhereThePeerDoesNotKnowOfIt) {
  auto frame = frame_of({block()});
  EXPECT_NE(offers_.make(frame, kFrom), 0u);
  EXPECT_FALSE(frame.header.flags & wire::kHandsOver);
  EXPECT_TRUE(frame.handed_over.empty());
  auto heap_only = frame_of({Buffer::copy_of(pattern(kFrom))});
  EXPECT_NE(offers_.make(heap_only, kFrom, true), 0u);
  EXPECT_FALSE(heap_only.header.flags & wire::kHandsOver);
  EXPECT_TRUE(heap_only.handed_over.empty());
}

TEST_F(HandedOver, WhatNeverLeftComesBackWithItsRequest) {
  std::vector<uint64_t> ids;
  for (const uint64_t request : {11, 12, 13}) {
    auto frame = frame_of({block(), block()});
    ids.push_back(offers_.make(frame, kFrom, true));
    offers_.belongs_to(request, ids.back());
  }
  offers_.withdraw(ids[0]);
  offers_.withdraw(ids[2]);
  EXPECT_EQ(offers_.handed_over(), 6 * kFrom);
  const uint64_t unsent[] = {13, 11};
  offers_.take_back_unsent(unsent);
  EXPECT_EQ(offers_.handed_over(), 2 * kFrom);
  EXPECT_GT(pool_->counters().idle_bytes, 0u);
}

TEST_F(HandedOver, WhatThePeerStillHasIsNotUsedAgain) {
  auto frame = frame_of({block()});
  const auto place = *blocks_->find(frame.segments[0].data());
  offers_.make(frame, kFrom, true);
  frame.segments.clear();
  offers_.close();
  EXPECT_EQ(offers_.handed_over(), 0u);
  EXPECT_EQ(pool_->counters().used_bytes, 0u);
  EXPECT_EQ(pool_->counters().idle_bytes, 0u);
  EXPECT_NE(blocks_->find(block().data())->block.id, place.block.id);
}

TEST(Offers, KeepsWhatIsLargeAndHasAnOwnerUntilItIsWithdrawn) {
  Offers offers;
  const Buffer large = Buffer::copy_of(pattern(kFrom));
  const Bytes borrowed = pattern(2 * kFrom);
  auto frame = frame_of({Buffer::copy_of(pattern(kFrom - 1)), large,
                         Buffer::borrowed(borrowed.data(), borrowed.size())});
  const uint64_t id = offers.make(frame, kFrom);
  ASSERT_NE(id, 0u);
  EXPECT_EQ(frame.offer.id, id);
  EXPECT_TRUE(frame.header.flags & wire::kOffered);
  EXPECT_FALSE(frame.is_offered(frame.segments[0]));
  EXPECT_TRUE(frame.is_offered(frame.segments[1]));
  EXPECT_FALSE(frame.is_offered(frame.segments[2])) << "nobody keeps it";
  EXPECT_EQ(standing(frame.offer), frame.offer.mark);
  EXPECT_EQ(offers.count(), 1u);
  EXPECT_EQ(offers.bytes(), kFrom);
  frame.segments.clear();
  EXPECT_EQ(large.owner().use_count(), 2);

  EXPECT_TRUE(offers.withdraw(id));
  EXPECT_EQ(large.owner().use_count(), 1);
  EXPECT_EQ(offers.count(), 0u);
  EXPECT_EQ(offers.bytes(), 0u);
  EXPECT_FALSE(offers.withdraw(id)) << "once is enough";
  EXPECT_TRUE(offers.segments_of(id).empty());
}

TEST(Offers, NothingLargeIsNoOffer) {
  Offers offers;
  auto frame = frame_of({Buffer::copy_of(pattern(10))});
  EXPECT_EQ(offers.make(frame, kFrom), 0u);
  EXPECT_EQ(frame.header.flags, 0);
  offers.close();
  frame = frame_of({Buffer::copy_of(pattern(kFrom))});
  EXPECT_EQ(offers.make(frame, kFrom), 0u) << "after close()";
  EXPECT_EQ(offers.made(), 0u);
}

TEST(Offers, KnowsTheBytesForWhoCannotReadThem) {
  Offers offers;
  auto frame = frame_of({Buffer::copy_of(pattern(kFrom, 1)), Buffer::copy_of(pattern(3)),
                         Buffer::copy_of(pattern(kFrom + 5, 2))});
  const uint64_t id = offers.make(frame, kFrom);
  const auto segments = offers.segments_of(id);
  ASSERT_EQ(segments.size(), 2u);
  EXPECT_TRUE(same(segments[0].span(), pattern(kFrom, 1)));
  EXPECT_TRUE(same(segments[1].span(), pattern(kFrom + 5, 2)));
  EXPECT_EQ(offers.count(), 1u) << "it is kept until it is withdrawn";
}

// What the receiver of the frame would have.
wire::InFrame received(const wire::OutFrame& sent) {
  wire::InFrame frame;
  frame.offer = sent.offer;
  for (const Buffer& segment : sent.segments) {
    const bool offered = sent.is_offered(segment);
    frame.segments.push_back(offered ? Buffer::copy_of(Bytes(segment.size())) : segment);
    frame.offered.push_back(offered ? reinterpret_cast<uintptr_t>(segment.data()) : 0);
  }
  return frame;
}

struct Ended {
  int times = 0;
  int error = -1;
  wire::InFrame frame;
  Pull::OnEnd callback() {
    return [this](wire::InFrame whole, int why) {
      ++times;
      error = why;
      frame = std::move(whole);
    };
  }
};

TEST(Pull, ReadsWhatIsOffered) {
  Offers offers;
  auto sent = frame_of({Buffer::copy_of(pattern(9'000'001, 1)), Buffer::copy_of(pattern(3)),
                        Buffer::copy_of(pattern(kFrom, 2))});
  offers.make(sent, kFrom);
  Ended ended;
  EXPECT_FALSE(Pull(getpid(), received(sent), kPatience, ended.callback()).run())
      << "nobody helps whom one would have to wait for";
  EXPECT_EQ(ended.times, 1);
  ASSERT_EQ(ended.error, 0);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(same(ended.frame.segments[i].span(), sent.segments[i].span())) << i;
  }
}

TEST(Pull, WhatWasWithdrawnMeanwhileIsNotTaken) {
  Offers offers;
  auto sent = frame_of({Buffer::copy_of(pattern(kFrom))});
  const uint64_t id = offers.make(sent, kFrom);
  const auto frame = received(sent);
  EXPECT_TRUE(offers.withdraw(id));
  std::fill_n(sent.segments[0].data(), kFrom, std::byte{0xee});  // as its next user does
  Ended ended;
  Pull(getpid(), frame, kPatience, ended.callback()).run();
  EXPECT_EQ(ended.times, 1);
  EXPECT_NE(ended.error, 0);
}

TEST(Pull, WhatWasWithdrawnAndGivenBackToTheSystemIsLateToo) {
  Offers offers;
  const size_t bytes = 1 << 20;
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::shared_ptr<void> owner(memory, [](void* gone) { munmap(gone, bytes); });
  auto sent = frame_of({Buffer(static_cast<std::byte*>(memory), bytes, std::move(owner))});
  const uint64_t id = offers.make(sent, kFrom);
  const auto frame = received(sent);
  sent.segments.clear();
  EXPECT_TRUE(offers.withdraw(id));
  Ended ended;
  Pull(getpid(), frame, kPatience, ended.callback()).run();
  EXPECT_EQ(ended.error, ESTALE);
}

TEST(Pull, MemoryThatIsNotThereIsAnError) {
  Offers offers;
  const size_t bytes = 1 << 20;
  auto sent = frame_of({Buffer::copy_of(pattern(bytes))});
  offers.make(sent, kFrom);
  auto frame = received(sent);
  void* const nothing = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(nothing, MAP_FAILED);
  frame.offered[0] = reinterpret_cast<uintptr_t>(nothing);
  Ended ended;
  Pull(getpid(), frame, kPatience, ended.callback()).run();
  EXPECT_EQ(ended.times, 1);
  EXPECT_EQ(ended.error, EFAULT);
  munmap(nothing, bytes);
}

// Nothing of what was handed over is read but the mark: that of a process which is there no more
// cannot be, whatever stands there.
TEST(Pull, WhoCannotReadTheMarkHasNotComeTooLate) {
  Offers offers;
  auto sent = frame_of({Buffer::copy_of(pattern(kFrom))});
  offers.make(sent, kFrom);
  auto frame = received(sent);
  frame.handed_over = {{.block = 1}};
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  ASSERT_EQ(waitpid(gone, nullptr, 0), gone);
  for (const auto& [process, error] : {std::pair(getpid(), 0), std::pair(gone, ESRCH)}) {
    Ended ended;
    Pull(process, frame, kPatience, ended.callback()).run();
    EXPECT_EQ(ended.error, error);
  }
}

TEST(Pull, SeveralThreadsShareAndTheLastEndsIt) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SeededRandom random(seed);
    Offers offers;
    auto sent = frame_of({Buffer::copy_of(pattern(kFrom + random.below(3'000'000), seed))});
    offers.make(sent, kFrom);
    std::atomic<int> times{0};
    std::atomic<bool> right{false};
    {
      Pull pull(getpid(), received(sent), kPatience, [&](wire::InFrame whole, int error) {
        right = error == 0 && same(whole.segments[0].span(), sent.segments[0].span());
        ++times;
      });
      std::vector<std::thread> helpers;
      for (uint64_t i = random.below(3); i-- > 0;) helpers.emplace_back([&] { pull.help(); });
      pull.run();
      for (auto& helper : helpers) helper.join();
    }
    ASSERT_EQ(times, 1) << "seed " << seed;
    ASSERT_TRUE(right) << "seed " << seed;
  }
}

}  // namespace
}  // namespace farspan::testing
