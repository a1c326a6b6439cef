// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Shared memory between processes of one host and one user.
#pragma once

#include <memory>

#include <farspan/c10d/net/loop.h>
#include <farspan/c10d/net/reactor.h>
#include <farspan/c10d/transport/transport.h>

namespace farspan::transport {

// Endpoints: "shm:@NAME;host=ID", where the dialling side brings the memory. A peer that runs as
// another user is turned away. The loop and the reactor must outlive it.
std::unique_ptr<Transport> make_shm_transport(std::shared_ptr<net::Loop> loop,
                                              net::Reactor& reactor);

}  // namespace farspan::transport
