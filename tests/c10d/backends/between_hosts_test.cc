// The rule under test: c10d/backends/README.md, "Hosts", bytes sent: a block goes to each other
// host once, however many of its ranks want it. The ranks are of this process, where the system
// counts what comes to all of them.
#include <gtest/gtest.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "c10d/backends/cpu_job.h"

namespace farspan::dist {
namespace {

using Bytes = std::vector<std::byte>;
using Job = std::vector<std::shared_ptr<Backend>>;

constexpr int kRanks = 8, kHosts = 3;  // of three, three and two ranks
constexpr uint64_t kBlock = 100'000;   // more than all letters together

std::string host_of(int rank) { return "host" + std::to_string(rank % kHosts); }

// By TCP, over the connections that there are, each once however many descriptors it has.
uint64_t bytes_received() {
  std::vector<int> descriptors;
  for (const auto& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    descriptors.push_back(std::stoi(one.path().filename()));
  }
  std::set<ino_t> seen;
  uint64_t bytes = 0;
  for (const int descriptor : descriptors) {
    tcp_info info{};
    socklen_t size = sizeof info;
    struct stat socket {};
    if (getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    if (fstat(descriptor, &socket) != 0 || !seen.insert(socket.st_ino).second) continue;
    bytes += info.tcpi_bytes_received;
  }
  return bytes;
}

Call call_of(Op op, uint64_t sequence, int root = -1) {
  Call call;
  call.signature.op = op;
  call.signature.sequence = sequence;
  call.signature.root = root;
  call.type = DType::UINT8;
  call.signature.type = static_cast<uint8_t>(call.type);
  call.signature.count = op == Op::kBarrier ? 0 : kBlock;
  call.deadline = Deadline::after(std::chrono::seconds(60));
  return call;
}

Bytes bytes_of(int rank) { return Bytes(kBlock, static_cast<std::byte>(rank + 1)); }

struct Way {
  const char* name;
  const char* small;  // up to so many bytes small blocks have a way of their own
};

class BetweenHosts : public ::testing::TestWithParam<Way> {
 protected:
  // All ranks have met, so lines between the hosts are there.
  BetweenHosts() {
    for (const char* const one : kVariables) setenv(one, GetParam().small, 1);
    job_ = testing::make_job(kRanks, host_of);
    for (const char* const one : kVariables) unsetenv(one);
    on_each([](Backend& backend, int) { backend.barrier(call_of(Op::kBarrier, 1)); });
  }

  void on_each(const std::function<void(Backend& backend, int rank)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] { body(*job_[static_cast<size_t>(rank)], rank); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  // Expects that a collective brings so many blocks from one host to another, in all.
  void expect_blocks(uint64_t blocks, const std::function<void(Backend& backend, int rank)>& body) {
    const uint64_t before = bytes_received();
    on_each(body);
    const uint64_t bytes = bytes_received() - before;
    EXPECT_GE(bytes, blocks * kBlock);
    EXPECT_LT(bytes, (blocks + 1) * kBlock);
  }

 private:
  static constexpr const char* kVariables[] = {"FARSPAN_CPU_HOSTS_SMALL_BYTES",
                                               "FARSPAN_CPU_TREE_BYTES"};
  Job job_;
};
INSTANTIATE_TEST_SUITE_P(Each, BetweenHosts,
                         ::testing::Values(Way{"Small", "1000000"}, Way{"Large", "0"}),
                         [](const auto& one) { return std::string(one.param.name); });

TEST_P(BetweenHosts, ABroadcastComesToEachOtherHostOnce) {
  constexpr int kRoot = 5;  // not the first rank of its host
  std::vector<Bytes> data;
  for (int rank = 0; rank < kRanks; ++rank) data.push_back(bytes_of(rank));
  expect_blocks(kHosts - 1, [&](Backend& backend, int rank) {
    backend.broadcast(call_of(Op::kBroadcast, 2, kRoot),
                      testing::block_of(data[static_cast<size_t>(rank)]));
  });
  for (const Bytes& one : data) EXPECT_TRUE(one == bytes_of(kRoot));
}

TEST_P(BetweenHosts, EachBlockOfAnAllGatherComesToEachOtherHostOnce) {
  std::vector<std::vector<Bytes>> all(kRanks, std::vector<Bytes>(kRanks, Bytes(kBlock)));
  expect_blocks(kRanks * (kHosts - 1), [&](Backend& backend, int rank) {
    Bytes own = bytes_of(rank);
    std::vector<Block> out;
    for (Bytes& one : all[static_cast<size_t>(rank)]) out.push_back(testing::block_of(one));
    backend.all_gather(call_of(Op::kAllGather, 2), testing::block_of(own), out);
  });
  for (const auto& gathered : all) {
    for (int rank = 0; rank < kRanks; ++rank) {
      EXPECT_TRUE(gathered[static_cast<size_t>(rank)] == bytes_of(rank)) << rank;
    }
  }
}

}  // namespace
}  // namespace farspan::dist
