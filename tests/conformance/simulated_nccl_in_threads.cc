#include <farspan/c10d/backends/nccl/simulated/simulated_library.h>
#include <farspan/rpc/device/accelerator.h>

#include "conformance/nccl_in_threads.h"
#include "support/eventually.h"

namespace farspan::testing {
void run_nccl_behind(const Between& between, int ranks, Millis timeout, const Body& body) {
  const auto library = dist::nccl::make_simulated_library(registered_accelerator()->devices);
  run_on_nccl(library, ranks, timeout, body, between);
  EXPECT_TRUE(eventually([&] { return library->communicators() == 0; }));
  EXPECT_THAT(library->faults(), ::testing::IsEmpty());
}

}  // namespace farspan::testing
