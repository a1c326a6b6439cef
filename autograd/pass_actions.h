// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What a PassProtocol wants done. Its driver performs the actions, in their order, after the call
// that gave them and without the lock that guards the protocol.
#pragma once

#include <optional>
#include <variant>
#include <vector>

#include <farspan/autograd/pass_messages.h>

namespace farspan::dist_autograd {

// Walk the local graph, then call walked(), or failed(). The first one of a pass makes its
// executor.
struct Walk {
  PassId pass;
  PassTerms terms;
  uint64_t token = 0;         // for walked()
  bool roots = false;         // from the roots of the backward call
  bool all_sends = false;     // from all sends that the context has here
  std::vector<SendId> sends;  // from these
};

// Let gradients flow here, and run what is ready.
struct Start {
  PassId pass;
};

// A message to another worker. A GradientHead, with its tensors, can also be for this one: the
// driver gives it back by received().
struct Send {
  int to = -1;
  PassMessage message;
};

// Keep the tensors that came with this GradientHead until Feed, Retire or Cancel.
struct Keep {
  PassId pass;
  SendId send{};
};

// Give the tensors of this GradientHead, just come or kept, to the executor. Those for which
// received() asks neither this nor Keep are late or came twice: drop them.
struct Feed {
  PassId pass;
  SendId send{};
};

// The executor has finished and is of no more use.
struct Retire {
  PassId pass;
};

// Cancel the executor, if there is one, and drop it.
struct Cancel {
  PassId pass;
  Error why;
};

// At the initiator, once a pass: tell the user.
struct Complete {
  PassId pass;
  std::optional<Error> error;
};

// Waits for that worker without a deadline, until the pass ends here: tell of it when it falls
// silent, by peer_lost(). Comes after what it was sent.
struct Watch {
  PassId pass;
  int rank = -1;
};

// Call timer() at that time.
struct ArmTimer {
  PassId pass;
  TimePoint at;
};

using PassAction =
    std::variant<Walk, Start, Send, Keep, Feed, Retire, Cancel, Complete, Watch, ArmTimer>;
using PassActions = std::vector<PassAction>;

}  // namespace farspan::dist_autograd
