#include <cuda_runtime_api.h>

#include <farspan/c10d/backends/nccl/cuda/library.h>
#include <farspan/rpc/device/accelerator.h>
#include <farspan/rpc/device/streams.h>

#include "conformance/nccl_in_threads.h"
#include "support/eventually.h"

namespace farspan::testing {

void run_nccl_behind(const Between& between, int ranks, Millis timeout, const Body& body) {
  run_on_nccl(dist::nccl::make_nccl_library(registered_accelerator()->devices), ranks, timeout,
              body, between);
  // Communicators that were aborted end by themselves.
  EXPECT_TRUE(eventually([] { return accelerator_use() == AcceleratorUse(); }));
}

void CapturedStream::begin(at::Device device) {
  const auto stream = static_cast<cudaStream_t>(current_stream(device).handle);
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), cudaSuccess);
}

void CapturedStream::end(at::Device device) {
  const auto stream = static_cast<cudaStream_t>(current_stream(device).handle);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphDestroy(graph);
}

}  // namespace farspan::testing
