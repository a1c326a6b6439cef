// Ranks of one job as threads of this process, over each backend, on one host or as if on several.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <farspan/c10d/backends/fake/fake.h>
#include <farspan/c10d/group/process_group.h>

#include "c10d/backends/cpu_job.h"

namespace farspan::testing {

using RankBody = std::function<void(int rank)>;

// Runs `body` on each rank, with the job's group as its default group; what it throws fails the
// test. Who ends first leaves the group only when all have.
class Ranks {
 public:
  virtual ~Ranks() = default;
  virtual dist::Group group(int rank) = 0;

  void run(int ranks, const RankBody& body) {
    std::vector<std::thread> threads;
    std::vector<dist::Group> groups(static_cast<size_t>(ranks));  // live until all have ended
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          groups[static_cast<size_t>(rank)] = group(rank);
          const dist::CurrentGroup current(groups[static_cast<size_t>(rank)]);
          body(rank);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << ": " << error.what();
          // The others need not wait for it.
          if (groups[static_cast<size_t>(rank)]) groups[static_cast<size_t>(rank)]->abort();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
};

class FakeRanks final : public Ranks {
 public:
  explicit FakeRanks(int ranks, Millis timeout) : timeout_(timeout) {
    fabric = dist::fake::Fabric::make(ranks);
  }
  dist::Group group(int rank) override { return fabric->group(rank, timeout_); }
  std::shared_ptr<dist::fake::Fabric> fabric;

 private:
  const Millis timeout_;
};

class CpuRanks final : public Ranks {
 public:
  CpuRanks(int ranks, Millis timeout, dist::testing::HostOf host_of)
      : ranks_(ranks), timeout_(timeout), host_of_(std::move(host_of)) {}
  dist::Group group(int rank) override {
    return std::make_shared<dist::ProcessGroup>(
        dist::testing::whole_job(rank, ranks_), rank,
        dist::testing::join_job(store_, rank, ranks_, host_of_(rank)), timeout_);
  }

 private:
  const int ranks_;
  const Millis timeout_;
  const dist::testing::HostOf host_of_;
  const std::shared_ptr<dist::HashStore> store_ = std::make_shared<dist::HashStore>();
};

inline constexpr Millis kRanksTimeout{60'000};

inline void run_on_fake_ranks(int ranks, const RankBody& body, Millis timeout = kRanksTimeout) {
  FakeRanks(ranks, timeout).run(ranks, body);
}
inline void run_on_cpu_ranks(int ranks, const RankBody& body, Millis timeout = kRanksTimeout) {
  CpuRanks(ranks, timeout, dist::testing::one_host).run(ranks, body);
}
inline void run_on_hosts(const dist::testing::HostOf& host_of, int ranks, const RankBody& body,
                         Millis timeout = kRanksTimeout) {
  CpuRanks(ranks, timeout, host_of).run(ranks, body);
}

}  // namespace farspan::testing
