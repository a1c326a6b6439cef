// What the conformance suite does not see of the fake backend: deaths.
#include <farspan/c10d/backends/fake/fake.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "c10d/backends/cpu_job.h"
#include "support/errors.h"

namespace farspan::dist {
namespace {

using namespace std::chrono_literals;
using farspan::testing::error_of;
using ::testing::HasSubstr;

TEST(FakeBackend, ADeathEndsReceivesFromAnyoneOnceAndLaterOnesGoOn) {
  const auto fabric = fake::Fabric::make(4);
  std::vector<Group> ranks;
  for (int rank = 0; rank < 4; ++rank) ranks.push_back(fabric->group(rank));
  std::vector<std::byte> got(8), sent(8, std::byte{7});
  const auto receive = [&](int at, int from) {
    return ranks[static_cast<size_t>(at)]->backend().recv(testing::message(from),
                                                          testing::block_of(got));
  };
  const auto waits = receive(0, -1);
  fabric->kill(1);
  EXPECT_THAT(error_of([&] { Future<int>(waits).wait(); }).what(), HasSubstr("rank 1 is gone"));
  EXPECT_THAT(error_of([&] { receive(2, -1).wait(); }).what(), HasSubstr("rank 1 is gone"));
  for (const int at : {0, 2}) {
    const auto next = receive(at, -1);
    ranks[3]->backend().send(testing::message(at), testing::block_of(sent)).wait();
    EXPECT_EQ(Future<int>(next).wait(), 3);
    EXPECT_THAT(error_of([&] { receive(at, 1).wait(); }).what(), HasSubstr("rank 1 is gone"));
  }
}

TEST(FakeBackend, WhoThrowsIsGoneForTheOthersAndHasNotLeft) {
  std::string told;
  const auto body = [&](int rank, int) {
    if (rank == 1) throw std::runtime_error("oops");
    std::vector<std::byte> got(8);
    told = error_of([&] {
             default_group()->backend().recv(testing::message(1), testing::block_of(got)).wait();
           }).what();
  };
  EXPECT_THROW(fake::run_ranks(2, body, 60s), std::runtime_error);
  EXPECT_THAT(told, HasSubstr("rank 1 is gone"));
}

}  // namespace
}  // namespace farspan::dist
