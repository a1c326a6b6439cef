#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

// The rule under test: c10d/FindLibTorch.cmake, farspan::torch_cuda. Whoever links it has
// LibTorch's CUDA half loaded and registered, on a machine without a GPU too.
TEST(TorchCuda, IsLoadedWhereItIsLinked) {
  // Expect: the CUDA runtime's version. The stand-in of a LibTorch without CUDA throws.
  EXPECT_GE(at::detail::getCUDAHooks().versionCUDART(), 12000);
}
