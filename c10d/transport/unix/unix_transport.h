// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Unix sockets between processes of one host and one user. The names are abstract: no file is made,
// so none can be left behind.
#pragma once

#include <memory>

#include <farspan/c10d/net/loop.h>
#include <farspan/c10d/net/reactor.h>
#include <farspan/c10d/transport/transport.h>

namespace farspan::transport {

// Endpoints: "unix:@NAME;host=ID". A peer that runs as another user is turned away. The loop and
// the reactor must outlive it.
std::unique_ptr<Transport> make_unix_transport(std::shared_ptr<net::Loop> loop,
                                               net::Reactor& reactor);

}  // namespace farspan::transport
