// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Uses: what others have lent this worker's devices, as long as these copy it; so that who lent it
// on a line that has ended hears when he may use it again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/rpc/agent/messenger.h>

namespace farspan {

// Threading: every method from any thread. It has nothing to do with devices, so that a thread of
// their driver's may be the last one to let go of it.
class Uses : public std::enable_shared_from_this<Uses> {
 public:
  // What that worker has lent is in use until what is returned goes.
  //   lending  DeviceBytes.lending
  //   throws   Error kDisconnected: it has been recalled
  std::shared_ptr<const void> begin(int peer, uint64_t lending);
  // No use of these begins any more.
  //   returns  those that are in use
  std::vector<uint64_t> recall(int peer, const std::vector<uint64_t>& lendings);
  // A DEVICE_RECALL.
  void serve_recall(agent::Request request);

 private:
  using Lending = std::pair<int, uint64_t>;  // with the worker that it is of
  class Use;
  // Of one worker.
  struct Recalled {
    std::unordered_set<uint64_t> lendings;
    std::deque<uint64_t> in_order;
  };
  void end(const Lending& lending) noexcept;

  Mutex mutex_;
  std::map<Lending, size_t> uses_ FARSPAN_GUARDED_BY(mutex_);
  std::map<int, Recalled> recalled_ FARSPAN_GUARDED_BY(mutex_);  // the last ones
};

}  // namespace farspan
