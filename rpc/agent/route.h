// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Route: the way to another worker, and why it is not a better one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace farspan {

// Whether workers of one host read large tensors straight out of each other's memory
// (process_vm_readv(2)), which costs one copy and no time of the sender.
enum class CrossMemoryAttach {
  kForbidden,  // they travel as everything else does
  kAllowed,    // where both workers allow it, and the system does
  kRequired,   // a worker of this host with whom it does not work both ways cannot be called
};

// One that is open. Threading: a value.
struct Route {
  std::string worker;
  std::string transport;             // "shm farspan-12-ab34"
  std::vector<std::string> refused;  // better ones that this worker has tried: "shm: no room in .."
  bool reads_memory = false;         // large tensors that come are read out of its memory,
  bool is_read = false;              // and those that go out of this worker's, as far as is known
  std::string why_not_read;          // the reason, where one of the two does not work
  uint64_t bytes_sent = 0, bytes_received = 0;  // over the transport
  uint64_t bytes_read = 0;                      // out of its memory
  uint64_t bytes_handed_over = 0;               // of tensors that came without a copy
};

}  // namespace farspan
