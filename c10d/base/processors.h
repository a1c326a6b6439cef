// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Processors: how many of the machine's this process may use.
#pragma once

namespace farspan {

// By the affinity (taskset(1), a container's cpuset) of its first thread, which those that it
// starts inherit: other threads that pin themselves do not count. At least 1.
//
// Threading: any thread. Not cheap: a system call.
int available_processors() noexcept;
// Whether these are all that are online.
bool has_all_processors() noexcept;

}  // namespace farspan
