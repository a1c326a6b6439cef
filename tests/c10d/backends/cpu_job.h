// The cpu backend's ranks as objects of one process, without LibTorch.
#pragma once

#include <farspan/c10d/backends/cpu/cpu.h>
#include <farspan/c10d/store/hash_store.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace farspan::dist::testing {

// The default group, as this rank has it.
inline GroupSpec whole_job(int rank, int ranks) {
  GroupSpec spec;
  spec.name = "world";
  spec.rank = rank;
  for (int one = 0; one < ranks; ++one) spec.ranks.push_back(one);
  return spec;
}

//   host_id    those with different ones exchange bytes over TCP, as if they were on several hosts
//   bind_host  this host's address for the others
inline std::shared_ptr<Backend> join_job(std::shared_ptr<Store> store, int rank, int ranks,
                                         const std::string& host_id = {},
                                         const std::string& bind_host = "127.0.0.1") {
  BackendContext context;
  context.bind_host = bind_host;
  context.host_id = host_id;
  context.store = std::move(store);
  context.group = whole_job(rank, ranks);
  context.deadline = Deadline::after(std::chrono::seconds(60));
  return cpu::make_cpu_backend(context);
}

using HostOf = std::function<std::string(int rank)>;
inline std::string one_host(int) { return ""; }
inline std::string own_host(int rank) { return "host" + std::to_string(rank); }
// Two, with different numbers of ranks, which do not lie one after the other.
inline std::string mixed_hosts(int rank) { return rank % 3 == 1 ? "odd" : "even"; }

// The ranks of each host, and the hosts in the order of their first ranks: that of additions, see
// c10d/backends/README.md, "Hosts".
inline std::vector<std::vector<int>> ranks_by_host(int ranks, const HostOf& host_of) {
  std::vector<std::vector<int>> hosts;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto is_here = [&](const auto& host) { return host_of(host[0]) == host_of(rank); };
    const auto found = std::find_if(hosts.begin(), hosts.end(), is_here);
    if (found == hosts.end()) {
      hosts.push_back({rank});
    } else {
      found->push_back(rank);
    }
  }
  return hosts;
}

// All ranks of a job.
inline std::vector<std::shared_ptr<Backend>> make_job(int ranks, const HostOf& host_of = one_host) {
  const auto store = std::make_shared<HashStore>();
  std::vector<std::shared_ptr<Backend>> job(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      job[static_cast<size_t>(rank)] = join_job(store, rank, ranks, host_of(rank));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return job;
}

// Bytes to send, and to receive.
inline Block block_of(std::vector<std::byte>& bytes) { return {bytes.data(), bytes.size()}; }

inline Message message(int peer, int tag = 0, Millis timeout = std::chrono::seconds(60)) {
  Message message;
  message.peer = peer;
  message.tag = tag;
  message.type = DType::UINT8;
  message.deadline = Deadline::after(timeout);
  return message;
}

}  // namespace farspan::dist::testing
