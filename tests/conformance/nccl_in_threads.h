// Ranks of the nccl backend on threads of this process, over simulated devices: each must keep to
// one of its own, since on a shared stream a rank would wait for another one behind itself.
#pragma once

#include <farspan/c10d/backends/nccl/nccl.h>
#include <farspan/c10d/backends/nccl/simulated/simulated_library.h>
#include <farspan/rpc/device/accelerator.h>
#include <gmock/gmock.h>

#include <memory>
#include <thread>
#include <vector>

#include "conformance/ranks_in_threads.h"
#include "support/eventually.h"
#include "support/simulated_accelerator.h"

namespace farspan::testing {

// At the end of a test: all is done, nothing is held, and nothing was done that must not be.
inline void expect_idle_devices() {
  settle_simulated_devices();
  const device::SimulatedDevices& devices = simulated_accelerator();
  EXPECT_THAT(devices.faults(), ::testing::IsEmpty());
  for (int device = 0; device < devices.count(); ++device) {
    EXPECT_EQ(devices.allocated(device), 0u);
  }
  EXPECT_EQ(devices.events(), 0u);
}

inline std::shared_ptr<dist::nccl::SimulatedLibrary> simulated_nccl() {
  return dist::nccl::make_simulated_library(registered_accelerator()->devices);
}

// Of one library, which the ranks share.
inline void run_on_nccl(const std::shared_ptr<dist::nccl::SimulatedLibrary>& library, int ranks,
                        Millis timeout, const Body& body) {
  const auto store = std::make_shared<dist::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const dist::GroupSpec spec = dist::testing::whole_job(rank, ranks);
      auto backend =
          dist::nccl::make_nccl_backend(library, dist::testing::join_job(store, rank, ranks), spec);
      const dist::CurrentGroup current(
          std::make_shared<dist::ProcessGroup>(spec, rank, std::move(backend), timeout));
      run_and_wait_for_the_others(rank, ranks, body, *store);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(eventually([&] { return library->communicators() == 0; }));
  EXPECT_THAT(library->faults(), ::testing::IsEmpty());
}
inline void run_nccl(int ranks, Millis timeout, const Body& body) {
  run_on_nccl(simulated_nccl(), ranks, timeout, body);
}

}  // namespace farspan::testing
