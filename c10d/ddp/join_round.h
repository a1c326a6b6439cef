// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// JoinRound: what the ranks of a join() tell each other before each step that they do together.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <farspan/c10d/ddp/options.h>

namespace farspan::dist {

// What a rank is about to do; a forward pass may bring several at once. 0: it has no inputs left.
enum JoinStep : int {
  kJoined = 0,
  kForward = 1,
  kRebuild = 2,
  kBuffers = 4,
  kReduce = 8,
};

// Threading: a value, used by one thread at a time.
class JoinRound {
 public:
  JoinRound(const JoinOptions& options, int ranks) : options_(options), ranks_(ranks) {}

  // Takes in what all ranks said, by rank, and returns what those with inputs do.
  //   throws  Error: kInvalidArgument, they do different things; kCancelled, one has no inputs
  //           left and the options say to throw then
  int hear(const std::vector<int>& steps);

  // Of the last round in which any rank had inputs: the first of those that had.
  int leader() const noexcept { return leader_; }
  // hear() has thrown because a rank has no inputs left.
  bool is_terminated() const noexcept { return terminated_; }
  // By what gradients are divided.
  int divisor() const noexcept {
    return options_.divide_by_initial_world_size ? ranks_ : with_inputs_;
  }

 private:
  JoinOptions options_;
  int ranks_;
  int leader_ = 0;
  int with_inputs_ = 1;
  bool terminated_ = false;
};

}  // namespace farspan::dist
