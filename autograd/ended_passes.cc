#include <farspan/autograd/ended_passes.h>

#include <utility>

namespace farspan::dist_autograd {

EndedPasses::Context& EndedPasses::entry(ContextId context) {
  const auto [found, is_new] = contexts_.try_emplace(context);
  if (is_new) {
    order_.push_back(context);
    if (order_.size() > capacity_) {
      contexts_.erase(order_.front());
      order_.pop_front();
    }
  }
  return found->second;
}

void EndedPasses::end(const PassId& pass, std::optional<Error> why) {
  Context& context = entry(pass.context);
  if (context.released) return;
  Last& last = context.last[pass.initiator];
  if (last.number < pass.number) last = {pass.number, std::move(why)};
}

void EndedPasses::release(ContextId id) {
  Context& context = entry(id);
  context.released = true;
  context.last.clear();
}

bool EndedPasses::is_ended(const PassId& pass) const {
  const auto context = contexts_.find(pass.context);
  if (context == contexts_.end()) return false;
  if (context->second.released) return true;
  const auto last = context->second.last.find(pass.initiator);
  return last != context->second.last.end() && pass.number <= last->second.number;
}

std::optional<Error> EndedPasses::why(const PassId& pass) const {
  if (!is_ended(pass)) return std::nullopt;
  const Context& context = contexts_.at(pass.context);
  if (context.released) return Error(Code::kCancelled, "the context has been released");
  const Last& last = context.last.at(pass.initiator);
  return last.number == pass.number ? last.why : Error(Code::kCancelled, "the pass is over");
}

bool EndedPasses::is_released(ContextId id) const {
  const auto context = contexts_.find(id);
  return context != contexts_.end() && context->second.released;
}

}  // namespace farspan::dist_autograd
