// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What workers tell each other about references. PROTOCOL.md says when, and why it is enough.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <farspan/rref/id.h>

namespace farspan::rref {

// The numbers travel on the wire: append only, never reuse.
enum class ControlKind : uint8_t {
  kForkRequest = 1,    // user to owner: this fork is mine
  kChildAccept = 2,    // receiver of a fork to its parent: you need not keep yours alive for it
  kUserDelete = 3,     // user to owner: this fork is gone
  kCreatorDelete = 4,  // the same for the fork that came with the request to create the value
  kRecall = 5,         // parent to receiver: this fork's carrier failed; have you got it?
};

// Why an item was not done as asked. Append only, too.
enum class Refusal : uint8_t {
  kReleased = 1,       // to kForkRequest: the value is gone
  kNotOwner = 2,       // to kForkRequest: it never lived here
  kHeld = 3,           // to kRecall: the fork has arrived, and is in use
  kNotUnderstood = 4,  // to a kind that a newer version made up
};

struct ControlItem {
  ControlKind kind{};
  RRefId rref;
  ForkId fork;
  friend bool operator==(const ControlItem&, const ControlItem&) = default;
};

struct RefusedItem {
  uint64_t sequence = 0;
  Refusal reason{};
  friend bool operator==(const RefusedItem&, const RefusedItem&) = default;
};

// A batch of items from one run of a worker to one run of another, with what the sender has
// processed of the other direction. Items have sequence numbers, from 1. A frame may be lost,
// doubled, late, or overtaken by another: links make up for it (protocol_link.h).
struct ControlFrame {
  WorkerRun from, to;
  uint64_t base = 1;   // the sender's first item that it does not know to be processed
  uint64_t first = 1;  // the number of items[0]
  std::vector<ControlItem> items;
  uint64_t ack = 1;  // all items of the receiver below this one are processed here
  // Those of them, from the receiver's base on, that were refused.
  std::vector<RefusedItem> refused;
  bool probe = false;  // "are you there?": answer with any frame
  // The sender holds the receiver for dead, or has shut down: nothing passes between these two any
  // more. With `probe`: answer with a fence, so that the sender knows that it was heard.
  bool fence = false;
};

// A reference under way in the arguments or the result of a call.
struct ForkData {
  RRefId rref;
  ForkId fork;       // fork.parent sends it
  std::string what;  // the type of the value and where it was made, for people
};

}  // namespace farspan::rref
