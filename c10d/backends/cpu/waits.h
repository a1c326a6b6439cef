// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Waits: for whom this rank waits in the collectives of one group. Who has waited too long asks,
// and follows the answers to the rank that holds up all.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace farspan::dist::cpu {

struct WaitsFor {
  int rank = -1;            // in the default group; -1: for nobody
  bool has_called = false;  // the collective, as far as is known
};

// Who it was.
struct Late {
  std::string name;  // "rank 3 (host:pid)", in the default group
  bool has_called = false;
};

// Threading: begin() and end(): one thread at a time. now(): any thread.
class Waits {
 public:
  void begin(WaitsFor whom) noexcept {
    word_.store(static_cast<int64_t>(whom.rank + 1) * 2 + (whom.has_called ? 1 : 0));
  }
  // Not after a failure: until others have been told of it this is what holds this rank up.
  void end() noexcept { word_.store(0); }

  WaitsFor now() const noexcept {
    const int64_t word = word_.load();
    return {static_cast<int>(word / 2) - 1, word % 2 != 0};
  }

 private:
  std::atomic<int64_t> word_{0};
};

}  // namespace farspan::dist::cpu
