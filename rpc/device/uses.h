// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Uses: what others have lent this worker's devices, as long as these copy it; so that who lent it
// on a line that has ended hears when he may use it again.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>

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
  // A DEVICE_RECALL: what it names is in no use from now on, but for what is; the answer goes when
  // that has ended.
  void serve_recall(agent::Request request);

 private:
  using Lending = std::pair<int, uint64_t>;  // with the worker that it is of
  class Use;
  struct Recall {
    std::shared_ptr<agent::Request> request;
    size_t uses = 0;  // that have not ended
  };
  void end(const Lending& lending) noexcept;

  Mutex mutex_;
  std::map<Lending, size_t> uses_ FARSPAN_GUARDED_BY(mutex_);
  std::map<int, std::set<uint64_t>> recalled_ FARSPAN_GUARDED_BY(mutex_);  // the last ones
  std::multimap<Lending, std::shared_ptr<Recall>> waiting_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan
