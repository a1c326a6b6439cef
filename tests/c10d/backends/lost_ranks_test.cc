// The rule under test: c10d/backends/README.md, "Failure", between processes: a rank that is killed
// or stopped in the middle of a collective ends it on the others, in time, and leaves nothing; who
// tells of it does not wait for the dead; those that are left make a group of their own. With
// FARSPAN_LOST_RANKS=200 so many are lost of each arrangement of ranks on hosts.
#include <farspan/c10d/store/file_store.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sanitizer/lsan_interface.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "c10d/backends/cpu_job.h"
#include "c10d/store/temporary_folder.h"
#include "support/eventually.h"
#include "support/process_counts.h"
#include "support/sanitizers.h"

namespace farspan::dist {
namespace {

using namespace std::chrono_literals;
using farspan::testing::kAddressSanitizer;
using farspan::testing::kThreadSanitizer;
using farspan::testing::ProcessCounts;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// What a rank has to say at its end, in memory that it shares with the test.
struct Report {
  std::atomic<bool> running{false};  // it has finished a collective
  std::atomic<int> code{0};
  std::atomic<int64_t> called_at{0}, failed_at{0};  // of Clock: its last collective
  std::atomic<int64_t> abort_took{0};
  std::atomic<int64_t> went_on_at{0};  // of Clock: the survivors' group has given right results
  ProcessCounts before, after;         // the job
  char what[500];
};

int times(int by_default) {
  if (kThreadSanitizer) by_default = (by_default + 2) / 3;  // each rank is many times slower
  const char* const wanted = std::getenv("FARSPAN_LOST_RANKS");
  return wanted ? std::atoi(wanted) : by_default;
}

struct Arrangement {
  std::string name;
  testing::HostOf host_of;
};
void PrintTo(const Arrangement& arrangement, std::ostream* out) { *out << arrangement.name; }
const Arrangement kArrangements[] = {{"OneHost", testing::one_host},
                                     {"OwnHosts", testing::own_host},
                                     {"Mixed", testing::mixed_hosts}};

Call call_of(Op op, uint64_t sequence, size_t count, Deadline deadline) {
  Call call;
  call.signature.op = op;
  call.signature.sequence = sequence;
  call.signature.root = 0;
  call.type = DType::FLOAT32;
  call.signature.type = static_cast<uint8_t>(call.type);
  call.signature.count = count;
  call.deadline = deadline;
  return call;
}

enum class Mix { kCollectives, kMessagesToo };

// The operations that a rank calls in turn, on tensors of all sizes.
class Work {
 public:
  Work(int rank, int ranks, Mix mix)
      : rank_(rank), ranks_(ranks), mix_(mix), data_(1 << 20), more_(data_.size()) {}

  void call(Backend& backend, uint64_t turn, Deadline deadline) {
    const size_t count = std::vector<size_t>{12, 3000, 100'000, data_.size()}[turn % 4];
    const Block all{reinterpret_cast<std::byte*>(data_.data()), count};
    const auto make = [&](Op op) { return call_of(op, turn, count, deadline); };
    const size_t part = count / static_cast<size_t>(ranks_);
    const auto own_part = [part](std::vector<float>& data) {
      return Block{reinterpret_cast<std::byte*>(data.data()), part};
    };
    const auto of_root = [&](std::vector<float>& data) {
      return rank_ == 0 ? parts(data, count) : std::vector<Block>{};
    };
    switch (turn / 4 % (mix_ == Mix::kMessagesToo ? 10 : 9)) {
      case 0:
        return backend.all_reduce(make(Op::kAllReduce), all);
      case 1:
        return backend.broadcast(make(Op::kBroadcast), all);
      case 2:
        return backend.all_gather(make(Op::kAllGather), own_part(data_), parts(more_, count));
      case 3:
        return backend.reduce_scatter(make(Op::kReduceScatter), parts(data_, count),
                                      own_part(more_));
      case 4:
        return backend.all_to_all(make(Op::kAllToAll), parts(data_, count), parts(more_, count));
      case 5:
        return backend.reduce(make(Op::kReduce), all);
      case 6:
        return backend.gather(make(Op::kGather), own_part(data_), of_root(more_));
      case 7:
        return backend.scatter(make(Op::kScatter), of_root(data_), own_part(more_));
      case 8:
        return backend.barrier(make(Op::kBarrier));
      default:
        return pass_round(backend, count, deadline);
    }
  }

 private:
  std::vector<Block> parts(std::vector<float>& data, size_t count) const {
    const size_t part = count / static_cast<size_t>(ranks_);
    std::vector<Block> blocks;
    for (size_t rank = 0; rank < static_cast<size_t>(ranks_); ++rank) {
      blocks.push_back({reinterpret_cast<std::byte*>(data.data() + rank * part), part});
    }
    return blocks;
  }

  // A message to the next rank, and one from the rank before.
  void pass_round(Backend& backend, size_t count, Deadline deadline) {
    Message message;
    message.type = DType::FLOAT32;
    message.deadline = deadline;
    message.peer = (rank_ + 1) % ranks_;
    const auto sent = backend.send(message, {reinterpret_cast<std::byte*>(data_.data()), count});
    message.peer = (rank_ + ranks_ - 1) % ranks_;
    const auto received =
        backend.recv(message, {reinterpret_cast<std::byte*>(more_.data()), count});
    received.wait_for(std::chrono::hours(1));  // both, since both have memory of this
    sent.wait_for(std::chrono::hours(1));
    received.wait();
    sent.wait();
  }

  const int rank_, ranks_;
  const Mix mix_;
  std::vector<float> data_, more_;
};

constexpr uint64_t kNever = ~uint64_t{0};

struct Part {  // in a job
  int rank, ranks;
  std::string host_id;
  Millis timeout;
  uint64_t stops_before = kNever;  // the turn before which this process stops itself
  int victim = -1;                 // without which the others go on; -1: they do not
  Mix mix = Mix::kMessagesToo;
};

// Throws where the others' group does not come about.
void go_on_without(Backend& backend, const Part& part) {
  GroupSpec spec;
  spec.name = "survivors";
  for (int rank = 0; rank < part.ranks; ++rank) {
    if (rank == part.rank) spec.rank = spec.size();
    if (rank != part.victim) spec.ranks.push_back(rank);
  }
  const auto sum = static_cast<float>(part.ranks * (part.ranks + 1) / 2 - (part.victim + 1));
  const auto left = backend.subgroup(spec);
  uint64_t sequence = 0;
  for (const size_t count : {3, 3000, 100'000, 1 << 20}) {
    std::vector<float> data(count, static_cast<float>(part.rank + 1));
    left->all_reduce(call_of(Op::kAllReduce, sequence++, count, Deadline::after(10s)),
                     {reinterpret_cast<std::byte*>(data.data()), count});
    if (std::any_of(data.begin(), data.end(), [&](float one) { return one != sum; })) {
      throw Error(Code::kInternal, "a wrong result");
    }
  }
}

void work_until_it_fails(Backend& backend, const Part& part, Report& report) {
  const auto now = [] { return Clock::now().time_since_epoch().count(); };
  Work work(part.rank, part.ranks, part.mix);
  uint64_t turn = 0;
  try {
    for (;; ++turn) {
      if (turn == part.stops_before) raise(SIGSTOP);
      report.called_at = now();
      work.call(backend, turn, Deadline::after(part.timeout));
      report.running = true;
    }
  } catch (const Error& error) {
    report.failed_at = now();
    std::snprintf(report.what, sizeof report.what, "%s", error.what());
    report.code = static_cast<int>(error.code());
    const int64_t begun = now();
    backend.abort(error, turn);
    report.abort_took = now() - begun;
  }
  if (part.victim < 0) return;
  try {
    go_on_without(backend, part);
    report.went_on_at = now();
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d, without rank %d: %s\n", part.rank, part.victim, error.what());
  }
}

// As a sanitizer sees it, which does not look at a process that ends with _exit.
bool has_leaks() {
  if constexpr (kAddressSanitizer) return __lsan_do_recoverable_leak_check() != 0;
  return false;
}

void take_part(const std::string& store, const Part& part, Report& report) {
  testing::join_job(std::make_shared<HashStore>(), 0, 1);  // opens what the process keeps
  farspan::testing::eventually([] { return ProcessCounts::now().threads == 1; });
  report.before = ProcessCounts::now();
  std::thread([&] {  // who waits has a descriptor as long as its thread lives
    const auto backend =
        testing::join_job(std::make_shared<FileStore>(store), part.rank, part.ranks, part.host_id);
    work_until_it_fails(*backend, part, report);
  })
      .join();
  // Where a callback was the last to need the backend, that stops in a thread of its own.
  farspan::testing::eventually([&] { return ProcessCounts::now() == report.before; });
  report.after = ProcessCounts::now();
}

class LostRanks : public ::testing::TestWithParam<std::tuple<int, Arrangement>> {
 protected:
  explicit LostRanks(int ranks = 3, Mix mix = Mix::kMessagesToo) : ranks_(ranks), mix_(mix) {}

  void SetUp() override {
    void* const place = mmap(nullptr, sizeof(Report) * ranks_, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(place, MAP_FAILED);
    reports_ = new (place) Report[ranks_];
  }
  void TearDown() override { munmap(reports_, sizeof(Report) * ranks_); }

  int seed() const { return std::get<0>(GetParam()); }
  const Arrangement& arrangement() const { return std::get<1>(GetParam()); }

  //   left_by  the others go on without this rank
  void start(Millis timeout, int stops = -1, uint64_t before = kNever, int left_by = -1) {
    for (int rank = 0; rank < ranks_; ++rank) {
      const pid_t pid = fork();
      ASSERT_GE(pid, 0);
      if (pid == 0) {
        take_part(folder_.file("store"),
                  {rank, ranks_, arrangement().host_of(rank), timeout,
                   rank == stops ? before : kNever, left_by, mix_},
                  reports_[rank]);
        _exit(has_leaks() ? 1 : 0);
      }
      pids_.push_back(pid);
    }
    for (int rank = 0; rank < ranks_; ++rank) {
      const Report& report = reports_[rank];
      while (!report.running && report.code == 0) std::this_thread::sleep_for(1ms);
      ASSERT_TRUE(report.running) << report.what;
    }
  }

  // Waits for the end of all but the victim, and returns how long the last one took to notice.
  Clock::duration survivors_end(int victim, TimePoint lost) {
    Clock::duration longest{0};
    for (int rank = 0; rank < ranks_; ++rank) {
      if (rank == victim) continue;
      int status = 0;
      EXPECT_EQ(waitpid(pids_[static_cast<size_t>(rank)], &status, 0),
                pids_[static_cast<size_t>(rank)]);
      EXPECT_EQ(status, 0);
      EXPECT_EQ(reports_[rank].after, reports_[rank].before);
      EXPECT_LT(Clock::duration(reports_[rank].abort_took), 1s);  // the deadlines are longer
      const TimePoint noticed{Clock::duration(reports_[rank].failed_at)};
      longest = std::max(longest, noticed - lost);
    }
    return longest;
  }

  // Kills it at a random moment, which it returns. Expects that the others notice in time.
  TimePoint lose(int victim) {
    std::mt19937 random(static_cast<unsigned>(seed()));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 120'000));
    const TimePoint lost = Clock::now();
    kill(pids_[static_cast<size_t>(victim)], SIGKILL);
    EXPECT_LT(survivors_end(victim, lost), 2s);
    waitpid(pids_[static_cast<size_t>(victim)], nullptr, 0);
    for (int rank = 0; rank < ranks_; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(static_cast<Code>(reports_[rank].code.load()), Code::kDisconnected);
    }
    return lost;
  }

  // Expect: when it goes on it is told, too.
  void resume(int victim) {
    const pid_t pid = pids_[static_cast<size_t>(victim)];
    kill(pid, SIGCONT);
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
    EXPECT_NE(reports_[victim].code.load(), 0);
  }

  const int ranks_;
  const Mix mix_;
  const farspan::testing::TemporaryFolder folder_;
  Report* reports_ = nullptr;
  std::vector<pid_t> pids_;
};

class KilledRanks : public LostRanks {};
TEST_P(KilledRanks, EndTheOthersCollectives) {
  start(60s);
  const int victim = seed() % ranks_;
  lose(victim);
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == victim) continue;
    EXPECT_THAT(reports_[rank].what, HasSubstr("rank " + std::to_string(victim) + " ("));
    EXPECT_THAT(reports_[rank].what, HasSubstr("is gone"));
  }
}

// So many that two that are left may share a host, and have another on a different one.
class Survivors : public LostRanks {
 protected:
  Survivors() : LostRanks(4) {}
};
TEST_P(Survivors, OfAKilledRankMakeAGroupOfTheirOwn) {
  const int victim = seed() % ranks_;
  start(60s, -1, kNever, victim);
  const TimePoint lost = lose(victim);
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == victim) continue;
    ASSERT_NE(reports_[rank].went_on_at.load(), 0) << "rank " << rank;
    EXPECT_LT(TimePoint(Clock::duration(reports_[rank].went_on_at)) - lost, 4s);
  }
}

// So many that one waits for another that waits for the victim, within a host and between hosts.
// Who receives a message knows only of its sender, so there are none.
class StoppedRanks : public LostRanks {
 protected:
  StoppedRanks() : LostRanks(4, Mix::kCollectives) {}

  std::string process_of(int rank) const {
    return "rank " + std::to_string(rank) +
           " .[^ ]+:" + std::to_string(pids_[static_cast<size_t>(rank)]) + ".";
  }
};
TEST_P(StoppedRanks, AreNamedByAllAtTheDeadlineWhereverTheyStop) {
  std::mt19937 random(static_cast<unsigned>(seed()));
  constexpr Millis kTimeout{3'000};
  start(kTimeout);
  const int victim = (seed() + 1) % ranks_;
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 120'000));
  kill(pids_[static_cast<size_t>(victim)], SIGSTOP);
  const TimePoint lost = Clock::now();
  const auto longest = survivors_end(victim, lost);
  EXPECT_GT(longest, kTimeout / 2);
  EXPECT_LT(longest, kTimeout + 2s);
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == victim) continue;
    EXPECT_EQ(static_cast<Code>(reports_[rank].code.load()), Code::kTimeout);
    EXPECT_THAT(reports_[rank].what, ContainsRegex(": " + process_of(victim) + " had"));
  }
  resume(victim);
}

TEST_P(StoppedRanks, HaveNotCalledWhatTheyStopBefore) {
  constexpr Millis kTimeout{3'000};
  const int victim = (seed() + 1) % ranks_;
  start(kTimeout, victim, 36 + static_cast<uint64_t>(seed()) * 7 % 20);
  survivors_end(victim, Clock::now());
  Clock::duration longest{0};
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == victim) continue;
    const Report& report = reports_[rank];
    EXPECT_EQ(static_cast<Code>(report.code.load()), Code::kTimeout);
    EXPECT_THAT(report.what, ContainsRegex(": " + process_of(victim) + " had not called it"));
    longest = std::max(longest, Clock::duration(report.failed_at - report.called_at));
  }
  EXPECT_GE(longest, kTimeout);
  EXPECT_LT(longest, kTimeout + 2s);
  resume(victim);
}

std::string name_of_case(const ::testing::TestParamInfo<std::tuple<int, Arrangement>>& one) {
  return std::get<1>(one.param).name + std::to_string(std::get<0>(one.param));
}
INSTANTIATE_TEST_SUITE_P(Each, KilledRanks,
                         ::testing::Combine(::testing::Range(0, times(6)),
                                            ::testing::ValuesIn(kArrangements)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Each, Survivors,
                         ::testing::Combine(::testing::Range(0, times(4)),  // each is a victim
                                            ::testing::ValuesIn(kArrangements)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(Each, StoppedRanks,
                         ::testing::Combine(::testing::Range(0, times(2)),
                                            ::testing::ValuesIn(kArrangements)),
                         name_of_case);

}  // namespace
}  // namespace farspan::dist
