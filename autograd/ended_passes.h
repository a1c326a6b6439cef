// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// EndedPasses: a bounded memory of what is over, so that late messages find no way back in.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <optional>

#include <farspan/autograd/pass_messages.h>

namespace farspan::dist_autograd {

// Threading: none of its own.
class EndedPasses {
 public:
  // Forgets the oldest context when there are more than `capacity`.
  explicit EndedPasses(size_t capacity) : capacity_(capacity) {}

  // With it all earlier passes of the same initiator in the context.
  //   why  when it has failed
  void end(const PassId& pass, std::optional<Error> why = std::nullopt);

  // With all passes of the context, past and future.
  void release(ContextId context);

  bool is_ended(const PassId& pass) const;
  bool is_released(ContextId context) const;

  // What to tell a worker that still takes part in an ended pass: why it failed. None when it went
  // well, for then it has ended everywhere.
  std::optional<Error> why(const PassId& pass) const;

  size_t size() const noexcept { return contexts_.size(); }

 private:
  struct Last {
    uint64_t number = 0;
    std::optional<Error> why{};
  };
  struct Context {
    bool released = false;
    std::map<int, Last> last;  // by initiator, the latest that has ended
  };
  Context& entry(ContextId context);

  const size_t capacity_;
  std::map<ContextId, Context> contexts_;
  std::deque<ContextId> order_;  // oldest first
};

}  // namespace farspan::dist_autograd
