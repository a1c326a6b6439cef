// The rules under test: c10d/group/point_to_point.h.
#include <ATen/ATen.h>
#include <farspan/c10d/group/point_to_point.h>

#include <numeric>
#include <thread>

#include "conformance/combinations.h"

namespace farspan::testing {
namespace {

const std::string kMaybeOnADevice = "( on a device)?";  // where the elements of a message lie

using at::Tensor;
using Kind = dist::P2POp::Kind;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using namespace std::chrono_literals;

// Around what travels at once, and the parts of what does not.
const std::vector<int64_t> kCounts = {0, 1, 3, 8191, 8192, 8193, 262'144, 300'001};

Tensor message_of(int from, int to, int64_t count) {
  return at::arange(count, at::kFloat) + static_cast<double>(from * 100 + to);
}

TEST_P(CollectiveSuite, MessagesOfAllSizesAndTypesArrive) {
  on_each(2, [](int rank) {
    for (const int64_t count : kCounts) {
      for (const auto type : {at::kFloat, at::kBool, at::kBFloat16, at::kComplexDouble}) {
        const Tensor sent = input_of(7, count, type);
        if (rank == 0) {
          dist::send(sent, 1, {.tag = 3});
        } else {
          const Tensor got = at::zeros({count}, type);
          EXPECT_EQ(dist::recv(got, 0, {.tag = 3}), 0);
          EXPECT_TRUE(at::equal(got, sent)) << count << " " << c10::toString(type);
        }
      }
    }
  });
}

TEST_P(CollectiveSuite, MessagesMayComeBeforeTheyAreAskedFor) {
  on_each(2, [](int rank) {
    std::vector<dist::Work> works;
    std::vector<Tensor> tensors;
    for (const int64_t count : kCounts) {
      tensors.push_back(rank == 0 ? message_of(0, 1, count) : at::zeros({count}));
      if (rank == 0) works.push_back(dist::isend(tensors.back(), 1));
    }
    if (rank == 0) dist::send(at::ones({1}), 1, {.tag = 1});
    if (rank == 1) {
      dist::recv(at::ones({1}), 0, {.tag = 1});  // now all have come
      for (size_t i = 0; i < kCounts.size(); ++i) {
        dist::recv(tensors[i], 0);
        EXPECT_TRUE(at::equal(tensors[i], message_of(0, 1, kCounts[i]))) << kCounts[i];
      }
    }
    for (const dist::Work& work : works) work.wait();
  });
}

TEST_P(CollectiveSuite, MessagesOfOneTagKeepTheirOrderAndTagsAreApart) {
  on_each(2, [](int rank) {
    constexpr int kMessages = 200;
    const auto number = [](int value) { return at::full({1 + value % 3 * 9000}, value, at::kInt); };
    if (rank == 0) {
      std::vector<dist::Work> works;
      for (int i = 0; i < kMessages; ++i)
        works.push_back(dist::isend(number(i), 1, {.tag = i % 2}));
      for (const dist::Work& work : works) work.wait();
      return;
    }
    for (const int tag : {1, 0}) {
      for (int i = tag; i < kMessages; i += 2) {
        const Tensor got = at::zeros_like(number(i));
        dist::recv(got, 0, {.tag = tag});
        ASSERT_TRUE(at::equal(got, number(i))) << i;
      }
    }
  });
}

TEST_P(CollectiveSuite, AReceiveFromAnyoneSaysWhoItWas) {
  on_each(4, [](int rank) {
    if (rank != 2) return dist::send(at::full({5}, rank, at::kFloat), 2, {.tag = 9});
    std::vector<int> from;
    for (int i = 0; i < 3; ++i) {
      const Tensor got = at::zeros({5});
      if (i == 1) {
        const dist::Work work = dist::irecv(got, dist::kAnySource, {.tag = 9});
        work.wait();
        from.push_back(work.source_rank());
      } else {
        from.push_back(dist::recv(got, dist::kAnySource, {.tag = 9}));
      }
      EXPECT_EQ(got[4].item<int>(), from.back());
    }
    EXPECT_THAT(from, ::testing::UnorderedElementsAre(0, 1, 3));
  });
}

TEST_P(CollectiveSuite, AReceiveFromAnyoneTakesEverySizeAndType) {
  on_each(3, [](int rank) {
    int tag = 0;
    for (const int64_t count : kCounts) {
      for (const auto type :
           {at::kFloat, at::kBool, at::kBFloat16, at::kLong, at::kComplexDouble}) {
        ++tag;
        if (rank != 1) {
          dist::send(input_of(rank, count, type), 1, {.tag = tag});
          continue;
        }
        std::vector<int> from;
        for (int i = 0; i < 2; ++i) {
          const Tensor got = at::zeros({count}, type);
          from.push_back(dist::recv(got, dist::kAnySource, {.tag = tag}));
          EXPECT_TRUE(at::equal(got, input_of(from.back(), count, type)))
              << count << " " << c10::toString(type) << " from " << from.back();
        }
        EXPECT_THAT(from, ::testing::UnorderedElementsAre(0, 2));
      }
    }
  });
}

TEST_P(CollectiveSuite, EveryRankSendsToEveryRankItselfIncluded) {
  for (const int ranks : kWorlds) {
    const int64_t chunk = GetParam().chunk(ranks).part;
    on_each(ranks, [ranks, chunk](int rank) {
      for_moves(ranks, [&](at::ScalarType type, const Size& size) {
        const int64_t count = size.of(type, chunk);
        std::vector<dist::P2POp> operations;
        for (int peer = 0; peer < ranks; ++peer) {
          operations.push_back({Kind::kSend, input_of(rank, count, type, peer), peer});
          operations.push_back({Kind::kRecv, at::zeros({count}, type), peer});
        }
        for (const dist::Work& work : dist::batch_isend_irecv(operations)) work.wait();
        for (const auto& one : operations) {
          if (one.kind == Kind::kSend) continue;
          EXPECT_TRUE(same(one.tensor, input_of(one.peer, count, type, rank)))
              << c10::toString(type) << " " << count;
        }
      });
    });
  }
}

TEST_P(CollectiveSuite, AWaitMayEndBeforeItsOperationDoes) {
  on_each(2, [](int rank) {
    if (rank == 0) {
      dist::recv(at::zeros({1}), 1);  // the other one has waited in vain
      return dist::send(at::ones({1}), 1);
    }
    const Tensor got = at::zeros({1});
    const dist::Work work = dist::irecv(got, 0);
    const Error error = error_of([&] { work.wait(1ms); });
    EXPECT_EQ(error.code(), Code::kTimeout);
    EXPECT_EQ(error.operation(), "Work::wait");
    dist::send(at::ones({1}), 0);
    work.wait(-1ms);  // as long as it takes
    EXPECT_EQ(got.item<float>(), 1);
  });
}

// Small ones are kept; of many the later ones find no room, and wait for their receives.
TEST_P(CollectiveSuite, AThreadMaySendToItselfAndReceiveNext) {
  on_each(2, [](int rank) {
    for (const int64_t count : {0, 1, 8192}) {
      const Tensor got = at::zeros({count});
      dist::send(message_of(rank, rank, count), rank, {.tag = 4});
      EXPECT_EQ(dist::recv(got, dist::kAnySource, {.tag = 4}), rank);
      EXPECT_TRUE(at::equal(got, message_of(rank, rank, count))) << count;
    }
    constexpr int64_t kCount = 4096;  // of 8 bytes
    std::vector<dist::Work> works;
    for (int i = 0; i < 300; ++i)
      works.push_back(dist::isend(at::full({kCount}, i, at::kLong), rank));
    for (int i = 0; i < 300; ++i) {
      const Tensor got = at::zeros({kCount}, at::kLong);
      dist::recv(got, rank);
      ASSERT_TRUE(at::equal(got, at::full({kCount}, i, at::kLong))) << i;
    }
    for (const dist::Work& work : works) work.wait();
    // There is room again, for nearly all that may be unclaimed.
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < 120; ++i) dist::send(at::full({kCount}, i, at::kLong), rank);
      for (int i = 0; i < 120; ++i) dist::recv(at::zeros({kCount}, at::kLong), rank);
    }
  });
}

TEST_P(CollectiveSuite, TensorsOfMessagesNeedNotLieInOrder) {
  on_each(2, [](int rank) {
    const Tensor whole = at::arange(24, at::kFloat).view({4, 6});
    if (rank == 0) return dist::send(whole.t(), 1);
    const Tensor columns = at::zeros({4, 12});
    dist::recv(columns.slice(1, 0, 12, 2).t(), 0);
    EXPECT_TRUE(at::equal(columns.slice(1, 0, 12, 2), whole));
    EXPECT_EQ(columns.slice(1, 1, 12, 2).abs().sum().item<float>(), 0);
  });
}

TEST_P(CollectiveSuite, MessagesOfGroupsAreApartAndRanksCountInTheDefaultGroup) {
  on_each(3, [](int rank) {
    const auto all = dist::new_group({0, 1, 2}), odd = dist::new_group({2, 1});
    const Tensor got = at::zeros({1});
    if (rank == 1) {
      const dist::Work sent[] = {dist::isend(at::full({1}, 10, at::kFloat), 2, {.group = all}),
                                 dist::isend(at::full({1}, 20, at::kFloat), 2, {.group = odd})};
      dist::send(at::full({1}, 30, at::kFloat), 2);
      for (const dist::Work& work : sent) work.wait();
    } else if (rank == 2) {
      EXPECT_EQ(dist::recv(got, dist::kAnySource, {.group = odd}), 1);
      EXPECT_EQ(got.item<float>(), 20);
      dist::recv(got, 1);
      EXPECT_EQ(got.item<float>(), 30);
      dist::recv(got, 1, {.group = all});
      EXPECT_EQ(got.item<float>(), 10);
    } else {
      EXPECT_EQ(code_of([&] { dist::send(got, 1, {.group = odd}); }), Code::kInvalidArgument);
    }
  });
}

TEST_P(CollectiveSuite, AMessageOfAnotherTypeOrSizeIsRefusedAndTheNextOneArrives) {
  on_each(2, [](int rank) {
    for (const int64_t count : {int64_t{4}, int64_t{100'000}}) {
      const std::string why = who(0) + " sent " + std::to_string(count) + " elements of float32" +
                              kMaybeOnADevice + ", and the receive of " + who(1) + " is for " +
                              std::to_string(count + 1) + " elements of int64";
      if (rank == 0) {
        try {
          dist::send(at::ones({count}), 1);
        } catch (const Error& error) {  // of one that is offered first
          EXPECT_TRUE(count > 4 || !GetParam().keeps_small_messages);
          EXPECT_EQ(error.code(), Code::kShapeMismatch) << error.what();
          EXPECT_THAT(error.message(), ContainsRegex(why));
          EXPECT_THAT(error.worker(), MatchesRegex(who(1)));
          EXPECT_THAT(error.operation(), HasSubstr("to rank 1, tag 0"));
        }
        dist::send(at::ones({count}), 1);
      } else {
        const Error error = error_of([&] { dist::recv(at::zeros({count + 1}, at::kLong), 0); });
        EXPECT_EQ(error.code(), Code::kShapeMismatch) << error.what();
        EXPECT_THAT(error.message(), ContainsRegex(why));
        EXPECT_THAT(error.worker(), MatchesRegex(who(0)));
        EXPECT_THAT(error.operation(), HasSubstr("from rank 0, tag 0"));
        const Tensor got = at::zeros({count});
        dist::recv(got, 0);
        EXPECT_TRUE(at::equal(got, at::ones({count})));
      }
    }
  });
}

TEST_P(CollectiveSuite, AMessageThatIsRefusedNamesRanksAsTheDefaultGroupDoes) {
  on_each(3, [](int rank) {
    if (rank == 0) return;
    const dist::MessageOptions among = {.group = dist::new_group({2, 1}), .tag = 3};
    if (rank == 2) {
      const Code sent = code_of([&] { dist::send(at::ones({2}), 1, among); });
      EXPECT_EQ(sent, GetParam().keeps_small_messages ? Code::kOk : Code::kShapeMismatch);
      return;
    }
    const Error error = error_of([&] { dist::recv(at::zeros({5}), 2, among); });
    EXPECT_EQ(error.code(), Code::kShapeMismatch) << error.what();
    const std::string sent = who(2) + " sent 2 elements of float32" + kMaybeOnADevice;
    EXPECT_THAT(error.message(), ContainsRegex(sent + ", and the receive of " + who(1) + " is"));
    EXPECT_THAT(error.operation(),
                HasSubstr("recv of float32 [5] from rank 2, tag 3, message 1 of"));
  });
}

TEST_P(CollectiveSuite, AReceiveEndsWhenItsTimeIsOverAndTheGroupGoesOn) {
  on_each(2, [](int rank) {
    if (rank == 1) {
      const TimePoint begun = Clock::now();
      const Error error =
          error_of([] { dist::recv(at::zeros({3}), 0, {.tag = 5, .timeout = 100ms}); });
      EXPECT_EQ(error.code(), Code::kTimeout);
      EXPECT_THAT(error.message(), ContainsRegex("nothing came from " + who(0)));
      EXPECT_THAT(error.what(), HasSubstr("recv of float32 [3] from rank 0, tag 5"));
      EXPECT_GE(Clock::now() - begun, 100ms);
      EXPECT_LT(Clock::now() - begun, 10s);
    }
    dist::barrier();
    const Tensor got = at::zeros({3});
    if (rank == 0) dist::send(at::ones({3}), 1, {.tag = 5});
    if (rank == 1) dist::recv(got, 0, {.tag = 5});
    EXPECT_EQ(got.sum().item<float>(), rank == 1 ? 3 : 0);
  });
}

TEST_P(CollectiveSuite, WhoLeavesIsNamedToThoseThatWaitForHisMessage) {
  if (!GetParam().keeps_small_messages)
    GTEST_SKIP() << "who has sent it has waited for its receive";
  on_each(3, [](int rank) {
    auto group = dist::new_group({0, 1, 2}, 30s);
    if (rank == 0) dist::send(at::ones({2}), 1, {.group = group, .tag = 1});
    if (rank == 0) return group.reset();
    if (rank == 2) {
      dist::recv(at::zeros({2}), 1, {.tag = 7});  // until then it stays
      return;
    }
    const Error error = error_of([&] { dist::recv(at::zeros({2}), 0, {.group = group}); });
    EXPECT_EQ(error.code(), Code::kDisconnected) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("rank 0"));
    EXPECT_THAT(error.what(), HasSubstr("has left the group"));
    // Expect: what it sent before is there.
    const Tensor got = at::zeros({2});
    dist::recv(got, 0, {.group = group, .tag = 1});
    EXPECT_EQ(got.sum().item<float>(), 2);
    dist::send(at::zeros({2}), 2, {.tag = 7});
  });
}

TEST_P(CollectiveSuite, AReceiveFromAnyoneGoesOnWithoutWhoHasLeft) {
  on_each(3, [](int rank) {
    const auto group = dist::new_group({0, 1, 2}, 30s);
    const Tensor got = at::zeros({2});
    if (rank == 1) {
      dist::send(at::ones({2}), 0, {.group = group});
      group->shutdown();
    }
    if (rank == 0) {
      EXPECT_EQ(dist::recv(got, dist::kAnySource, {.group = group}), 1);
    }
    const dist::Work waits =
        rank == 0 ? dist::irecv(got, dist::kAnySource, {.group = group}) : dist::Work();
    dist::barrier();
    if (rank == 2) {
      for (int i = 0; i < 2; ++i) dist::send(at::full({2}, 2.0), 0, {.group = group});
      dist::recv(got, 0);  // until then it stays
    }
    if (rank != 0) return;
    waits.wait();
    EXPECT_EQ(waits.source_rank(), 2);
    EXPECT_EQ(dist::recv(got, dist::kAnySource, {.group = group}), 2);
    dist::send(got, 2);
    const Error error = error_of([&] { dist::recv(got, dist::kAnySource, {.group = group}); });
    EXPECT_EQ(error.code(), Code::kDisconnected) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("all other ranks have left the group"));
  });
}

TEST_P(CollectiveSuite, AbortEndsMessagesUnderWayOnAllRanks) {
  on_each(2, [](int rank) {
    const dist::Work work = dist::irecv(at::zeros({1}), 1 - rank, {.tag = 4});
    const auto group = dist::default_group();
    dist::monitored_barrier();
    if (rank == 0) group->abort("enough");
    const Error error = error_of([&] { work.wait(); });
    EXPECT_EQ(error.code(), Code::kCancelled) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("enough"));
  });
}

TEST_P(CollectiveSuite, MessagesThatMakeNoSenseAreRefused) {
  on_each(2, [](int) {
    const auto refused = [](const std::function<void()>& call, const std::string& why) {
      const Error error = error_of(call);
      EXPECT_EQ(error.code(), Code::kInvalidArgument) << error.what();
      EXPECT_THAT(error.what(), HasSubstr(why));
    };
    const Tensor two = at::ones({2});
    refused([&] { dist::send(two, 2); }, "rank 2");
    refused([&] { dist::send(two, dist::kAnySource); }, "rank -1");
    refused([&] { dist::recv(two, 3); }, "rank 3");
    refused([&] { dist::send(two, 1, {.tag = -1}); }, "tag -1");
    refused([&] { dist::recv(at::ones({1}).expand({4}), 1); }, "recv: the tensor that is to be");
    refused([&] { dist::send(Tensor(), 1); }, "undefined");
    refused([&] { (void)dist::batch_isend_irecv({}); }, "empty");
    refused(
        [&] {
          (void)dist::batch_isend_irecv({{Kind::kSend, two, 1}, {Kind::kRecv, two, 7}});
        },
        "rank 7");
    dist::barrier();
  });
}

// The threads only send and receive: LibTorch's own threads do not survive the fork of
// CpuInProcesses.
TEST_P(CollectiveSuite, ThreadsSendAtOnce) {
  constexpr int kThreads = 4, kMessages = 100;
  on_each(2, [](int rank) {
    const auto group = dist::default_group();
    std::vector<std::vector<Tensor>> sent(kThreads), got(kThreads);
    for (int tag = 0; tag < kThreads; ++tag) {
      for (int i = 0; i < kMessages; ++i) {
        const int64_t count = i % 10 == 9 ? 40'000 : 10;
        const auto of = [&](int sender) {
          return at::full({count}, sender * 1000 + tag * kMessages + i, at::kFloat);
        };
        sent[static_cast<size_t>(tag)].push_back(of(rank));
        got[static_cast<size_t>(tag)].push_back(at::zeros({count}));
      }
    }
    std::vector<std::thread> threads;
    for (int tag = 0; tag < kThreads; ++tag) {
      threads.emplace_back([&, tag] {
        const auto number = static_cast<size_t>(tag);
        for (size_t i = 0; i < kMessages; ++i) {
          const dist::MessageOptions options{group, tag};
          const dist::Work under_way = dist::isend(sent[number][i], 1 - rank, options);
          dist::recv(got[number][i], 1 - rank, options);
          under_way.wait();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t tag = 0; tag < kThreads; ++tag) {
      for (size_t i = 0; i < kMessages; ++i) {
        const Tensor expected = sent[tag][i] + (rank == 0 ? 1000 : -1000);
        EXPECT_TRUE(at::equal(got[tag][i], expected)) << tag << " " << i;
      }
    }
  });
}

TEST_P(CollectiveSuite, MessagesUnderWayAreRemembered) {
  on_each(2, [](int rank) {
    const dist::Work work = dist::irecv(at::zeros({4}), 1 - rank, {.tag = 2});
    EXPECT_THAT(dist::default_group()->dump(),
                HasSubstr("recv of float32 [4] from rank " + std::to_string(1 - rank) +
                          ", tag 2, running"));
    dist::barrier();
    dist::send(at::ones({4}), 1 - rank, {.tag = 2});
    work.wait();
    EXPECT_THAT(dist::default_group()->dump(),
                ::testing::ContainsRegex("tag 2, began .* ago, ended .* ago, took "));
  });
}

}  // namespace
}  // namespace farspan::testing
