// Every backend, with each rank on a thread of this process, and cpu between processes, too: those
// of one host, or, where tests/support/hosts.py runs this program, of two.
#include <ATen/Parallel.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <farspan/c10d/backends/cpu/segment.h>
#include <farspan/c10d/net/owned_descriptor.h>
#include <farspan/c10d/store/file_store.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "c10d/store/temporary_folder.h"
#include "conformance/collective_suite.h"
#include "conformance/ranks_in_threads.h"

namespace farspan::testing {
namespace {

// The rank's process moves there.
using MoveTo = std::function<Place(int rank)>;
Place stay(int) { return {}; }

// As dist::testing::mixed_hosts() has them.
const char* const kOtherHost = std::getenv("FARSPAN_OTHER_HOST");
Place move_to_one_of_two_hosts(int rank) {
  if (rank % 3 != 1) return {"", "10.77.0.1"};
  const net::OwnedDescriptor other(open(kOtherHost, O_RDONLY | O_CLOEXEC));
  if (setns(other.get(), CLONE_NEWNET) != 0) {
    throw std::system_error(errno, std::system_category(), kOtherHost);
  }
  return {"", "10.77.0.2"};
}

// Copies of this process, which has no threads then; LibTorch runs single-threaded here.
RunRanks cpu_in_processes(const MoveTo& move_to) {
  return [move_to](int ranks, Millis timeout, const Body& body) {
    const TemporaryFolder folder;
    std::vector<pid_t> pids;
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t pid = fork();
      ASSERT_GE(pid, 0);
      if (pid == 0) {
        try {
          const Place place = move_to(rank);
          run_cpu_rank(std::make_shared<dist::FileStore>(folder.file("store")), rank, ranks,
                       timeout, body, place);
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << rank << " does not begin: " << error.what();
        }
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
  };
}

// Within a host the ranks share a room.
Chunk room(int ranks) {
  constexpr auto kRoom = static_cast<int64_t>(dist::cpu::kRoomBytes);
  const int64_t share = kRoom / ranks / 64 * 64;
  return {kRoom, share, share};
}
constexpr int64_t kPiece = 65'536;  // what goes from host to host; less than it would be
Chunk piece(int) { return {kPiece, kPiece, kPiece}; }

std::vector<BackendKind> kinds() {
  using namespace dist::testing;
  if (kOtherHost) {
    return {{"CpuNamespaces", cpu_in_processes(move_to_one_of_two_hosts), room, true, mixed_hosts}};
  }
  std::vector<BackendKind> all = {
      {"Fake", run_fake, room, false},
      {"CpuInThreads", cpu_in_threads(one_host), room},
      {"CpuMixed", cpu_in_threads(mixed_hosts), room, true, mixed_hosts}};
  if (kAddressSanitizer) return all;  // the code of the others is in these
  all.push_back({"CpuHosts", cpu_in_threads(own_host), piece, true, own_host});
  all.push_back({"CpuInProcesses", cpu_in_processes(stay), room});
  return all;
}
INSTANTIATE_TEST_SUITE_P(Each, CollectiveSuite, ::testing::ValuesIn(kinds()),
                         [](const auto& kind) { return kind.param.name; });

// More than the suite's worlds have. Between hosts each two of them have lines, so fewer are tried.
using RanksOnHosts = std::pair<int, dist::testing::HostOf>;
class ManyRanks : public ::testing::TestWithParam<RanksOnHosts> {};
TEST_P(ManyRanks, Agree) {
  const auto& [ranks, host_of] = GetParam();
  cpu_in_threads(host_of)(ranks, Millis(60'000), [ranks = ranks](int rank) {
    const at::Tensor own = at::arange(ranks, at::kLong) + rank * ranks;
    const at::Tensor sum = own.clone(), all = at::empty({ranks, ranks}, at::kLong);
    dist::all_reduce(sum);
    dist::all_gather_into_tensor(all, own);
    EXPECT_TRUE(at::equal(all, at::arange(ranks * ranks, at::kLong).view({ranks, ranks})));
    EXPECT_TRUE(at::equal(sum, all.sum(0)));
    const at::Tensor column = at::empty({ranks}, at::kLong);
    dist::all_to_all_single(column, own);
    EXPECT_TRUE(at::equal(column, all.select(1, rank)));
    dist::barrier();
  });
}
INSTANTIATE_TEST_SUITE_P(Each, ManyRanks,
                         ::testing::Values(RanksOnHosts(16, dist::testing::one_host),
                                           RanksOnHosts(32, dist::testing::one_host),
                                           RanksOnHosts(16, dist::testing::own_host),
                                           RanksOnHosts(16, dist::testing::mixed_hosts)));

// LibTorch's own threads would not survive a fork. And between hosts what is large begins early.
const bool is_set_up = [] {
  rlimit descriptors{};  // many ranks in one process need more than the usual 1024
  getrlimit(RLIMIT_NOFILE, &descriptors);
  descriptors.rlim_cur = descriptors.rlim_max;
  setrlimit(RLIMIT_NOFILE, &descriptors);
  at::set_num_threads(1);
  setenv("FARSPAN_CPU_PIECE_BYTES", std::to_string(kPiece).c_str(), 1);
  setenv("FARSPAN_CPU_STRIPE_BYTES", "200000", 1);
  return true;
}();

}  // namespace
}  // namespace farspan::testing
