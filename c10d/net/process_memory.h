// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Memory of other processes of this host, read by a system call: one copy, and none of the other
// process's time.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace farspan::net {

// Copies what lies at `address` in that process to `to`. Any thread.
//   returns  0, or an errno: EPERM (this system forbids it), ESRCH (no such process), EFAULT (no
//            such memory there); part of `to` may be written then
int read_process_memory(pid_t process, uint64_t address, void* to, size_t bytes) noexcept;

}  // namespace farspan::net
