// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// CallStages: where the time of a small call goes, between two processes of one host.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace bench {

struct Stage {
  std::string name;
  double microseconds = 0;  // the median of all calls
};

// Adds two tensors of one element on worker `server`, so many times, each after a pause, and notes
// the time at seven places of each call, at both ends: they share a clock. The stages are in their
// order; each costs a look at the clock more than without.
//
// Threading: one at a time, while nothing else calls between the two; calls that come later are
// noted, too. Once in a process. throws  Error: as rpc_sync
std::vector<Stage> stages_of_calls(size_t calls, std::chrono::milliseconds pause);

}  // namespace bench
