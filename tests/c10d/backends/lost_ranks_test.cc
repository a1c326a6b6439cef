// The rule under test: c10d/backends/README.md, "Failure", between processes: a rank that is killed
// or stopped in the middle of a collective ends it on the others, in time, and leaves nothing.
#include <farspan/c10d/store/file_store.h>

#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "c10d/backends/cpu_job.h"
#include "c10d/store/temporary_folder.h"

namespace farspan::dist {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// What a rank has to say at its end, in memory that it shares with the test.
struct Report {
  std::atomic<bool> running{false};  // it has finished a collective
  std::atomic<int> code{0};
  std::atomic<int64_t> failed_at{0};  // of Clock
  char what[500];
};

Call all_reduce_call(size_t count, Deadline deadline) {
  Call call;
  call.signature.op = Op::kAllReduce;
  call.type = DType::FLOAT32;
  call.signature.type = static_cast<uint8_t>(call.type);
  call.signature.count = count;
  call.deadline = deadline;
  return call;
}

// Reduces tensors of all sizes until that fails.
void work(const std::string& store, int rank, int ranks, Millis timeout, Report& report) {
  const auto backend = testing::join_job(std::make_shared<FileStore>(store), rank, ranks);
  std::vector<float> data(1 << 20);
  try {
    for (uint64_t turn = 0;; ++turn) {
      const size_t count = std::vector<size_t>{1, 3000, 100'000, data.size()}[turn % 4];
      backend->all_reduce(all_reduce_call(count, Deadline::after(timeout)),
                          {reinterpret_cast<std::byte*>(data.data()), count});
      report.running = true;
    }
  } catch (const Error& error) {
    std::snprintf(report.what, sizeof report.what, "%s", error.what());
    report.code = static_cast<int>(error.code());
    report.failed_at = Clock::now().time_since_epoch().count();
  }
}

class LostRanks : public ::testing::Test {
 protected:
  static constexpr int kRanks = 3;

  void SetUp() override {
    void* const place = mmap(nullptr, sizeof(Report) * kRanks, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(place, MAP_FAILED);
    reports_ = new (place) Report[kRanks];
  }
  void TearDown() override { munmap(reports_, sizeof(Report) * kRanks); }

  void start(Millis timeout) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const pid_t pid = fork();
      ASSERT_GE(pid, 0);
      if (pid == 0) {
        work(folder_.file("store"), rank, kRanks, timeout, reports_[rank]);
        _exit(0);
      }
      pids_.push_back(pid);
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      while (!reports_[rank].running) std::this_thread::sleep_for(1ms);
    }
  }

  // Waits for the end of all but the victim, and returns how long the last one took to notice.
  Clock::duration survivors_end(int victim, TimePoint lost) {
    Clock::duration longest{0};
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      int status = 0;
      EXPECT_EQ(waitpid(pids_[static_cast<size_t>(rank)], &status, 0),
                pids_[static_cast<size_t>(rank)]);
      EXPECT_EQ(status, 0);
      const TimePoint noticed{Clock::duration(reports_[rank].failed_at)};
      longest = std::max(longest, noticed - lost);
    }
    return longest;
  }

  const farspan::testing::TemporaryFolder folder_;
  Report* reports_ = nullptr;
  std::vector<pid_t> pids_;
};

class LostRanksBySeed : public LostRanks, public ::testing::WithParamInterface<int> {};

TEST_P(LostRanksBySeed, AKilledRankEndsTheOthersCollectives) {
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  start(60s);
  const int victim = GetParam() % kRanks;
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 20'000));
  const TimePoint lost = Clock::now();
  kill(pids_[static_cast<size_t>(victim)], SIGKILL);
  EXPECT_LT(survivors_end(victim, lost), 2s);
  waitpid(pids_[static_cast<size_t>(victim)], nullptr, 0);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == victim) continue;
    EXPECT_EQ(static_cast<Code>(reports_[rank].code.load()), Code::kDisconnected);
    EXPECT_THAT(reports_[rank].what, HasSubstr("rank " + std::to_string(victim) + " ("));
    EXPECT_THAT(reports_[rank].what, HasSubstr("is gone"));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, LostRanksBySeed, ::testing::Range(0, 12));

TEST_F(LostRanks, AStoppedRankEndsTheOthersCollectivesAtTheirDeadline) {
  start(1s);
  kill(pids_[1], SIGSTOP);
  const TimePoint lost = Clock::now();
  const auto longest = survivors_end(1, lost);
  EXPECT_GT(longest, 500ms);
  EXPECT_LT(longest, 3s);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(static_cast<Code>(reports_[rank].code.load()), Code::kTimeout);
    EXPECT_THAT(reports_[rank].what, HasSubstr("rank 1 ("));
  }
  // Expect: when it goes on it is told, too.
  kill(pids_[1], SIGCONT);
  int status = 0;
  waitpid(pids_[1], &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_NE(reports_[1].code.load(), 0);
}

}  // namespace
}  // namespace farspan::dist
