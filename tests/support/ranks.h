// Ranks of one job as threads of this process, over each backend.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <farspan/c10d/backends/cpu/cpu.h>
#include <farspan/c10d/backends/fake/fake.h>
#include <farspan/c10d/group/process_group.h>
#include <farspan/c10d/store/hash_store.h>

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
  CpuRanks(int ranks, Millis timeout) : ranks_(ranks), timeout_(timeout) {}
  dist::Group group(int rank) override {
    dist::BackendContext context;
    context.store = store_;
    context.group.name = "world";
    context.group.rank = rank;
    for (int one = 0; one < ranks_; ++one) context.group.ranks.push_back(one);
    context.deadline = Deadline::after(std::chrono::seconds(60));
    auto backend = dist::cpu::make_cpu_backend(context);
    return std::make_shared<dist::ProcessGroup>(context.group, rank, std::move(backend), timeout_);
  }

 private:
  const int ranks_;
  const Millis timeout_;
  const std::shared_ptr<dist::HashStore> store_ = std::make_shared<dist::HashStore>();
};

inline constexpr Millis kRanksTimeout{60'000};

inline void run_on_fake_ranks(int ranks, const RankBody& body, Millis timeout = kRanksTimeout) {
  FakeRanks(ranks, timeout).run(ranks, body);
}
inline void run_on_cpu_ranks(int ranks, const RankBody& body, Millis timeout = kRanksTimeout) {
  CpuRanks(ranks, timeout).run(ranks, body);
}

}  // namespace farspan::testing
