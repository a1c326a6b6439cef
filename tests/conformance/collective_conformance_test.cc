// Every backend, with each rank on a thread of this process, and cpu between processes, too.
#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <unistd.h>

#include <farspan/c10d/backends/fake/fake.h>
#include <farspan/c10d/store/file_store.h>
#include <farspan/c10d/store/hash_store.h>

#include <algorithm>
#include <thread>

#include "c10d/backends/cpu_job.h"
#include "c10d/store/temporary_folder.h"
#include "conformance/collective_suite.h"

namespace farspan::testing {
namespace {

using Body = std::function<void(int rank)>;

dist::Group make_cpu_group(const std::shared_ptr<dist::Store>& store, int rank, int ranks,
                           Millis timeout, const std::string& host_id) {
  auto backend = dist::testing::join_job(store, rank, ranks, host_id);
  return std::make_shared<dist::ProcessGroup>(dist::testing::whole_job(rank, ranks), rank,
                                              std::move(backend), timeout);
}

// Nobody leaves before all have ended: who leaves is gone for those that need it still.
void run_and_wait_for_the_others(int rank, int ranks, const Body& body, dist::Store& store) {
  try {
    body(rank);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << rank << ": " << error.what();
  }
  store.add("ended", 1);
  while (store.add("ended", 0) < ranks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void run_fake(int ranks, Millis timeout, const Body& body) {
  dist::HashStore store;
  dist::fake::run_ranks(
      ranks, [&](int rank, int) { run_and_wait_for_the_others(rank, ranks, body, store); },
      timeout);
}

void run_cpu_rank(const std::shared_ptr<dist::Store>& store, int rank, int ranks, Millis timeout,
                  const Body& body, const std::string& host_id) {
  try {
    const dist::CurrentGroup current(make_cpu_group(store, rank, ranks, timeout, host_id));
    run_and_wait_for_the_others(rank, ranks, body, *store);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << rank << ": " << error.what();
  }
}

RunRanks cpu_in_threads(const dist::testing::HostOf& host_of) {
  return [host_of](int ranks, Millis timeout, const Body& body) {
    const auto store = std::make_shared<dist::HashStore>();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back(
          [&, rank] { run_cpu_rank(store, rank, ranks, timeout, body, host_of(rank)); });
    }
    for (std::thread& thread : threads) thread.join();
  };
}

// Copies of this process, which has no threads then; LibTorch runs single-threaded here.
void run_cpu_in_processes(int ranks, Millis timeout, const Body& body) {
  const TemporaryFolder folder;
  std::vector<pid_t> pids;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      run_cpu_rank(std::make_shared<dist::FileStore>(folder.file("store")), rank, ranks, timeout,
                   body, "");
      std::fflush(stdout);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    pids.push_back(pid);
  }
  for (const pid_t pid : pids) {
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_EQ(status, 0) << "a rank failed";
  }
}

// Within a host the ranks share a room. See c10d/backends/cpu/segment.h.
Chunk room(int ranks) {
  const int64_t part = int64_t{32} << 10, block = std::max(int64_t{128} << 10, ranks * part);
  const int64_t share = block / ranks / 64 * 64;
  return {block, share, share};
}
constexpr int64_t kPiece = 65'536;  // what goes from host to host; less than it would be
Chunk piece(int) { return {kPiece, kPiece, kPiece}; }

INSTANTIATE_TEST_SUITE_P(
    Each, CollectiveSuite,
    ::testing::Values(BackendKind{"Fake", run_fake, room, false},
                      BackendKind{"CpuInThreads", cpu_in_threads(dist::testing::one_host), room},
                      BackendKind{"CpuHosts", cpu_in_threads(dist::testing::own_host), piece},
                      BackendKind{"CpuMixed", cpu_in_threads(dist::testing::mixed_hosts), room},
                      BackendKind{"CpuInProcesses", run_cpu_in_processes, room}),
    [](const auto& kind) { return kind.param.name; });

// LibTorch's own threads would not survive a fork. And between hosts what is large begins early.
const bool is_set_up = [] {
  at::set_num_threads(1);
  setenv("FARSPAN_CPU_PIECE_BYTES", std::to_string(kPiece).c_str(), 1);
  setenv("FARSPAN_CPU_STRIPE_BYTES", "200000", 1);
  return true;
}();

}  // namespace
}  // namespace farspan::testing
