// Ranks of the nccl backend on threads of this process, by a simulated NCCL on simulated devices or
// by NCCL on GPUs: each must keep to one of its own, since on a shared stream a rank would wait for
// another one behind itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>

#include <farspan/c10d/backends/nccl/library.h>
#include <farspan/c10d/backends/nccl/nccl.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "conformance/ranks_in_threads.h"
#include "support/accelerator.h"

namespace farspan::testing {

// At the end of a test: all is done, nothing is held, and nothing was done that must not be.
inline void expect_idle_devices() {
  settle_accelerator();
  EXPECT_EQ(accelerator_use(), AcceleratorUse());
}

// What stands between a rank's group and its backend.
using Between =
    std::function<std::shared_ptr<dist::Backend>(int rank, std::shared_ptr<dist::Backend> backend)>;

// Of one library, which the ranks share.
inline void run_on_nccl(const std::shared_ptr<dist::nccl::Library>& library, int ranks,
                        Millis timeout, const Body& body, const Between& between) {
  const auto store = std::make_shared<dist::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const dist::GroupSpec spec = dist::testing::whole_job(rank, ranks);
      auto backend = between(rank, dist::nccl::make_nccl_backend(
                                       library, dist::testing::join_job(store, rank, ranks), spec));
      const dist::CurrentGroup current(
          std::make_shared<dist::ProcessGroup>(spec, rank, std::move(backend), timeout));
      run_and_wait_for_the_others(rank, ranks, body, *store);
    });
  }
  for (std::thread& thread : threads) thread.join();
}
// Of the library that the program is linked with. At the end it holds nothing.
void run_nccl_behind(const Between& between, int ranks, Millis timeout, const Body& body);
inline void run_nccl(int ranks, Millis timeout, const Body& body) {
  run_nccl_behind([](int, auto backend) { return backend; }, ranks, timeout, body);
}

}  // namespace farspan::testing
