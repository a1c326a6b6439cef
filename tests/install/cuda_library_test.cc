// The rule under test: who links farspan::cuda need do nothing else, on a machine without a GPU
// too.
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>

#include <farspan/c10d/backends/nccl/library.h>
#include <farspan/c10d/base/error.h>
#include <farspan/rpc/device/accelerator.h>

TEST(CudaLibrary, BringsLibTorchsCudaHalf) {
  // The CUDA runtime's version. The stand-in of a LibTorch without CUDA throws.
  EXPECT_GE(at::detail::getCUDAHooks().versionCUDART(), 12000);
}

TEST(CudaLibrary, IsTheAcceleratorOfTheProcess) {
  const auto accelerator = farspan::registered_accelerator();
  ASSERT_TRUE(accelerator);
  EXPECT_EQ(accelerator->type, at::kCUDA);
  EXPECT_NE(accelerator->devices != nullptr, !accelerator->why_none.empty());
}

#ifdef FARSPAN_TESTS_NCCL
TEST(CudaLibrary, BringsNccl) {
  try {
    EXPECT_EQ(farspan::dist::nccl::registered_library()->devices()->kind(), "cuda");
  } catch (const farspan::Error& error) {  // the driver's words, and not that nothing was linked
    EXPECT_EQ(error.code(), farspan::Code::kUnavailable) << error.what();
  }
}
#endif
