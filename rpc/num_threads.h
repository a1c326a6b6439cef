// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// use_num_threads: makes at::set_num_threads() true of the calling thread.
#pragma once

#include <ATen/Parallel.h>

namespace farspan {

// OpenMP keeps the number of threads for each thread; oneDNN takes it from there, without asking
// LibTorch. A thread that a worker has started would compute with all cores whatever the user
// said, slower where workers share a host, and with other bits. Before a thread computes; what the
// user says later reaches only threads that are new.
inline void use_num_threads() noexcept {
  thread_local const bool done = (at::init_num_threads(), true);
  static_cast<void>(done);
}

}  // namespace farspan
