// The nccl backend, with each rank on a thread of this process and a device of its own: the
// suite's tensors are the processor's, and go by their devices (moved_to_devices.h).
#include <ATen/Parallel.h>

#include <cstdlib>
#include <memory>

#include <farspan/rpc/device/accelerator.h>

#include "conformance/moved_to_devices.h"
#include "conformance/nccl_in_threads.h"

namespace farspan::testing {
namespace {

void run_moved(int ranks, Millis timeout, const Body& body) {
  const auto devices = registered_accelerator()->devices;
  const auto move = [&](int rank, std::shared_ptr<dist::Backend> backend) {
    return std::make_shared<MovedToDevices>(std::move(backend),
                                            std::make_shared<CopyDevice>(*devices, rank));
  };
  run_nccl_behind(move, ranks, timeout, body);
  expect_idle_devices();
}

BackendKind nccl() {
  BackendKind kind{"Nccl", run_moved, [](int) {
                     return Chunk{1 << 16, 1 << 16, 1 << 16};  // as good as any: NCCL has its own
                   }};
  kind.keeps_small_messages = false;
  kind.why_not = [] {
    return accelerators() < 8 ? "NCCL needs a device for each rank, of eight" : "";
  };
  return kind;
}
INSTANTIATE_TEST_SUITE_P(Each, CollectiveSuite, ::testing::Values(nccl()),
                         [](const auto& kind) { return kind.param.name; });

const bool is_set_up = [] {
  at::set_num_threads(1);  // there are more ranks than cores
  setenv("FARSPAN_SIMULATED_DEVICES", "0,1,2,3,4,5,6,7", 0);
  return true;
}();

}  // namespace
}  // namespace farspan::testing
