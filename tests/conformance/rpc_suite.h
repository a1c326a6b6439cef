// RPC conformance: what calls must do. The rules: rpc/rpc.h, rpc/README.md. The cases are in the
// rpc_*_cases.cc beside this.
#pragma once

#include <farspan/rref/remote.h>
#include <farspan/rref/rref.h>

#include "conformance/cluster_suite.h"

namespace farspan::testing {

class RpcSuite : public ClusterSuite {};

}  // namespace farspan::testing
