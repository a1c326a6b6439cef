#include <farspan/c10d/backends/nccl/cuda/library.h>
#include <farspan/rpc/device/accelerator.h>

#include "conformance/nccl_in_threads.h"
#include "support/eventually.h"

namespace farspan::testing {

void run_nccl_behind(const Between& between, int ranks, Millis timeout, const Body& body) {
  run_on_nccl(dist::nccl::make_nccl_library(registered_accelerator()->devices), ranks, timeout,
              body, between);
  // Communicators that were aborted end by themselves.
  EXPECT_TRUE(eventually([] { return accelerator_use() == AcceleratorUse(); }));
}

}  // namespace farspan::testing
