// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Allocations: how often, and for how many bytes, this process has asked malloc and its kin.
#pragma once

#include <cstdint>

namespace bench {

struct Allocations {
  int64_t count = 0, bytes = 0;
};

// Since the process started, of all its threads and libraries, `operator new` included; what was
// freed again counts as well. For programs that are linked with allocations.cc.
Allocations allocations() noexcept;

}  // namespace bench
