// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Unix sockets whose names lie in no folder (unix(7), "abstract"): nothing is left of them when
// their process is gone.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include <farspan/c10d/net/owned_descriptor.h>

namespace farspan::net {

// A stream that does not block.
//   throws  Error kOverloaded: no descriptors
OwnedDescriptor new_unix_socket();

// The same, bound to a name that nobody can guess; not listening yet.
//   throws  Error kOverloaded, kUnavailable
struct NamedSocket {
  OwnedDescriptor socket;
  std::string name;
};
NamedSocket bind_unix_socket();

//   returns  0, or an errno: EAGAIN, while as many as the other end takes wait for it;
//   ECONNREFUSED,
//            when there is none
int connect_unix(int socket, const std::string& name) noexcept;

// Passes descriptors to the other process beside a message that is small, and not empty: all of it,
// or nothing. Never blocks, nor raises a signal.
bool send_with_descriptors(int socket, std::span<const std::byte> message,
                           std::span<const int> descriptors) noexcept;

// What came beside a message; the last ones are empty where fewer came.
using PassedDescriptors = std::array<OwnedDescriptor, 4>;
// Never blocks.
//   descriptors  set when some came, else left as they are
//   returns      bytes read; 0: the end; -1 and errno
ssize_t receive_with_descriptors(int socket, std::span<std::byte> place,
                                 PassedDescriptors& descriptors) noexcept;

// The other end's, when it was connected, or began to listen.
bool is_same_user(int socket) noexcept;
pid_t peer_process(int socket) noexcept;  // 0: it has no number in this one's namespace

}  // namespace farspan::net
