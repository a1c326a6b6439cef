#include <farspan/c10d/backends/nccl/simulated/simulated_library.h>
#include <farspan/rpc/device/accelerator.h>

#include <atomic>

#include "conformance/nccl_in_threads.h"
#include "support/eventually.h"

namespace farspan::testing {
namespace {

// Of the run that is under way.
std::atomic<dist::nccl::SimulatedLibrary*> current{nullptr};

}  // namespace

void run_nccl_behind(const Between& between, int ranks, Millis timeout, const Body& body) {
  const auto library = dist::nccl::make_simulated_library(registered_accelerator()->devices);
  current = library.get();
  run_on_nccl(library, ranks, timeout, body, between);
  EXPECT_TRUE(eventually([&] { return library->communicators() == 0; }));
  EXPECT_THAT(library->faults(), ::testing::IsEmpty());
  current = nullptr;
}

// For all ranks, until the first of them ends it.
void CapturedStream::begin(at::Device) { current.load()->set_capturing(true); }
void CapturedStream::end(at::Device) { current.load()->set_capturing(false); }

}  // namespace farspan::testing
