// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Descriptors: small things that the system calls leave to everybody.
#pragma once

#include <fcntl.h>
#include <unistd.h>

namespace farspan::net {

// A second descriptor for the same open file, closed on exec; -1 and errno when there is none left.
inline int duplicate(int fd) noexcept { return fcntl(fd, F_DUPFD_CLOEXEC, 0); }

}  // namespace farspan::net
