// The rule under test: c10d/backends/messages/inbox.h.
#include <farspan/c10d/backends/messages/inbox.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <random>

namespace farspan::dist::messages {
namespace {

using Numbers = Inbox<int>;

std::shared_ptr<Receive> receive_of(int peer, int tag) {
  Message message;
  message.peer = peer;
  message.tag = tag;
  message.type = DType::FLOAT32;
  return std::make_shared<Receive>(message, Block{nullptr, 1});
}
Envelope envelope_of(int from, int tag) { return {from, tag, DType::FLOAT32, 1}; }

TEST(Inbox, AReceiveTakesTheEarliestMessageThatFits) {
  Numbers inbox;
  inbox.keep({envelope_of(1, 0), 10});
  inbox.keep({envelope_of(2, 0), 20});
  inbox.keep({envelope_of(1, 5), 15});
  inbox.keep({envelope_of(1, 0), 11});
  EXPECT_EQ(inbox.post(receive_of(2, 0))->content, 20);
  EXPECT_EQ(inbox.post(receive_of(-1, 0))->content, 10);
  EXPECT_EQ(inbox.post(receive_of(1, 5))->content, 15);
  EXPECT_FALSE(inbox.post(receive_of(2, 0)));
  EXPECT_EQ(inbox.post(receive_of(-1, 0))->content, 11);
}

TEST(Inbox, AMessageGoesToTheEarliestReceiveThatFits) {
  Numbers inbox;
  const auto of_two = receive_of(2, 0), of_any = receive_of(-1, 0), of_one = receive_of(1, 0);
  for (const auto& one : {of_two, of_any, of_one}) EXPECT_FALSE(inbox.post(one));
  EXPECT_EQ(inbox.match(envelope_of(1, 0)), of_any);
  EXPECT_EQ(inbox.match(envelope_of(1, 3)), nullptr);
  EXPECT_EQ(inbox.match(envelope_of(1, 0)), of_one);
  EXPECT_EQ(inbox.match(envelope_of(2, 0)), of_two);
  EXPECT_EQ(inbox.match(envelope_of(2, 0)), nullptr);
}

TEST(Inbox, WhatIsWithdrawnGetsNothing) {
  Numbers inbox;
  const auto first = receive_of(1, 0), second = receive_of(1, 0);
  inbox.post(first);
  inbox.post(second);
  EXPECT_THAT(inbox.posted(), ::testing::ElementsAre(first, second));
  EXPECT_TRUE(inbox.withdraw(*first));
  EXPECT_FALSE(inbox.withdraw(*first));
  EXPECT_EQ(inbox.match(envelope_of(1, 0)), second);
}

TEST(Inbox, WhatIsDroppedIsGivenToNobody) {
  Numbers inbox;
  inbox.keep({envelope_of(1, 0), 10});
  inbox.keep({envelope_of(1, 0), 11});
  inbox.drop_if([](const auto& one) { return one.content == 10; });
  EXPECT_EQ(inbox.post(receive_of(1, 0))->content, 11);
}

// In any interleaving, messages of one sender and tag are taken in their order, by receives in
// theirs, and nothing is lost.
TEST(Inbox, OrderIsKeptInEveryInterleaving) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    Numbers inbox;
    std::map<std::pair<int, int>, int> sent, taken;
    int open = 0;
    const auto take = [&](const Envelope& envelope, int number) {
      EXPECT_EQ((taken[{envelope.from, envelope.tag}]++), number) << "seed " << seed;
      --open;
    };
    std::map<const Receive*, bool> got;
    for (int step = 0; step < 300; ++step) {
      const int from = static_cast<int>(random() % 3), tag = static_cast<int>(random() % 2);
      if (random() % 2 == 0) {
        const Envelope envelope = envelope_of(from, tag);
        const int number = sent[{from, tag}]++;
        ++open;
        if (inbox.match(envelope)) {
          take(envelope, number);
        } else {
          inbox.keep({envelope, number});
        }
      } else if (const auto found = inbox.post(receive_of(random() % 4 == 0 ? -1 : from, tag))) {
        take(found->envelope, found->content);
      }
    }
    while (const auto rest = inbox.post(receive_of(-1, 0))) take(rest->envelope, rest->content);
    while (const auto rest = inbox.post(receive_of(-1, 1))) take(rest->envelope, rest->content);
    EXPECT_EQ(open, 0) << "seed " << seed;
  }
}

}  // namespace
}  // namespace farspan::dist::messages
