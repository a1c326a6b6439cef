// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// TCP, between hosts or within one.
#pragma once

#include <memory>

#include <farspan/c10d/net/loop.h>
#include <farspan/c10d/net/reactor.h>
#include <farspan/c10d/transport/transport.h>

namespace farspan::transport {

// Endpoints: "tcp:127.0.0.1:40721", "tcp:[::1]:40721"; always numeric. The loop and the reactor
// must outlive it.
std::unique_ptr<Transport> make_tcp_transport(std::shared_ptr<net::Loop> loop,
                                              net::Reactor& reactor);

}  // namespace farspan::transport
