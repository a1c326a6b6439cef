// The rules under test: rref/PROTOCOL.md, "Links".
#include <gtest/gtest.h>

#include <random>

#include <farspan/rref/protocol_link.h>
#include <farspan/rref/protocol_serials.h>

namespace farspan::rref {
namespace {

ControlItem item(uint64_t serial) { return {ControlKind::kUserDelete, {}, {{0, 1}, serial}}; }

// One end, with what it has processed; it refuses every fork whose serial divides by `refuses`.
struct End {
  explicit End(size_t window, uint64_t refuse = 0) : link(window), refuses(refuse) {}
  void hear(const ControlFrame& frame) {
    ASSERT_TRUE(link.valid(frame));
    for (auto& done : link.acknowledged(frame)) settled.push_back(done);
    link.receive(frame, [&](const ControlItem& one) -> std::optional<Refusal> {
      processed.push_back(one.fork.serial);
      if (refuses && one.fork.serial % refuses == 0) return Refusal::kReleased;
      return std::nullopt;
    });
  }
  std::optional<ControlFrame> send() {
    ControlFrame frame;
    if (!link.fill(frame)) return std::nullopt;
    return frame;
  }
  Link link;
  uint64_t refuses;
  std::vector<uint64_t> processed;
  std::vector<Link::Settled> settled;
};

std::vector<uint64_t> up_to(uint64_t last) {
  std::vector<uint64_t> all;
  for (uint64_t i = 1; i <= last; ++i) all.push_back(i);
  return all;
}

TEST(Link, AnItemAndItsAcknowledgementAreTwoFrames) {
  End a(8), b(8);
  a.link.push(item(1));
  b.hear(*a.send());
  a.hear(*b.send());

  // Expect: it is done, and neither end has anything more to say.
  EXPECT_EQ(b.processed, up_to(1));
  EXPECT_EQ(a.settled.size(), 1u);
  EXPECT_FALSE(a.send());
  EXPECT_FALSE(b.send());
}

TEST(Link, AnItemThatComesTwiceIsProcessedOnce) {
  End a(8), b(8);
  a.link.push(item(1));
  const ControlFrame frame = *a.send();
  b.hear(frame);
  a.hear(*b.send());
  a.link.push(item(2));
  b.hear(*a.send());
  b.hear(frame);
  EXPECT_EQ(b.processed, up_to(2));
  // Expect: the second copy is answered, since the first answer may have been lost.
  EXPECT_TRUE(b.send());
}

TEST(Link, ItemsAreProcessedInOrderHoweverTheyCome) {
  End a(8), b(8);
  std::vector<ControlFrame> frames;
  for (uint64_t i = 1; i <= 3; ++i) {
    a.link.push(item(i));
    frames.push_back(*a.send());
  }
  b.hear(frames[2]);
  b.hear(frames[1]);
  EXPECT_TRUE(b.processed.empty());
  b.hear(frames[0]);
  EXPECT_EQ(b.processed, up_to(3));
}

TEST(Link, WhatWasLostIsRepeatedUntilItIsAcknowledged) {
  End a(8), b(8);
  a.link.push(item(1));
  a.send();
  EXPECT_TRUE(a.link.under_way());
  a.link.repeat();
  b.hear(*a.send());
  b.send();  // lost, too
  a.link.repeat();
  b.hear(*a.send());
  a.hear(*b.send());
  EXPECT_EQ(b.processed, up_to(1));
  EXPECT_FALSE(a.link.under_way());
  EXPECT_EQ(a.link.unacknowledged(), 0u);
}

TEST(Link, ARefusalIsHeardThoughTheFirstAnswersAreLost) {
  End a(8), b(8, /*refuse=*/2);
  for (uint64_t i = 1; i <= 3; ++i) {
    a.link.push(item(i));
    b.hear(*a.send());
    b.send();  // lost
  }
  a.link.repeat();
  b.hear(*a.send());
  a.hear(*b.send());
  ASSERT_EQ(a.settled.size(), 3u);
  EXPECT_FALSE(a.settled[0].refusal);
  EXPECT_EQ(a.settled[1].refusal, Refusal::kReleased);
  EXPECT_FALSE(a.settled[2].refusal);
}

TEST(Link, RefusalsAreForgottenOnceTheyAreHeard) {
  End a(8), b(8, /*refuse=*/1);
  a.link.push(item(1));
  b.hear(*a.send());
  a.hear(*b.send());
  a.link.push(item(2));
  b.hear(*a.send());
  const ControlFrame answer = *b.send();
  ASSERT_EQ(answer.refused.size(), 1u);
  EXPECT_EQ(answer.refused[0].sequence, 2u);
}

TEST(Link, NoMoreThanAWindowIsUnderWay) {
  End a(4), b(4);
  for (uint64_t i = 1; i <= 10; ++i) a.link.push(item(i));
  const ControlFrame first = *a.send();
  EXPECT_EQ(first.items.size(), 4u);
  EXPECT_FALSE(a.send());
  b.hear(first);
  a.hear(*b.send());
  EXPECT_EQ(a.send()->items.size(), 4u);
}

TEST(Link, FramesAgainstTheRulesAreRefused) {
  End a(4);
  a.link.push(item(1));
  a.send();
  ControlFrame good;
  good.ack = 2;
  EXPECT_TRUE(a.link.valid(good));

  const auto broken = [&](auto change) {
    ControlFrame frame = good;
    change(frame);
    return !a.link.valid(frame);
  };
  EXPECT_TRUE(broken([](ControlFrame& f) { f.ack = 3; }));  // of what was never sent
  EXPECT_TRUE(broken([](ControlFrame& f) { f.ack = 0; }));
  EXPECT_TRUE(broken([](ControlFrame& f) { f.base = 0; }));
  EXPECT_TRUE(broken([](ControlFrame& f) { f.base = f.first + 1; }));
  EXPECT_TRUE(broken([](ControlFrame& f) { f.base = f.first = UINT64_MAX; }));
  EXPECT_TRUE(broken([](ControlFrame& f) { f.items.resize(5); }));
  EXPECT_TRUE(broken([](ControlFrame& f) {
    f.base = f.first = 6;  // far beyond what was processed: it would have to be kept
    f.items.resize(1);
  }));
  EXPECT_TRUE(broken([](ControlFrame& f) { f.refused.resize(5); }));
}

// Both ends talk at once over a network that loses, doubles and reorders.
TEST(Link, EveryItemIsProcessedOnceInOrderWithItsOutcome) {
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return random() % n; };
    End ends[2] = {End(4, 3), End(4, 5)};
    std::vector<std::pair<int, ControlFrame>> wire;  // to whom
    uint64_t pushed[2] = {0, 0};
    for (int step = 0; step < 400 || !wire.empty() || ends[0].link.unacknowledged() ||
                       ends[1].link.unacknowledged();
         ++step) {
      ASSERT_LT(step, 20000) << "seed " << seed;
      const int at = static_cast<int>(below(2));
      if (step < 300 && below(3) == 0) ends[at].link.push(item(++pushed[at]));
      if (below(8) == 0) ends[at].link.repeat();
      if (auto frame = ends[at].send(); frame && below(4) != 0) wire.emplace_back(1 - at, *frame);
      if (wire.empty()) continue;
      const size_t which = below(static_cast<uint32_t>(wire.size()));
      ends[wire[which].first].hear(wire[which].second);
      if (below(4) != 0) wire.erase(wire.begin() + static_cast<std::ptrdiff_t>(which));
    }
    for (int at : {0, 1}) {
      EXPECT_EQ(ends[1 - at].processed, up_to(pushed[at])) << "seed " << seed;
      ASSERT_EQ(ends[at].settled.size(), pushed[at]) << "seed " << seed;
      for (const Link::Settled& done : ends[at].settled) {
        const bool refused = done.sequence % ends[1 - at].refuses == 0;
        EXPECT_EQ(done.refusal.has_value(), refused) << "seed " << seed;
      }
    }
  }
}

TEST(SerialSet, KeepsOnlyItsGaps) {
  SerialSet set;
  EXPECT_TRUE(set.insert(2));
  EXPECT_TRUE(set.insert(4));
  EXPECT_FALSE(set.insert(2));
  EXPECT_TRUE(set.contains(2));
  EXPECT_FALSE(set.contains(3));
  EXPECT_EQ(set.gaps_held(), 2u);
  EXPECT_TRUE(set.insert(1));
  EXPECT_EQ(set.gaps_held(), 1u);
  EXPECT_TRUE(set.insert(3));
  EXPECT_EQ(set.gaps_held(), 0u);
  EXPECT_FALSE(set.insert(4));
  EXPECT_FALSE(set.contains(5));
}

}  // namespace
}  // namespace farspan::rref
