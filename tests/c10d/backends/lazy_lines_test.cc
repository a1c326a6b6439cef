// The rules under test: c10d/backends/README.md, "Messages": a rank that sends dials, and nobody
// else; and over how many connections.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "c10d/backends/cpu_job.h"
#include "support/eventually.h"
#include "support/process_counts.h"

namespace farspan::dist {
namespace {

using farspan::testing::eventually;
using farspan::testing::ProcessCounts;
using testing::block_of;
using testing::message;

constexpr int kRanks = 8;

// The ends of connections that this process has, each once however many descriptors it has.
int connected() {
  std::vector<int> descriptors;
  for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    descriptors.push_back(std::stoi(one.path().filename()));
  }
  std::set<ino_t> ends;
  for (const int descriptor : descriptors) {
    sockaddr_storage other{};
    socklen_t size = sizeof other;
    struct stat socket {};
    if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&other), &size) == 0 &&
        fstat(descriptor, &socket) == 0) {
      ends.insert(socket.st_ino);
    }
  }
  return static_cast<int>(ends.size());
}

struct Hosts {
  const char* name;
  testing::HostOf host_of;
};

class LazyLines : public ::testing::TestWithParam<Hosts> {
 protected:
  using Job = std::vector<std::shared_ptr<Backend>>;

  static Job make_job() { return testing::make_job(kRanks, GetParam().host_of); }

  // In a thread of its own, for who waits has a descriptor as long as its thread lives.
  static void send(const Job& job, int from, int to, size_t size = 100) {
    std::thread([&] {
      std::vector<std::byte> bytes(size), got(size);
      const auto sent = job[static_cast<size_t>(from)]->send(message(to), block_of(bytes));
      job[static_cast<size_t>(to)]->recv(message(from), block_of(got)).wait();
      sent.wait();
    }).join();
  }
};
INSTANTIATE_TEST_SUITE_P(Each, LazyLines,
                         ::testing::Values(Hosts{"OneHost", testing::one_host},
                                           Hosts{"OwnHosts", testing::own_host}),
                         [](const auto& one) { return std::string(one.param.name); });

TEST_P(LazyLines, JoiningAndMakingGroupsConnectsNobody) {
  const int before = connected();
  const Job job = make_job();
  EXPECT_EQ(connected(), before);
  const ProcessCounts joined = ProcessCounts::now();
  Job half;
  for (int rank = 0; rank < kRanks; rank += 2) {
    GroupSpec spec;
    spec.name = "half";
    spec.ranks = {0, 2, 4, 6};
    spec.rank = rank / 2;
    half.push_back(job[static_cast<size_t>(rank)]->subgroup(spec));
  }
  EXPECT_EQ(ProcessCounts::now(), joined);
}

TEST_P(LazyLines, AMessageConnectsItsTwoRanksAlone) {
  const Job job = make_job();
  const int before = connected();
  const int descriptors = ProcessCounts::now().descriptors;
  const auto expect_lines = [&](int lines) {  // each has both its ends in this process
    EXPECT_TRUE(eventually([&] { return connected() == before + 2 * lines; })) << connected();
    // Each end has a descriptor to read and one to write; one of memory has its socket besides.
    const int of_each = GetParam().host_of(0).empty() ? 6 : 4;
    EXPECT_TRUE(eventually([&] {
      return ProcessCounts::now().descriptors == descriptors + of_each * lines;
    })) << ProcessCounts::now()
        << ", and before " << descriptors;
  };
  send(job, 0, 1);
  expect_lines(1);
  send(job, 0, 1);
  expect_lines(1);
  send(job, 1, 0);
  expect_lines(2);
  for (int rank = 0; rank < kRanks; ++rank) send(job, rank, (rank + 1) % kRanks);
  expect_lines(kRanks + 1);
}

TEST_P(LazyLines, ALargeMessageToAnotherHostTakesSeveralAndOthersTakeOne) {
  constexpr size_t kStripe = 100'000;
  setenv("FARSPAN_CPU_STRIPE_BYTES", std::to_string(kStripe).c_str(), 1);
  setenv("FARSPAN_CPU_STRIPES", "3", 1);
  const Job job = make_job();
  unsetenv("FARSPAN_CPU_STRIPE_BYTES");
  unsetenv("FARSPAN_CPU_STRIPES");
  const int before = connected();
  const auto expect_lines = [&](int lines) {
    EXPECT_TRUE(eventually([&] { return connected() == before + 2 * lines; })) << connected();
  };
  const bool is_far = GetParam().host_of(0) != GetParam().host_of(1);
  send(job, 0, 1, kStripe - 1);
  expect_lines(1);
  for (int round = 0; round < 2; ++round) {  // the second one finds them
    send(job, 0, 1, kStripe);
    expect_lines(is_far ? 3 : 1);
  }
}

}  // namespace
}  // namespace farspan::dist
