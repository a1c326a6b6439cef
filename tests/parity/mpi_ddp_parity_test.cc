// A hundred steps of DistributedDataParallel over the mpi backend beside plain LibTorch in one
// process, bit by bit. All ranks are processes that mpirun has started, each of which runs this
// program. See tests/support/mpirun.py.
#include <numeric>

#include <farspan/c10d/group/collectives.h>
#include <farspan/c10d/init/init.h>

#include "parity/ddp_parity_oracle.h"

namespace farspan::testing {
namespace {

class DdpParityOverMpi : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    dist::InitOptions options;
    options.timeout = std::chrono::seconds(60);
    dist::init_process_group("mpi", options);
  }
  static void TearDownTestSuite() {
    dist::barrier();  // who leaves early is gone for the others
    dist::destroy_process_group();
  }
};

TEST_P(DdpParityOverMpi, AHundredStepsAreTheSameBitsAsAddedInTheOrderOfRanks) {
  const at::ScalarType type = GetParam();
  std::vector<int> ranks(static_cast<size_t>(dist::get_world_size()));
  ASSERT_GT(ranks.size(), 1u) << "mpirun must start several";
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto expected =
      train_alone(type, [&](ParityNet& net, int step) { step_serially(net, step, {ranks}, type); });
  for (const dist::DdpOptions& options : {dist::DdpOptions(), small_buckets()}) {
    int steps = 0;
    train_with_ddp(dist::get_rank(), type, options, [&](int step, const Tensors& parameters) {
      expect_same_bits(step, parameters, expected);
      ++steps;
    });
    EXPECT_EQ(steps, kSteps);
  }
}
INSTANTIATE_TEST_SUITE_P(Nets, DdpParityOverMpi, ::testing::Values(at::kFloat, at::kDouble),
                         [](const auto& each) { return std::string(toString(each.param)); });

}  // namespace
}  // namespace farspan::testing
