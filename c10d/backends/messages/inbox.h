// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Inbox: which message goes to which receive, for one rank in one group. No I/O, and no locks.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <vector>

#include <farspan/c10d/backends/messages/receive.h>

namespace farspan::dist::messages {

// A message that nobody has asked for yet. `Content` is what the backend needs to deliver it.
//
// The rule is that of MPI: a receive takes the earliest message that fits, a message goes to the
// earliest receive that fits, and messages of one sender and tag are taken in the order in which
// they were sent. Messages stay in the order in which they came.
//
// Threading: none; its owner has a lock.
template <class Content>
class Inbox {
 public:
  struct Arrived {
    Envelope envelope;
    Content content;
  };

  // The message for a new receive, which is kept when there is none yet.
  std::optional<Arrived> post(const std::shared_ptr<Receive>& receive) {
    for (auto one = arrived_.begin(); one != arrived_.end(); ++one) {
      if (!receive->fits(one->envelope)) continue;
      std::optional<Arrived> found(std::move(*one));
      arrived_.erase(one);
      return found;
    }
    posted_.push_back(receive);
    return std::nullopt;
  }

  // The receive for a message that comes in; null: see keep().
  std::shared_ptr<Receive> match(const Envelope& envelope) {
    for (auto one = posted_.begin(); one != posted_.end(); ++one) {
      if (!(*one)->fits(envelope)) continue;
      std::shared_ptr<Receive> found = std::move(*one);
      posted_.erase(one);
      return found;
    }
    return nullptr;
  }
  void keep(Arrived message) { arrived_.push_back(std::move(message)); }

  // False when it has got its message, or is about to.
  bool withdraw(const Receive& receive) {
    return posted_.remove_if([&](const auto& one) { return one.get() == &receive; }) > 0;
  }
  // Those that wait, the earliest first; a copy, so that they can be withdrawn one by one.
  std::vector<std::shared_ptr<Receive>> posted() const { return {posted_.begin(), posted_.end()}; }
  // Drops messages for which a condition holds.
  template <class Condition>
  void drop_if(const Condition& condition) {
    arrived_.remove_if([&](const Arrived& one) { return condition(one); });
  }

 private:
  std::list<Arrived> arrived_;
  std::list<std::shared_ptr<Receive>> posted_;
};

}  // namespace farspan::dist::messages
