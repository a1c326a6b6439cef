// For tests that need a GPU.
#pragma once

#include <cstdlib>
#include <stdexcept>
#include <string>

#include <farspan/c10d/device/cuda/cuda.h>

namespace farspan::testing {

// Why there is none here, and the test is to be skipped; empty: there is one.
//   throws  std::runtime_error: FARSPAN_NEED_GPU is set, so that it must fail
inline std::string why_no_gpu() {
  const std::string why = device::why_no_cuda_devices();
  if (why.empty() || !std::getenv("FARSPAN_NEED_GPU")) return why;
  throw std::runtime_error("no GPU, and FARSPAN_NEED_GPU is set: " + why);
}

}  // namespace farspan::testing
