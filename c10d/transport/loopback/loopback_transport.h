// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Loopback: workers of one process, over queues in memory.
#pragma once

#include <memory>

#include <farspan/c10d/transport/transport.h>

namespace farspan::transport {

// Endpoints: "loopback:PROCESS:N". Bytes are copied through a bounded queue in each direction.
std::unique_ptr<Transport> make_loopback_transport();

}  // namespace farspan::transport
