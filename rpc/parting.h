// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Parting: drives the Meeting over a messenger: waits until every worker has come to the same point
// and nothing is under way anywhere.
#pragma once

#include <memory>

#include <farspan/c10d/base/future.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/rpc/agent/meeting.h>
#include <farspan/rpc/agent/messenger.h>

namespace farspan {

// Threading: meet() by one thread at a time; the rest from any.
class Parting : public std::enable_shared_from_this<Parting> {
 public:
  explicit Parting(std::shared_ptr<agent::Messenger> messenger);

  // Answers the other workers from now on.
  void listen();

  // Returns when all live workers are in the same meeting, and quiet.
  //   throws  Error kTimeout (at rank 0 it names who is missing), kDisconnected (rank 0 is gone),
  //   kShutdown
  void meet(Deadline deadline);
  // Fails the meeting that another thread is in, or comes to.
  void stop();

 private:
  void perform(agent::Meeting::Action action);
  void report_when_quiet();
  void look_again();
  template <class Fn>
  void step(Fn&& fn);

  const std::shared_ptr<agent::Messenger> messenger_;
  Mutex mutex_;
  agent::Meeting meeting_ FARSPAN_GUARDED_BY(mutex_);
  bool stopped_ FARSPAN_GUARDED_BY(mutex_) = false;
  uint64_t phase_ FARSPAN_GUARDED_BY(mutex_) = 0;
  Promise<void> over_ FARSPAN_GUARDED_BY(mutex_);
};

}  // namespace farspan
