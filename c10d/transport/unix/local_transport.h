// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What the transports within a host share: they meet through unix sockets with abstract names,
// which leave no file behind. What then flows, each decides for itself.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <farspan/c10d/net/loop.h>
#include <farspan/c10d/net/owned_descriptor.h>
#include <farspan/c10d/net/reactor.h>
#include <farspan/c10d/transport/transport.h>

namespace farspan::transport {

struct LocalKind {
  std::string name;
  // Makes a stream of a socket that has connected; may throw an Error.
  std::function<std::unique_ptr<Stream>(net::OwnedDescriptor, std::string description)> dialled;
  // Does so, at once or later, of one that was accepted, and hands it on.
  std::function<void(net::OwnedDescriptor, std::string description, const OnAccept&)> accepted;
};

// Endpoints: "NAME:@ADDRESS;host=ID". A peer that runs as another user is turned away. The loop and
// the reactor must outlive it.
std::unique_ptr<Transport> make_local_transport(LocalKind kind, std::shared_ptr<net::Loop> loop,
                                                net::Reactor& reactor);

}  // namespace farspan::transport
