// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The cpu backend: ranks of one host through shared memory, hosts through TCP.
// c10d/backends/README.md has how.
#pragma once

#include <memory>

#include <farspan/c10d/group/backend.h>

namespace farspan::dist::cpu {

// For register_backend("cpu", ..).
//   throws  what Node::make throws
std::shared_ptr<Backend> make_cpu_backend(const BackendContext& context);

}  // namespace farspan::dist::cpu
