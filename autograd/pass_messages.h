// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What workers tell each other during a distributed backward pass. The protocol:
// autograd/README.md.
#pragma once

#include <compare>
#include <cstdint>
#include <variant>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/time.h>

namespace farspan::dist_autograd {

// A context; unique in the job and never used again: above kRankShift the rank of its maker + 1,
// below it the maker's number for it.
enum class ContextId : uint64_t {};
inline constexpr int kRankShift = 44;
inline int maker_of(ContextId id) noexcept {
  return static_cast<int>(static_cast<uint64_t>(id) >> kRankShift) - 1;
}
inline uint64_t number_of(ContextId id) noexcept {
  return static_cast<uint64_t>(id) & ((uint64_t{1} << kRankShift) - 1);
}

// A pair of a send node and its receive node; unique in the context.
enum class SendId : uint64_t {};

// One backward pass of a context.
struct PassId {
  ContextId context{};
  int initiator = -1;   // the rank of the worker that began it
  uint64_t number = 0;  // grows with each pass that the initiator begins
  friend auto operator<=>(const PassId&, const PassId&) = default;
};

// kExact finds out first which sends take part. kFast takes it that all sends of the context do,
// which saves that round; with a result that the roots do not depend on it ends by its deadline.
enum class PassMode : uint8_t { kExact = 0, kFast = 1 };

// What a worker must know to join a pass.
struct PassTerms {
  PassMode mode = PassMode::kExact;
  bool retain_graph = false;
  Clock::duration remaining = Clock::duration::max();  // until the deadline; max: there is none
};

// "Walk on from these sends" (whose receives I have reached), exact mode only.
struct Question {
  PassId pass;
  PassTerms terms;
  uint64_t id = 0;  // of the asker's choice
  std::vector<SendId> sends;
};

// All that is reachable from the question's sends has been counted.
struct Answer {
  PassId pass;
  uint64_t question = 0;
  std::vector<int> workers;  // that take part below the question, the one that answers among them
};

// From the initiator: everything is counted, gradients may flow (exact); or: I wait for you (fast).
struct Go {
  PassId pass;
};

// Goes before the gradient of a receive node, on its way to the send node. The tensors (undefined
// ones as a flag) travel beside it.
struct GradientHead {
  PassId pass;
  PassTerms terms;
  SendId send{};
};

// To the initiator: my part of the graph has run.
struct Done {
  PassId pass;
  std::vector<int> contacted;  // workers that got gradients from me, fast mode only
};

// The pass has failed.
struct Abort {
  PassId pass;
  Error why;
};

using PassMessage = std::variant<Question, Answer, Go, GradientHead, Done, Abort>;

}  // namespace farspan::dist_autograd
