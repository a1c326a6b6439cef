// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// History: the last operations of one group, for a person who asks why it hangs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>
#include <farspan/c10d/group/signature.h>

namespace farspan::dist {

// One operation as one rank saw it.
struct OperationRecord {
  enum class State : uint8_t { kQueued, kRunning, kDone, kFailed };

  uint64_t id = 0;  // from 1, over all operations of the group on this rank
  Signature signature;
  int peer = -1;  // of send and recv: the rank in the group
  int tag = 0;
  State state = State::kQueued;
  TimePoint called, begun, ended;  // zero: not yet
};

// "call 17: all_reduce SUM of float32 [4], running for 2.31 s", or, when it is over, "began 2.31 s
// ago, ended 2.30 s ago, took 10.0 ms". Messages count apart: "message 5: send of ..". Those of one
// dump share `now`.
std::string describe(const OperationRecord& record, TimePoint now = Clock::now());

// Threading: every method from any thread.
class History {
 public:
  static constexpr size_t kKept = 256;

  // Notes an operation, and forgets the oldest. Returns its id.
  uint64_t add(const OperationRecord& record);
  void begin(uint64_t id, uint64_t sequence, TimePoint at);
  void end(uint64_t id, bool failed, TimePoint at);

  // The oldest first.
  std::vector<OperationRecord> records() const;

 private:
  OperationRecord* find_locked(uint64_t id) FARSPAN_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<OperationRecord> ring_ FARSPAN_GUARDED_BY(mutex_);
  uint64_t last_ FARSPAN_GUARDED_BY(mutex_) = 0;
};

}  // namespace farspan::dist
