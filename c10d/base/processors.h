// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Processors: how many of the machine's this process may use.
#pragma once

namespace farspan {

// By the affinity (taskset(1), a container's cpuset) of its first thread, which those that it
// starts inherit: other threads that pin themselves do not count. By the time that its control
// group gets, too (a container's --cpus). At least 1.
//
// Threading: any thread. Not cheap: it reads files.
int available_processors() noexcept;
// Whether these are all that are online.
bool has_all_processors() noexcept;

// Those whose time a process gets by its control groups' quotas, rounded up; INT_MAX: there are
// none.
//   groups  a file as /proc/self/cgroup
//   mount   a folder as /sys/fs/cgroup, of version 1 or 2
int processors_by_quota(const char* groups, const char* mount) noexcept;

}  // namespace farspan
