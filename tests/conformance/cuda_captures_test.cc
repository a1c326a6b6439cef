// Devices beside a thread that captures a CUDA graph, as strictly as LibTorch does: none of both
// breaks the other's work. Linked with the cases of all kinds of devices.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include <farspan/c10d/device/cuda/cuda.h>

#include "support/needs_gpu.h"

namespace farspan::testing {
namespace {

using device::Reach;
using std::chrono::seconds;

// Another thread captures a graph of device 0, until this goes.
class ForeignCapture {
 public:
  ForeignCapture() { begun_.get_future().wait(); }
  ~ForeignCapture() {
    ended_.set_value();
    thread_.join();
  }
  ForeignCapture(const ForeignCapture&) = delete;
  ForeignCapture& operator=(const ForeignCapture&) = delete;

 private:
  void capture() {
    cudaStream_t stream = nullptr;
    EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    begun_.set_value();
    ended_.get_future().wait();
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess) << "it was broken";
    if (graph) cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
  }

  std::promise<void> begun_, ended_;
  std::thread thread_{[this] { capture(); }};
};

TEST(CudaDevices, AreUsedWhileAnotherThreadCapturesAGraph) {
  if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  const auto devices = device::make_cuda_devices();
  const ForeignCapture capture;
  constexpr size_t kBytes = 1000;
  const device::Stream stream = devices->new_stream(0);
  void* const memory = devices->allocate(0, kBytes);
  void* const host = devices->allocate_host(kBytes);
  const device::Event event = devices->new_event(0, Reach::kThisHost);
  devices->copy(stream, memory, host, kBytes);
  devices->record(event, stream);
  devices->wait(stream, event);
  EXPECT_TRUE(devices->synchronize(stream, Deadline::after(seconds(20))));
  EXPECT_TRUE(devices->has_come(event));
  devices->name_memory(devices->region_of(memory).base);
  devices->name_event(event);
  devices->end_event(event);
  devices->release_host(host);
  devices->release(memory);
  devices->end_stream(stream);
}

}  // namespace
}  // namespace farspan::testing
