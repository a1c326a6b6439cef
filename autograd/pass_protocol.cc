#include <farspan/autograd/pass_protocol.h>

#include <algorithm>
#include <utility>

#include <farspan/autograd/pass_state.h>

namespace farspan::dist_autograd {

PassProtocol::PassProtocol(int self, std::function<std::string(int)> name_of, size_t memory)
    : self_(self), name_of_(std::move(name_of)), ended_(memory) {}

PassProtocol::~PassProtocol() = default;

PassId PassProtocol::begin(ContextId context, PassMode mode, bool retain_graph, Deadline deadline,
                           TimePoint now, PassActions& actions) {
  if (ended_.is_released(context)) {
    throw Error(Code::kInvalidArgument, "the context has been released").operation("backward");
  }
  if (const auto other = passes_.find(context); other != passes_.end()) {
    throw Error(Code::kInvalidArgument,
                "another backward pass of the context is under way, begun "
                "by '" +
                    name_of_(other->second->id.initiator) + "'")
        .operation("backward")
        .advice("wait for it, or use a context for each");
  }
  PassTerms terms{mode, retain_graph, deadline.remaining(now)};
  Pass& pass = open({context, self_, next_number_++}, terms, now, actions);
  pass.known = {self_};
  const uint64_t token = next_token_++;
  pass.walks[token];
  actions.push_back(Walk{pass.id, pass.terms, token, true, mode == PassMode::kFast, {}});
  return pass.id;
}

Pass& PassProtocol::open(const PassId& id, const PassTerms& terms, TimePoint now,
                         PassActions& actions) {
  auto& pass = passes_[id.context];
  pass = std::make_unique<Pass>();
  pass->id = id;
  pass->terms = terms;
  if (terms.remaining < TimePoint::max() - now) {
    pass->deadline = now + terms.remaining;
    actions.push_back(ArmTimer{id, pass->deadline});
  }
  return *pass;
}

Pass* PassProtocol::find(const PassId& id) const {
  const auto found = passes_.find(id.context);
  return found != passes_.end() && found->second->id == id ? found->second.get() : nullptr;
}

// The pass that a message tells us of, which may be the first that we hear of it. Null when it is
// over, or cannot be.
Pass* PassProtocol::join(int from, const PassId& id, const PassTerms& terms, TimePoint now,
                         PassActions& actions) {
  if (Pass* pass = find(id)) return pass;
  if (ended_.is_ended(id)) {  // it came late; when the pass has failed, the sender may not know yet
    std::optional<Error> why = ended_.why(id);
    if (why && why->worker().empty()) why->worker(name_of_(self_));
    if (why && from != self_) actions.push_back(Send{from, Abort{id, std::move(*why)}});
    return nullptr;
  }
  const auto other = passes_.find(id.context);
  if (other == passes_.end()) return &open(id, terms, now, actions);
  const PassId old = other->second->id;
  if (old.initiator == id.initiator) {
    if (old.number > id.number) return nullptr;
    // The initiator has ended the old one before it began this. We are the last to hear of it, but
    // for those who joined through us.
    fail(*other->second, Error(Code::kCancelled, "a later pass has begun"), from, actions);
    return &open(id, terms, now, actions);
  }
  const Error why = Error(Code::kInvalidArgument,
                          "another backward pass of the context is under way, begun by '" +
                              name_of_(old.initiator) + "'")
                        .worker(name_of_(self_))
                        .advice("wait for it, or use a context for each");
  ended_.end(id, why);
  actions.push_back(Send{from, Abort{id, why}});
  return nullptr;
}

void PassProtocol::tell(Pass& pass, int to, PassMessage message, PassActions& actions) {
  if (to == self_) {
    to_self_.push_back(std::move(message));
    return;
  }
  actions.push_back(Send{to, std::move(message)});
  meet(pass, to, actions);
}

// It has heard of the pass from us, or we from it.
void PassProtocol::meet(Pass& pass, int rank, PassActions& actions) {
  if (rank == self_ || !pass.neighbours.insert(rank).second) return;
  if (pass.deadline == TimePoint::max()) actions.push_back(Watch{pass.id, rank});
}

void PassProtocol::settle(TimePoint now, PassActions& actions) {
  while (!to_self_.empty()) {
    const PassMessage message = std::move(to_self_.back());
    to_self_.pop_back();
    std::visit([&](const auto& kind) { on(self_, kind, now, actions); }, message);
  }
}

void PassProtocol::received(int from, const PassMessage& message, TimePoint now,
                            PassActions& actions) {
  std::visit([&](const auto& kind) { on(from, kind, now, actions); }, message);
  settle(now, actions);
}

void PassProtocol::start(Pass& pass, PassActions& actions) {
  if (std::exchange(pass.running, true)) return;
  actions.push_back(Start{pass.id});
}

void PassProtocol::timer(const PassId& id, TimePoint now, PassActions& actions) {
  Pass* pass = find(id);
  if (!pass || pass->deadline == TimePoint::max()) return;
  if (!pass->is_overdue(now)) {
    actions.push_back(ArmTimer{id, pass->deadline});
    return;
  }
  fail(*pass, late(*pass), self_, actions);
}

Error PassProtocol::late(const Pass& pass) const {
  return Error(Code::kTimeout, pass.describe(name_of_)).worker(name_of_(self_));
}

std::string PassProtocol::describe() const {
  std::string text;
  for (const auto& [context, pass] : passes_) text += pass->describe(name_of_) + '\n';
  return text;
}

}  // namespace farspan::dist_autograd
