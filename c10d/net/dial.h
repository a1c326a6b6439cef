// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Dial: TCP connections and listeners for threads that may block, each with a deadline. What runs
// on the reactor uses Loop instead.
#pragma once

#include <cstddef>
#include <vector>

#include <farspan/c10d/base/time.h>
#include <farspan/c10d/net/address.h>
#include <farspan/c10d/net/owned_descriptor.h>

namespace farspan::net {

// Connects to the first address of `where` that answers, trying each once. The socket is
// non-blocking, closed on exec, sends at once (TCP_NODELAY) and notices a dead host in about half a
// minute (keep-alive).
//   throws  Error kUnavailable (refused, unreachable, no such host), kTimeout, kOverloaded (out of
//           descriptors); the message names the address and the system's reason
OwnedDescriptor dial(const HostPort& where, Deadline deadline);

// Binds and listens on every address of `where` that this host has, all with one port; port 0
// takes a free one. Nothing is bound to a wildcard unless `where` is one. The sockets are
// non-blocking and closed on exec.
//   throws  Error kAlreadyExists (the port is in use), kUnavailable (not an address of this host),
//           kInvalidArgument, kOverloaded
std::vector<OwnedDescriptor> listen_on(const HostPort& where, Deadline deadline);

// What a connection should have: see dial(). Errors are ignored, these are improvements only.
void tune_connection(int fd) noexcept;

// Writes all of the bytes to a non-blocking socket.
//   throws  Error kDisconnected, kTimeout
void send_all(int fd, const void* bytes, size_t size, Deadline deadline);

// Reads up to `size` bytes from a non-blocking socket, at least one.
//   throws  Error kDisconnected (also at the end of the stream), kTimeout
size_t receive_some(int fd, void* bytes, size_t size, Deadline deadline);

}  // namespace farspan::net
