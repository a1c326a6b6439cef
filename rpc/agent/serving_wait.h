// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// ServingWait: a wait that gives the thread a request to serve itself, when it has read one.
#pragma once

#include <functional>
#include <memory>

#include <farspan/c10d/base/relay.h>
#include <farspan/c10d/base/unfinished.h>
#include <farspan/c10d/net/reactor.h>
#include <farspan/rpc/agent/messenger.h>

namespace farspan::agent {

// What leads to the end of the wait, and comes to the very thread that waits, need not wake another
// one, which would wake this one afterwards.
//
// Threading: made, used and destroyed by one thread, on its stack.
// Lifetime:  the reactor outlives it.
class ServingWait final : Unfinished {
 public:
  // `is_own`: is asked on this thread, while it reads; must not block.
  ServingWait(net::Reactor& reactor, const std::function<bool(const Request&)>& is_own) noexcept;
  ~ServingWait() override;

  // Waits until `future` is ready or a request has been taken, while reading `hint`; once. See
  // Reactor::wait().
  //   returns  what was taken, unless others had to come for it
  std::unique_ptr<net::Task> wait(FutureCore& future, net::Source* hint, const net::WaitPlan& plan);

  // The calling thread's, where it waits in one for this reactor, in nothing inside that, and takes
  // such a request; it takes one. Null: as a rule.
  static ServingWait* for_request(const net::Reactor& reactor, const Request& request) noexcept;
  void take(std::unique_ptr<net::Task> task) noexcept;

 private:
  void hand_over() noexcept override;
  bool has_more() const noexcept override { return task_ != nullptr; }

  net::Reactor& reactor_;
  const std::function<bool(const Request&)>& is_own_;
  ServingWait* const outer_;
  int depth_ = -1;  // of its wait; -1: it does not wait
  Signal over_;     // the future is ready, or a request has been taken
  std::unique_ptr<net::Task> task_;
};

}  // namespace farspan::agent
