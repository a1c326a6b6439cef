// Every way in which workers can live and reach each other.
#include <cstdlib>

#include "conformance/rpc_suite.h"
#include "support/processes.h"

namespace farspan::testing {
namespace {

std::string name_of_kind(const ::testing::TestParamInfo<ClusterKind>& info) {
  return info.param.name;
}

std::vector<ClusterKind> worlds() {
  const char* many = std::getenv("FARSPAN_SEEDS");
  std::vector<ClusterKind> kinds;
  for (int seed = 1; seed <= (many ? std::atoi(many) : 5); ++seed) {
    kinds.push_back(in_the_world(static_cast<uint64_t>(seed)));
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(OneProcess, RpcSuite,
                         ::testing::Values(in_one_process("unix"), in_one_process("tcp"),
                                           in_one_process("loopback")),
                         name_of_kind);
INSTANTIATE_TEST_SUITE_P(World, RpcSuite, ::testing::ValuesIn(worlds()), name_of_kind);
// Apart, so that the tests of each share their processes.
INSTANTIATE_TEST_SUITE_P(UnixProcesses, RpcSuite, ::testing::Values(in_processes("unix")),
                         name_of_kind);
INSTANTIATE_TEST_SUITE_P(TcpProcesses, RpcSuite, ::testing::Values(in_processes("tcp")),
                         name_of_kind);

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) {
  return farspan::testing::run_tests(argc, argv, {{"worker", farspan::testing::be_worker}});
}
