// Distributed autograd, over every way in which workers can live and reach each other.
#include "integration/autograd_suite.h"
#include "support/processes.h"

namespace farspan::testing {
namespace {

FARSPAN_OVER_EVERY_CLUSTER(AutogradSuite);

}  // namespace
}  // namespace farspan::testing

int main(int argc, char** argv) {
  return farspan::testing::run_tests(argc, argv, {{"worker", farspan::testing::be_worker}});
}
