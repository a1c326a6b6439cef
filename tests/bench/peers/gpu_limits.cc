// What the machine itself allows on one GPU: the same bytes without any framework.
//
//   gpu_limits --in-one-process   cudaMemcpyAsync from one place of the GPU to another; and for the
//                                 small call of the processor a word in shared memory there and
//                                 back
//   gpu_limits --by-name          the same where another process copies, from memory that it has
//                                 opened once, with such a word there and back
//
// Both until the copy is done.
#include <cuda_runtime_api.h>
#include <signal.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>

#include "bench/figures.h"
#include "bench/gpu.h"
#include "bench/peers/child.h"
#include "bench/peers/shared_words.h"

namespace bench {
namespace {

constexpr size_t kMost = kGpuTensorSizes.back().bytes;
constexpr size_t kSmallCalls = 20'000;

void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

// Memory of the GPU, which ends with the process.
void* gpu_memory() {
  void* memory = nullptr;
  require(cudaMalloc(&memory, kMost), "cudaMalloc");
  require(cudaMemset(memory, 1, kMost), "cudaMemset");
  require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return memory;
}

class Copier {
 public:
  Copier() {
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  void copy(const void* from, size_t bytes) const {
    require(cudaMemcpyAsync(to_, from, bytes, cudaMemcpyDeviceToDevice, stream_),
            "cudaMemcpyAsync");
    require(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

 private:
  cudaStream_t stream_ = nullptr;
  void* const to_ = gpu_memory();
};

template <class Copy>
void report_copies(const Copy& copy) {
  for (const TensorSize& size : kGpuTensorSizes) {
    const auto call = [&] { copy(size.bytes); };
    times_of(3, call);
    report_gpu_tensor(size, times_of(size.calls, call));
  }
}

void report_small_call() {
  SharedWords words;
  const Child child([&] { words.serve([] {}); });
  report("small CPU call p50", median(times_of(kSmallCalls, [&] { words.there_and_back(); })),
         "us");
}

void report_in_one_process() {
  report_small_call();  // before this process has a GPU, which no fork() survives
  const void* const from = gpu_memory();
  const Copier copier;
  report_copies([&](size_t bytes) { copier.copy(from, bytes); });
}

void report_by_name() {
  struct Order {
    cudaIpcMemHandle_t name;
    size_t bytes;
  };
  const Shared<Order> order;
  SharedWords words;
  signal(SIGCHLD, [](int) { _exit(1); });  // it has said why it ended; nobody would take turns
  const Child child([&] {  // for the same reason begun first; its first turn: the name is there
    void* from = nullptr;
    const Copier* copier = nullptr;
    words.serve([&] {
      if (!copier) {
        require(cudaIpcOpenMemHandle(&from, (*order).name, cudaIpcMemLazyEnablePeerAccess),
                "cudaIpcOpenMemHandle");
        copier = new Copier;  // as the memory, until the process is killed
      } else {
        copier->copy(from, (*order).bytes);
      }
    });
  });
  require(cudaIpcGetMemHandle(&(*order).name, gpu_memory()), "cudaIpcGetMemHandle");
  words.there_and_back();
  report_copies([&](size_t bytes) {
    (*order).bytes = bytes;
    words.there_and_back();
  });
  signal(SIGCHLD, SIG_DFL);
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  const bool in_one = argc == 2 && std::strcmp(argv[1], "--in-one-process") == 0;
  const bool by_name = argc == 2 && std::strcmp(argv[1], "--by-name") == 0;
  if (!in_one && !by_name) {
    std::fprintf(stderr, "usage: gpu_limits --in-one-process|--by-name\n");
    return 2;
  }
  bench::require_gpu("gpu_limits");
  in_one ? bench::report_in_one_process() : bench::report_by_name();
}
