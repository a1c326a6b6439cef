// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What all programs of `./dev bench gpu` have in common: which tensors, how their figures are
// called, and that they say so where there is no GPU. The CUDA runtime only.
#pragma once

#include <cuda_runtime_api.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/figures.h"

namespace bench {

// The status of a program that measures nothing since there is no GPU; `run` knows it, too.
inline constexpr int kNoGpu = 77;

// Ends this program where it may use no GPU, with the driver's words. Another process looks: the
// driver does not survive the fork() that may follow.
inline void require_gpu(const char* program) {
  const pid_t looks = fork();
  if (looks == 0) {
    int count = 0, driver = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) _exit(0);
    cudaDriverGetVersion(&driver);  // 0: there is none, of which the error speaks as of an old one
    std::fprintf(stderr, "%s: there is no GPU that it can use (%s)\n", program,
                 driver == 0            ? "no driver is installed"
                 : error == cudaSuccess ? "none is visible"
                                        : cudaGetErrorString(error));
    _exit(kNoGpu);
  }
  int status = 0;
  if (looks < 0 || waitpid(looks, &status, 0) != looks) {
    std::perror(program);
    std::exit(1);
  }
  if (status != 0) std::exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

inline constexpr std::array<TensorSize, 8> kGpuTensorSizes{{{"4 KiB", 4UL << 10, 2000},
                                                            {"64 KiB", 64UL << 10, 2000},
                                                            {"1 MiB", 1UL << 20, 1000},
                                                            {"16 MiB", 16UL << 20, 200},
                                                            {"64 MiB", 64UL << 20, 60},
                                                            {"256 MiB", 256UL << 20, 20},
                                                            {"512 MiB", 512UL << 20, 12},
                                                            {"1 GiB", 1024UL << 20, 10}}};

// Both of the median: "CUDA tensor 4 KiB" in gigabytes (10^9 bytes) per second, and what it takes.
inline void report_gpu_tensor(const TensorSize& size, const std::vector<double>& microseconds) {
  const double time = median(microseconds);
  report(std::string("CUDA tensor ") + size.name, static_cast<double>(size.bytes) / time / 1e3,
         "GB/s");
  report(std::string("time of CUDA tensor ") + size.name, time, "us");
}

}  // namespace bench
