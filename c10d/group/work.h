// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Work: a collective or a message that is under way.
#pragma once

#include <memory>
#include <utility>

#include <farspan/c10d/base/future.h>

namespace farspan::dist {

// What the *_async functions, isend and irecv return. Copies are the same operation. Tensors that
// it writes to are the operation's until it has ended, and those that it reads must not be changed
// until then; it holds on to both itself. Whoever does not want to know how it ends says so:
// (void)isend(..).
//
// Threading: every method from any thread. A Work that is let go of goes on.
class [[nodiscard]] Work {
 public:
  Work() = default;  // nothing is under way: valid() is false
  explicit Work(Future<int> done) noexcept : done_(std::move(done)) {}
  //   ended  set when `done` is ready: when the device has ended it; see wait()
  Work(Future<int> done, std::shared_ptr<const Future<int>> ended) noexcept
      : done_(std::move(done)), ended_(std::move(ended)) {}

  bool valid() const noexcept { return done_.valid(); }

  // Blocks until it has ended. What has not begun yet the calling thread does itself.
  //
  // Of tensors on a device that the backend works on itself (nccl): the calling thread's current
  // stream waits for its end, and the thread does not, unless `timeout` is given. What goes wrong
  // on the device later is told by the group: is_success(), and every later call.
  //   timeout  for this wait only: the operation goes on; kNoTimeout waits for the operation's end,
  //            which its own deadline brings
  //   throws   Error of the operation, or kTimeout when `timeout` passed first
  void wait(Millis timeout = kNoTimeout) const;

  // Whether it has ended, well or not, on a device, too. Does not block, nor throw.
  bool is_completed() const noexcept;
  bool is_success() const noexcept;

  // Of a receive that has ended: the rank, in the default group, that the message came from.
  //   throws  Error of the operation, or kInvalidArgument: not ended yet, or no receive
  int source_rank() const;

  // For continuations; its value is source_rank(), or -1.
  const Future<int>& future() const noexcept { return done_; }

 private:
  bool has_ended(Deadline deadline) const;

  Future<int> done_;
  std::shared_ptr<const Future<int>> ended_;  // null: done_ is all
};

}  // namespace farspan::dist
