// The nccl backend on a real GPU, in a world of one: NCCL takes no two ranks on one device.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include <farspan/c10d/backends/nccl/nccl.h>
#include <farspan/c10d/group/process_group.h>
#include <farspan/rpc/device/accelerator.h>

#include "conformance/every_collective.h"
#include "conformance/ranks_in_threads.h"
#include "support/needs_gpu.h"

namespace farspan::testing {
namespace {

class CudaCollectives : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    const auto accelerator = registered_accelerator();
    ASSERT_TRUE(accelerator);
    ASSERT_TRUE(accelerator->devices) << accelerator->why_none;
    const dist::GroupSpec spec = dist::testing::whole_job(0, 1);
    auto backend = dist::nccl::make_nccl_backend(
        dist::nccl::registered_library(),
        dist::testing::join_job(std::make_shared<dist::HashStore>(), 0, 1), spec);
    group_ =
        std::make_shared<dist::ProcessGroup>(spec, 0, std::move(backend), std::chrono::seconds(60));
  }

  dist::Group group_;
};

TEST_F(CudaCollectives, GiveTheResultsOfThoseOfTheProcessor) {
  const dist::CurrentGroup current(group_);
  const Tensors expected = results_of({at::kCPU, 1}, 0);
  for (int round = 0; round < 20; ++round) {
    const Tensors results = results_of({at::Device(at::kCUDA, 0), 1}, 0);
    ASSERT_EQ(results.size(), expected.size());
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_TRUE(at::equal(results[i], expected[i])) << "result " << i;
    }
  }
}

TEST_F(CudaCollectives, ReduceWhatNcclHasOfEachTypeAndRefuseTheRest) {
  const dist::CurrentGroup current(group_);
  expect_reductions_of_nccl({at::Device(at::kCUDA, 0), 1}, 0);
}

TEST_F(CudaCollectives, AWorkEndsOnTheDevice) {
  const dist::CurrentGroup current(group_);
  const Tensor t = at::ones({1 << 20}, at::TensorOptions(at::kFloat).device(at::kCUDA, 0));
  const dist::Work work = dist::all_reduce_async(t);
  work.wait(std::chrono::seconds(10));
  EXPECT_TRUE(work.is_success());
  EXPECT_EQ(t.sum().item<float>(), 1 << 20);
}

}  // namespace
}  // namespace farspan::testing
