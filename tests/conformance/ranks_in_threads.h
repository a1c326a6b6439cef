// Ranks on threads of this process: of the fake backend, and of cpu as if on one host or several.
#pragma once

#include <farspan/c10d/backends/fake/fake.h>
#include <farspan/c10d/store/hash_store.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "c10d/backends/cpu_job.h"
#include "conformance/collective_suite.h"

namespace farspan::testing {

using Body = std::function<void(int rank)>;

struct Place {
  std::string host_id;
  std::string address = "127.0.0.1";
};

inline dist::Group make_cpu_group(const std::shared_ptr<dist::Store>& store, int rank, int ranks,
                                  Millis timeout, const Place& place) {
  auto backend = dist::testing::join_job(store, rank, ranks, place.host_id, place.address);
  return std::make_shared<dist::ProcessGroup>(dist::testing::whole_job(rank, ranks), rank,
                                              std::move(backend), timeout);
}

// Nobody leaves before all have ended: who leaves is gone for those that need it still.
inline void run_and_wait_for_the_others(int rank, int ranks, const Body& body, dist::Store& store) {
  try {
    body(rank);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << rank << ": " << error.what();
  }
  store.add("ended", 1);
  while (store.add("ended", 0) < ranks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

inline void run_fake(int ranks, Millis timeout, const Body& body) {
  dist::HashStore store;
  dist::fake::run_ranks(
      ranks, [&](int rank, int) { run_and_wait_for_the_others(rank, ranks, body, store); },
      timeout);
}

inline void run_cpu_rank(const std::shared_ptr<dist::Store>& store, int rank, int ranks,
                         Millis timeout, const Body& body, const Place& place) {
  try {
    const dist::CurrentGroup current(make_cpu_group(store, rank, ranks, timeout, place));
    run_and_wait_for_the_others(rank, ranks, body, *store);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << rank << ": " << error.what();
  }
}

inline RunRanks cpu_in_threads(const dist::testing::HostOf& host_of) {
  return [host_of](int ranks, Millis timeout, const Body& body) {
    const auto store = std::make_shared<dist::HashStore>();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back(
          [&, rank] { run_cpu_rank(store, rank, ranks, timeout, body, {host_of(rank)}); });
    }
    for (std::thread& thread : threads) thread.join();
  };
}

}  // namespace farspan::testing
