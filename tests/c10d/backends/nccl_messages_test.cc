// Messages between simulated devices by the nccl backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "c10d/backends/nccl_messages.h"
#include "support/errors.h"
#include "support/eventually.h"
#include "support/sanitizers.h"

namespace farspan::dist::nccl {
namespace {

using farspan::testing::error_of;
using farspan::testing::eventually;
using ::testing::HasSubstr;

TEST_F(NcclMessages, GoFromDeviceToDeviceInTheOrderOfStreams) {
  on_each([](Rank& rank) {
    const int next = (rank.number + 1) % kRanks, before = (rank.number + 2) % kRanks;
    for (int round = 0; round < farspan::testing::repetitions(20); ++round) {
      for (const size_t count : {size_t{1}, size_t{0}, size_t{1000}}) {
        const Array sent = rank.array(iota(100 * rank.number + round, count));
        const Array got = rank.array(iota(0, count));
        const Called sending = isend(rank, sent.block(), next);
        EXPECT_EQ(recv(rank, got, before), before);
        EXPECT_EQ(sending.follow(rank.stream), next);
        EXPECT_EQ(got.read(), iota(100 * before + round, count));
        EXPECT_EQ(sending.on_device->ended.wait(), next);
      }
    }
  });
  EXPECT_EQ(library->begun(), 2U * kRanks);  // one for each of two in each direction
}

TEST_F(NcclMessages, TwoThatSendToEachOtherAtOnceDoNotWaitInACircle) {
  on_each([](Rank& rank) {
    if (rank.number == 2) return;
    const int other = 1 - rank.number;
    for (int round = 0; round < farspan::testing::repetitions(50); ++round) {
      const Array sent = rank.array(iota(rank.number, 100)), got = rank.array(iota(5, 100));
      // In the other order on the other rank.
      const bool sends_first = (round + rank.number) % 2 == 0;
      std::vector<Called> called;
      if (sends_first) called.push_back(isend(rank, sent.block(), other));
      called.push_back(irecv(rank, got.block(), other));
      if (!sends_first) called.push_back(isend(rank, sent.block(), other));
      for (const Called& one : called) one.follow(rank.stream);
      EXPECT_EQ(got.read(), iota(other, 100));
    }
  });
}

TEST_F(NcclMessages, TagsMayBeAskedForInAnyOrderAndEachKeepsItsOwn) {
  constexpr int kTags = 4, kEach = 10;
  on_each([](Rank& rank) {
    if (rank.number == 0) {
      std::vector<std::unique_ptr<Array>> arrays;
      std::vector<Called> called;
      for (int i = 0; i < kTags * kEach; ++i) {
        arrays.push_back(std::make_unique<Array>(rank.devices, rank.stream, iota(i, 3)));
        called.push_back(isend(rank, arrays.back()->block(), 1, {.tag = i % kTags}));
      }
      for (const Called& one : called) one.follow(rank.stream);
      arrays.back()->read();
    } else if (rank.number == 1) {
      for (int tag = kTags - 1; tag >= 0; --tag) {
        for (int i = tag; i < kTags * kEach; i += kTags) {
          const Array got = rank.array({0, 0, 0});
          recv(rank, got, 0, {.tag = tag});
          EXPECT_EQ(got.read(), iota(i, 3));
        }
      }
    }
  });
}

TEST_F(NcclMessages, AReceiveFromAnyoneSaysWhoItWas) {
  on_each([](Rank& rank) {
    for (int round = 0; round < farspan::testing::repetitions(20); ++round) {
      if (rank.number != 1) {
        const Array sent = rank.array({rank.number, round});
        send(rank, sent, 1, {.tag = 7});
        sent.read();
        continue;
      }
      std::vector<int> from;
      for (int i = 0; i < 2; ++i) {
        const Array got = rank.array({0, 0});
        from.push_back(recv(rank, got, -1, {.tag = 7}));
        EXPECT_EQ(got.read()[0], from.back());
      }
    }
  });
}

// The receive is given what comes first, and neither stream makes the other wait.
TEST_F(NcclMessages, WaitForTheStreamsThatTheyAreCalledOn) {
  Held sender, receiver;
  on_each([&](Rank& rank) {
    if (rank.number == 2) return;
    const Array sent = rank.array({1}), got = rank.array({0}), later = rank.array({7});
    if (rank.number == 0) {
      rank.hold(sender.until());
      // Written behind what holds the stream, and before the message.
      rank.devices.copy(rank.stream, sent.block().data, later.block().data, sizeof(int64_t));
      const Called sending = isend(rank, sent.block(), 1);
      sending.follow(rank.stream);
      EXPECT_FALSE(sending.on_device->ended.wait_for(50ms));
      sender.go();
      sending.on_device->ended.wait();
    } else {
      rank.hold(receiver.until());
      const Called receiving = irecv(rank, got.block(), 0);
      EXPECT_EQ(receiving.follow(rank.stream), 0);  // the thread goes on
      EXPECT_FALSE(receiving.on_device->ended.wait_for(100ms));
      receiver.go();
      EXPECT_EQ(got.read(), Numbers{7});
    }
    later.read();
  });
}

// The stream's later work does not change what goes, though the receive comes late.
TEST_F(NcclMessages, MemoryIsKeptUntilTheDeviceHasDoneIt) {
  std::latch called(2);
  on_each([&](Rank& rank) {
    if (rank.number == 2) return;
    const Array data = rank.array({rank.number});
    Message one = message(rank, 1 - rank.number, {});
    auto memory = std::make_shared<int>();
    const std::weak_ptr<int> kept = memory;
    one.on_device->memory = std::move(memory);
    Held held;
    rank.hold(held.until());
    const Called calling{one.on_device, rank.number == 0 ? rank.backend->send(one, data.block())
                                                         : rank.backend->recv(one, data.block())};
    one.on_device.reset();
    calling.follow(rank.stream);
    called.arrive_and_wait();
    EXPECT_FALSE(kept.expired());
    held.go();
    calling.on_device->ended.wait();
    EXPECT_TRUE(eventually([&] { return kept.expired(); }));
    EXPECT_EQ(data.read(), Numbers{0});
  });
}

TEST_F(NcclMessages, OneOfAnotherSizeIsRefusedOnBothRanksAndTheNextOneArrives) {
  on_each([](Rank& rank) {
    if (rank.number == 2) return;
    const Array two = rank.array({1, 2}), three = rank.array({0, 0, 0}), good = rank.array({0, 0});
    const Called odd =
        rank.number == 0 ? isend(rank, two.block(), 1) : irecv(rank, three.block(), 0);
    const Error error = odd.error();
    EXPECT_EQ(error.code(), Code::kShapeMismatch) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(name(rank, 0) +
                                        " sent 2 elements of int64 on a device, and "
                                        "the receive of " +
                                        name(rank, 1) + " is for 3 elements of int64 on a device"));
    if (rank.number == 0) {
      send(rank, two, 1);
    } else {
      recv(rank, good, 0);
      EXPECT_EQ(good.read(), (Numbers{1, 2}));
    }
    EXPECT_EQ(two.read(), (Numbers{1, 2}));
  });
}

TEST_F(NcclMessages, AMixOfADeviceAndTheProcessorIsRefusedAndNamed) {
  on_each([](Rank& rank) {
    if (rank.number == 2) return;
    const Array data = rank.array({1, 2});
    Numbers host{3, 4};
    const Block on_host{reinterpret_cast<std::byte*>(host.data()), host.size()};
    const std::string device = "2 elements of int64 on a device";
    if (rank.number == 0) {
      const Error error = isend(rank, data.block(), 1).error();
      EXPECT_EQ(error.code(), Code::kShapeMismatch) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(" sent " + device));
      EXPECT_THAT(error.what(), HasSubstr(name(rank, 1) + " is for 2 elements of int64 in the "
                                                          "processor's memory"));
      rank.backend->send(host_message(rank, 1), on_host).wait();
    } else {
      const Error other =
          error_of([&] { rank.backend->recv(host_message(rank, 0), on_host).wait(); });
      EXPECT_EQ(other.code(), Code::kShapeMismatch) << other.what();
      EXPECT_THAT(other.what(), HasSubstr(" sent " + device));
      const Error error = irecv(rank, data.block(), 0).error();
      EXPECT_EQ(error.code(), Code::kShapeMismatch) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(name(rank, 0) + " sent 2 elements of int64, and"));
      EXPECT_THAT(error.what(), HasSubstr(" is for " + device));
    }
    data.read();
  });
}

TEST_F(NcclMessages, ATimeoutNamesWhoIsWaitedForAndTheGroupGoesOn) {
  on_each([](Rank& rank) {
    const Array data = rank.array({rank.number});
    if (rank.number == 0) {
      const TimePoint begun = Clock::now();
      const Error sent = isend(rank, data.block(), 1, {.timeout = 100ms}).error();
      EXPECT_EQ(sent.code(), Code::kTimeout) << sent.what();
      EXPECT_THAT(sent.worker(), HasSubstr("rank 1"));
      const Error got = irecv(rank, data.block(), 2, {.timeout = 100ms}).error();
      EXPECT_EQ(got.code(), Code::kTimeout) << got.what();
      EXPECT_THAT(got.what(), HasSubstr("nothing came from " + name(rank, 2)));
      EXPECT_LT(Clock::now() - begun, 5s);
      tell_rank_1(rank);
      send(rank, data, 1);
    } else if (rank.number == 1) {
      tell_rank_1(rank);
      recv(rank, data, 0);  // not what had been given up
      EXPECT_EQ(data.read(), Numbers{0});
    }
    rank.all_reduce(data).wait();
    data.read();
  });
}

// Who is late finds nothing of what the other one has given up.
TEST_F(NcclMessages, WhatTheSenderGaveUpIsNotReceived) {
  on_each([](Rank& rank) {
    if (rank.number == 2) return;
    const Array first = rank.array({1}), second = rank.array({2});
    if (rank.number == 0) {
      EXPECT_EQ(isend(rank, first.block(), 1, {.timeout = 50ms}).error().code(), Code::kTimeout);
      tell_rank_1(rank);
      send(rank, second, 1);
      second.read();
    } else {
      tell_rank_1(rank);
      const Called one = irecv(rank, first.block(), 0);
      one.follow(rank.stream);
      EXPECT_EQ(first.read(), Numbers{2});
    }
  });
}

TEST_F(NcclMessages, GoToTheRankItselfToo) {
  on_each([](Rank& rank) {
    for (int round = 0; round < farspan::testing::repetitions(10); ++round) {
      const Array sent = rank.array({rank.number, round}), got = rank.array({0, 0});
      // One that nobody else knows is done before its receive.
      send(rank, sent, rank.number, {.is_own = true});
      EXPECT_EQ(recv(rank, got, -1), rank.number);
      EXPECT_EQ(got.read(), (Numbers{rank.number, round}));
      const Called receiving = irecv(rank, got.block(), rank.number, {.tag = 1});
      const Array other = rank.array({round, round});
      send(rank, other, rank.number, {.tag = 1});
      receiving.follow(rank.stream);
      EXPECT_EQ(got.read(), (Numbers{round, round}));
      const Called waits = isend(rank, other.block(), rank.number, {.tag = 2});
      EXPECT_FALSE(waits.given.wait_for(5ms));
      recv(rank, got, rank.number, {.tag = 2});
      waits.follow(rank.stream);
      other.read();
    }
    const Array odd = rank.array({1});
    EXPECT_EQ(isend(rank, odd.block(), rank.number, {.tag = 3, .timeout = 20ms}).error().code(),
              Code::kTimeout);
  });
  EXPECT_EQ(library->begun(), 0U);
}

TEST_F(NcclMessages, ToItselfAreKeptUpToABound) {
  constexpr int kMost = 1024;
  on_each([](Rank& rank) {
    if (rank.number != 0) return;
    const Array data = rank.array({rank.number});
    for (int i = 0; i < kMost; ++i) send(rank, data, 0, {.is_own = true});
    const Called waits = isend(rank, data.block(), 0, {.is_own = true});
    EXPECT_FALSE(waits.given.wait_for(5ms));
    EXPECT_EQ(
        isend(rank, data.block(), 0, {.tag = 1, .timeout = 20ms, .is_own = true}).error().code(),
        Code::kTimeout);
    for (int i = 0; i < kMost; ++i) recv(rank, data, 0);
    EXPECT_FALSE(waits.given.ready());
    send(rank, data, 0, {.tag = 2, .is_own = true});
    recv(rank, data, 0);
    waits.follow(rank.stream);
    recv(rank, data, 0, {.tag = 2});
    data.read();
  });
}

TEST_F(NcclMessages, ToItselfWaitForTheStreamsOfBothEnds) {
  for (const bool holds_sender : {true, false}) {
    on_each([holds_sender](Rank& rank) {
      const device::Stream beside = rank.devices.new_stream(rank.number);
      const Array sent = rank.array({1}), later = rank.array({7});
      const Array got(rank.devices, beside, {0}), other(rank.devices, beside, {3});
      Held held;
      rank.devices.then(holds_sender ? rank.stream : beside,
                        [until = held.until()] { until.wait(); });
      // Written behind what holds a stream, and before the message.
      rank.devices.copy(rank.stream, sent.block().data, later.block().data, sizeof(int64_t));
      rank.devices.copy(beside, got.block().data, other.block().data, sizeof(int64_t));
      const Called sending = isend(rank, sent.block(), rank.number);
      irecv(rank, got.block(), rank.number, {.stream = beside}).follow(beside);
      sending.follow(rank.stream);
      EXPECT_FALSE(sending.on_device->ended.wait_for(20ms));
      held.go();
      EXPECT_EQ(got.read(), Numbers{7});
      later.read();
      rank.devices.end_stream(beside);
    });
  }
}

TEST_F(NcclMessages, GoOnBesideACollectiveThatWaits) {
  warm_up();
  on_each([](Rank& rank) {
    const Array sum = rank.array({rank.number + 1});
    const device::Stream beside = rank.devices.new_stream(rank.number);
    std::optional<Future<int>> ended;
    if (rank.number != 2) {
      ended = rank.all_reduce(sum);
      const Array data(rank.devices, beside, {rank.number});
      const Called one = rank.number == 0 ? isend(rank, data.block(), 1, {.stream = beside})
                                          : irecv(rank, data.block(), 0, {.stream = beside});
      one.follow(beside);
      EXPECT_EQ(data.read(), Numbers{0});
      EXPECT_FALSE(ended->ready());
    }
    // Rank 2 calls the collective only now.
    const Array word(rank.devices, beside, {1});
    if (rank.number == 1) isend(rank, word.block(), 2, {.stream = beside}).follow(beside);
    if (rank.number == 2) {
      irecv(rank, word.block(), 1, {.stream = beside}).follow(beside);
      ended = rank.all_reduce(sum);
    }
    EXPECT_EQ(word.read(), Numbers{1});
    EXPECT_EQ(sum.read(), Numbers{6});
    ended->wait();
    rank.devices.end_stream(beside);
  });
}

// Every rank sends as many to every rank, itself included, and all are called in an order of
// chance.
class NcclMessagesInAnyOrder : public NcclMessages {
 protected:
  using NcclMessages::NcclMessages;
  static constexpr int kEach = 12;

  void exchange() {
    for (int seed = 0; seed < farspan::testing::repetitions(10); ++seed) {
      on_each([seed](Rank& rank) {
        struct One {
          int peer, number;
          bool sends;
        };
        std::vector<One> all;
        for (int peer = 0; peer < kRanks; ++peer) {
          for (int number = 0; number < kEach; ++number) {
            all.push_back({peer, number, true});
            all.push_back({peer, number, false});
          }
        }
        std::mt19937 random(static_cast<unsigned>(100 * seed + rank.number));
        std::ranges::shuffle(all, random);
        const auto content = [](int from, int to, int number) {
          return iota(1000 * from + 100 * to + number, static_cast<size_t>(number % 5) * 7);
        };
        std::vector<std::unique_ptr<Array>> arrays;
        std::vector<Called> called;
        for (const One& one : all) {
          const Numbers numbers = content(rank.number, one.peer, one.number);
          arrays.push_back(std::make_unique<Array>(rank.devices, rank.stream,
                                                   one.sends ? numbers : Numbers(numbers.size())));
          const Block block = arrays.back()->block();
          called.push_back(one.sends ? isend(rank, block, one.peer, {.tag = one.number})
                                     : irecv(rank, block, one.peer, {.tag = one.number}));
        }
        for (const Called& one : called) one.follow(rank.stream);
        for (size_t i = 0; i < all.size(); ++i) {
          const One& one = all[i];
          EXPECT_EQ(arrays[i]->read(), one.sends ? content(rank.number, one.peer, one.number)
                                                 : content(one.peer, rank.number, one.number))
              << "seed " << seed << ", rank " << rank.number << ", peer " << one.peer << ", number "
              << one.number;
        }
      });
    }
  }
};

// Whose ranks are on hosts of their own.
class NcclMessagesBetweenHosts : public NcclMessagesInAnyOrder {
 protected:
  NcclMessagesBetweenHosts() : NcclMessagesInAnyOrder(dist::testing::own_host) {}
};

TEST_F(NcclMessagesInAnyOrder, AllArrive) { exchange(); }
TEST_F(NcclMessagesBetweenHosts, AllArrive) { exchange(); }

TEST_F(NcclMessages, ThreadsSendAndReceiveAtOnce) {
  on_each([](Rank& rank) {
    std::vector<std::thread> threads;
    for (int tag = 0; tag < 4; ++tag) {
      threads.emplace_back([&rank, tag] {
        const device::Stream stream = rank.devices.new_stream(rank.number);
        const int next = (rank.number + 1) % kRanks, before = (rank.number + 2) % kRanks;
        for (int round = 0; round < farspan::testing::repetitions(15); ++round) {
          const Array sent(rank.devices, stream, {rank.number, tag, round});
          const Array got(rank.devices, stream, {0, 0, 0});
          const MessageOptions options{.tag = tag, .stream = stream};
          const Called sending = isend(rank, sent.block(), next, options);
          irecv(rank, got.block(), before, options).follow(stream);
          sending.follow(stream);
          EXPECT_EQ(got.read(), (Numbers{before, tag, round}));
        }
        rank.devices.end_stream(stream);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

TEST_F(NcclMessages, ARankHasOneDeviceInAGroup) {
  warm_up();
  on_each([](Rank& rank) {
    const Array data = rank.array({1});
    device::Stream elsewhere = rank.stream;
    elsewhere.device = (rank.number + 1) % kRanks;
    EXPECT_EQ(error_of([&] { rank.backend->check_device(elsewhere); }).code(),
              Code::kInvalidArgument);
    send(rank, data, rank.number, {.is_own = true});
    const device::Stream other = rank.devices.new_stream(elsewhere.device);
    const Error error = isend(rank, data.block(), rank.number, {.stream = other}).error();
    EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
    rank.devices.end_stream(other);
    const Array got = rank.array({0});
    recv(rank, got, rank.number);
    EXPECT_EQ(got.read(), Numbers{1});
  });
}

}  // namespace
}  // namespace farspan::dist::nccl
