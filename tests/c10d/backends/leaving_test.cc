// The rule under test: c10d/backends/README.md, "Leaving": a rank may leave a group at any moment,
// and nobody waits for it after that.
#include <farspan/c10d/group/perform.h>
#include <farspan/c10d/group/process_group.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "c10d/backends/cpu_job.h"
#include "support/errors.h"

namespace farspan::dist {
namespace {

using namespace std::chrono_literals;
using farspan::testing::code_of;
using farspan::testing::error_of;
using ::testing::HasSubstr;

constexpr Millis kLong = 60s;  // which nothing here may take
constexpr double kSoon = 20;   // seconds, on a busy machine

struct Hosts {
  const char* name;
  testing::HostOf host_of;
};

// Groups of all ranks, made one after the other.
class Job {
 public:
  Job(int ranks, const testing::HostOf& host_of) : ranks_(testing::make_job(ranks, host_of)) {}
  ~Job() {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) leave(rank);
  }

  std::vector<Group> new_group() {
    const auto size = static_cast<int>(ranks_.size());
    std::vector<Group> group;
    ++made_;
    for (int rank = 0; rank < size; ++rank) {
      GroupSpec spec = testing::whole_job(rank, size);
      spec.name = spec.label = "group " + std::to_string(made_);
      const auto backend = ranks_[static_cast<size_t>(rank)]->subgroup(spec);
      group.push_back(std::make_shared<ProcessGroup>(spec, rank, backend, kLong));
    }
    return group;
  }
  void leave(size_t rank) {
    if (ranks_[rank]) ranks_[rank]->leave();
  }
  void drop(size_t rank) { ranks_[rank].reset(); }

 private:
  std::vector<std::shared_ptr<Backend>> ranks_;
  int made_ = 0;
};

auto barrier(const Group& group) {
  Signature signature;
  signature.op = Op::kBarrier;
  const auto body = [](Backend& backend, const Call& call) { backend.barrier(call); };
  return Plan<decltype(body)>{group, signature, 1, std::nullopt, nullptr, {}, body};
}

// Of as many bytes as `own` has.
auto all_reduce(const Group& group, std::vector<std::byte>& own) {
  Signature signature;
  signature.op = Op::kAllReduce;
  signature.type = static_cast<uint8_t>(DType::UINT8);
  signature.reduce = static_cast<uint8_t>(ReduceOp::kSum);
  signature.count = own.size();
  const auto body = [&own](Backend& backend, const Call& call) {
    backend.all_reduce(call, testing::block_of(own));
  };
  return Plan<decltype(body)>{group, signature, 1, std::nullopt, nullptr, {}, body};
}

double seconds_since(TimePoint begun) {
  return std::chrono::duration<double>(Clock::now() - begun).count();
}

class Leaving : public ::testing::TestWithParam<Hosts> {
 protected:
  // A moment later, of which no two are alike.
  static void spin(uint32_t up_to_us) {
    thread_local std::minstd_rand numbers{std::random_device{}()};
    const TimePoint end = Clock::now() + std::chrono::microseconds(numbers() % up_to_us);
    while (Clock::now() < end) {
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Each, Leaving,
                         ::testing::Values(Hosts{"OneHost", testing::one_host},
                                           Hosts{"OwnHosts", testing::own_host},
                                           Hosts{"MixedHosts", testing::mixed_hosts}),
                         [](const auto& hosts) { return std::string(hosts.param.name); });

// What others may see of a rank that has left: a call that has ended well before, or who it was.
void expect_told(const std::function<void()>& call, int leaver) {
  const TimePoint begun = Clock::now();
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kDisconnected) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("rank " + std::to_string(leaver) + " ("));
    EXPECT_THAT(error.what(), HasSubstr("left the group"));
  }
  EXPECT_LT(seconds_since(begun), kSoon);
}

TEST_P(Leaving, WhoMakesTheMemoryOfAGroupLeavesInTheFirstCollective) {
  Job job(2, GetParam().host_of);
  for (int round = 0; round < 200 && !HasFailure(); ++round) {
    const auto group = job.new_group();
    std::thread other([&] { expect_told([&] { perform_now(barrier(group[1])); }, 0); });
    const Work own = perform_async(barrier(group[0]));
    spin(150);
    group[0]->shutdown();
    other.join();
  }
}

TEST_P(Leaving, WhoAsksForTheMemoryOfAGroupLeavesInTheFirstCollective) {
  Job job(2, GetParam().host_of);
  for (int round = 0; round < 200 && !HasFailure(); ++round) {
    const auto group = job.new_group();
    std::thread other([&] {
      spin(150);
      group[0]->shutdown();
    });
    const Work own = perform_async(barrier(group[1]));
    spin(150);
    const TimePoint begun = Clock::now();
    group[1]->shutdown();  // waits for the call, which must end
    EXPECT_LT(seconds_since(begun), kSoon);
    other.join();
  }
}

TEST_P(Leaving, NothingIsConnectedForAGroupThatIsLeft) {
  Job job(2, GetParam().host_of);
  for (size_t rank = 0; rank < 2; ++rank) {
    const auto group = job.new_group();
    group[rank]->backend().leave();
    // As a call does that was about to begin.
    const Call call{barrier(group[rank]).signature, DType::UINT8, 1, Deadline::after(kLong)};
    const TimePoint begun = Clock::now();
    EXPECT_EQ(code_of([&] { group[rank]->backend().barrier(call); }), Code::kShutdown);
    expect_told([&] { perform_now(barrier(group[1 - rank])); }, static_cast<int>(rank));
    EXPECT_LT(seconds_since(begun), kSoon);
  }
}

TEST_P(Leaving, AReceiveThatIsPostedMeanwhileEnds) {
  Job job(2, GetParam().host_of);
  for (int round = 0; round < 500 && !HasFailure(); ++round) {
    const auto group = job.new_group();
    const auto receive_until_the_end = [&](int tag) {
      std::vector<std::byte> bytes(8);
      // Until one has ended at once.
      for (bool had_left = false; !had_left;) {
        const auto received =
            group[0]->backend().recv(testing::message(1, tag, kLong), testing::block_of(bytes));
        had_left = received.ready();
        if (!received.wait_for(std::chrono::seconds(20))) {
          ADD_FAILURE() << "a receive has not ended in round " << round;
          std::abort();  // its bytes would not outlive it
        }
        EXPECT_EQ(received.error().code(), Code::kShutdown) << received.error().what();
      }
    };
    std::thread one(receive_until_the_end, 1), two(receive_until_the_end, 2);
    spin(60);
    group[0]->shutdown();
    one.join();
    two.join();
  }
}

// Between the two there was no line on which it could have said so.
TEST_P(Leaving, AReceiveFromAnyoneGoesOnWithoutWhoLeftAndEndedBeforeIt) {
  auto ranks = testing::make_job(3, GetParam().host_of);
  const auto end = [&](size_t rank) {
    ranks[rank]->leave();
    ranks[rank].reset();
  };
  std::vector<std::byte> got(8), sent(8, std::byte{7}), none(8);
  const auto receive = [&](int from, std::vector<std::byte>& bytes) {
    return ranks[0]->recv(testing::message(from, 1, kLong), testing::block_of(bytes));
  };
  end(1);
  const Future<int> from_anyone = receive(-1, got);
  EXPECT_EQ(code_of([&] { receive(1, none).wait(); }), Code::kDisconnected);
  ranks[2]->send(testing::message(0, 1, kLong), testing::block_of(sent)).wait();
  EXPECT_EQ(Future<int>(from_anyone).wait(), 2);
  EXPECT_EQ(got, sent);
  end(2);
  const Error error = error_of([&] { receive(-1, none).wait(); });
  EXPECT_THAT(error.what(), HasSubstr("all other ranks have left the group"));
  end(0);
}

// A group outlives the default one, also for what it needs to know of others.
TEST_P(Leaving, WhoHasLeftTheDefaultGroupLearnsInAnotherWhoHasLeft) {
  auto ranks = testing::make_job(3, GetParam().host_of);
  std::vector<std::shared_ptr<Backend>> others;
  for (int rank = 0; rank < 3; ++rank) {
    GroupSpec spec = testing::whole_job(rank, 3);
    spec.name = spec.label = "others";
    others.push_back(ranks[static_cast<size_t>(rank)]->subgroup(spec));
  }
  const auto end = [&](size_t rank) {
    if (others[rank]) others[rank]->leave();
    others[rank].reset();
  };
  for (auto& rank : ranks) {
    rank->leave();
    rank.reset();
  }
  end(1);
  std::vector<std::byte> got(8), sent(8, std::byte{7}), none(8);
  const auto from_anyone = others[0]->recv(testing::message(-1, 1, kLong), testing::block_of(got));
  const auto from_one = others[0]->recv(testing::message(1, 1, kLong), testing::block_of(none));
  EXPECT_EQ(code_of([&] { Future<int>(from_one).wait(); }), Code::kDisconnected);
  others[2]->send(testing::message(0, 1, kLong), testing::block_of(sent)).wait();
  EXPECT_EQ(Future<int>(from_anyone).wait(), 2);
  end(2);
  end(0);
}

TEST_P(Leaving, EveryOtherRankIsToldWhoHasLeftInsideACollective) {
  Job job(4, GetParam().host_of);
  std::minstd_rand numbers(1);
  for (int round = 0; round < 60 && !HasFailure(); ++round) {
    const auto group = job.new_group();
    const int leaver = static_cast<int>(numbers() % 4);
    const size_t bytes = size_t{1} << (numbers() % 22);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 4; ++rank) {
      threads.emplace_back([&, rank] {
        std::vector<std::byte> own(bytes);
        const auto call_until_the_end = [&] {
          while (true) perform_now(all_reduce(group[static_cast<size_t>(rank)], own));
        };
        if (rank == leaver) {
          EXPECT_EQ(code_of(call_until_the_end), Code::kShutdown);
        } else {
          expect_told(call_until_the_end, leaver);
        }
      });
    }
    spin(3000);
    group[static_cast<size_t>(leaver)]->shutdown();
    for (std::thread& thread : threads) thread.join();
  }
}

// A rank that leaves, unused, and ends while its line to the other one opens.
TEST_P(Leaving, AJobEndsWhileItsRanksTellThatTheyLeave) {
  for (int round = 0; round < 50; ++round) {
    Job job(2, GetParam().host_of);
    job.leave(1);
    spin(600);
    job.drop(1);
  }
}

}  // namespace
}  // namespace farspan::dist
