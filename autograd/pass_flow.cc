// The second half: gradients flow, workers finish, passes end.
#include <algorithm>
#include <utility>

#include <farspan/autograd/pass_protocol.h>
#include <farspan/autograd/pass_state.h>

namespace farspan::dist_autograd {

void PassProtocol::gradient_left(const PassId& id, SendId receive, TimePoint now,
                                 PassActions& actions) {
  Pass* pass = find(id);
  if (!pass) return;
  const auto leaving = pass->to_leave.find(receive);
  if (!pass->running || leaving == pass->to_leave.end()) {
    return failed(id, Error(Code::kInternal, "a gradient left that was not counted"), actions);
  }
  const int peer = leaving->second;
  pass->to_leave.erase(leaving);
  if (!pass->is_exact()) pass->contacted.insert(peer);
  actions.push_back(Send{peer, GradientHead{id, pass->terms_at(now), receive}});
  meet(*pass, peer, actions);
}

void PassProtocol::on(int from, const GradientHead& head, TimePoint now, PassActions& actions) {
  Pass* pass = find(head.pass);
  if (!pass && head.terms.mode == PassMode::kFast) {  // in the exact mode a question comes first
    pass = join(from, head.pass, head.terms, now, actions);
    if (!pass) return;
    const uint64_t token = next_token_++;
    pass->walks[token] = {.asker = from};
    actions.push_back(Walk{pass->id, pass->terms, token, false, true, {}});
  }
  if (!pass || !pass->come.insert(head.send).second) return;
  meet(*pass, from, actions);
  if (pass->is_exact()) {
    start(*pass, actions);  // it has overtaken the Go
  } else if (!pass->running) {
    pass->kept.push_back({from, head.send});
    actions.push_back(Keep{head.pass, head.send});
    return;
  }
  take(*pass, {from, head.send}, actions);
}

bool PassProtocol::take(Pass& pass, const Crossing& gradient, PassActions& actions) {
  const auto expected = pass.to_come.find(gradient.id);
  if (expected == pass.to_come.end() || expected->second != gradient.peer) {
    const Error why(Code::kCorrupt, "'" + name_of_(gradient.peer) + "' sent a gradient for send " +
                                        std::to_string(static_cast<uint64_t>(gradient.id)) +
                                        ", which waits for none");
    return failed(pass.id, why, actions), false;
  }
  pass.to_come.erase(expected);
  actions.push_back(Feed{pass.id, gradient.id});
  return true;
}

void PassProtocol::finished(const PassId& id, PassActions& actions) {
  Pass* pass = find(id);
  if (!pass || pass->finished) return;
  if (!pass->running || !pass->to_come.empty() || !pass->to_leave.empty()) {
    return failed(id, Error(Code::kInternal, "finished with gradients missing"), actions);
  }
  pass->finished = true;
  actions.push_back(Retire{id});
  std::vector<int> contacted(pass->contacted.begin(), pass->contacted.end());
  if (id.initiator == self_) return mark_done(*pass, self_, contacted, actions);
  tell(*pass, id.initiator, Done{id, std::move(contacted)}, actions);
  close(id);
}

void PassProtocol::on(int from, const Done& done, TimePoint, PassActions& actions) {
  if (done.pass.initiator != self_) return;
  if (Pass* pass = find(done.pass)) return mark_done(*pass, from, done.contacted, actions);
  const std::optional<Error> why = ended_.why(done.pass);
  if (!why) return;
  // It has failed. Those who joined through a worker that knew nothing of that hear it now.
  for (const int worker : done.contacted) {
    if (worker == self_) continue;
    actions.push_back(Send{worker, Abort{done.pass, *why}});
  }
}

void PassProtocol::mark_done(Pass& pass, int worker, const std::vector<int>& contacted,
                             PassActions& actions) {
  pass.done.insert(worker);
  for (const int further : contacted) {
    // A message to each that takes part, so that its loss is noticed here.
    if (pass.known.insert(further).second) tell(pass, further, Go{pass.id}, actions);
  }
  if (!std::includes(pass.done.begin(), pass.done.end(), pass.known.begin(), pass.known.end())) {
    return;
  }
  actions.push_back(Complete{pass.id, std::nullopt});
  close(pass.id);
}

void PassProtocol::failed(const PassId& id, Error why, PassActions& actions) {
  Pass* pass = find(id);
  if (!pass) return;
  if (why.worker().empty()) why.worker(name_of_(self_));
  fail(*pass, std::move(why), self_, actions);
}

void PassProtocol::on(int from, const Abort& abort, TimePoint now, PassActions& actions) {
  Pass* pass = find(abort.pass);
  if (!pass) {
    ended_.end(abort.pass, abort.why);  // messages of the pass may still be under way to us
  } else if (abort.why.code() == Code::kTimeout && pass->is_overdue(now)) {
    // What we wait for is nearer to who is late: those that the pass reached later end it later.
    fail(*pass, late(*pass), from, actions);
  } else {
    fail(*pass, abort.why, from, actions);
  }
}

// Ends the pass here and tells all who may not know, once: who hears it first tells it on.
void PassProtocol::fail(Pass& pass, Error why, int told_by, PassActions& actions) {
  if (why.operation().empty()) why.operation(dist_autograd::describe(pass.id));
  const PassId id = pass.id;
  std::set<int> others = pass.neighbours;
  others.insert(id.initiator);
  others.erase(self_);
  others.erase(told_by);
  if (!pass.finished) actions.push_back(Cancel{id, why});
  for (const int other : others) actions.push_back(Send{other, Abort{id, why}});
  if (id.initiator == self_) actions.push_back(Complete{id, why});
  close(id, std::move(why));
}

void PassProtocol::close(const PassId& pass, std::optional<Error> why) {
  const PassId id = pass;  // it may be the erased one's own
  ended_.end(id, std::move(why));
  passes_.erase(id.context);
}

void PassProtocol::peer_lost(int rank, const Error& why, PassActions& actions) {
  std::vector<Pass*> hit;
  for (const auto& [context, pass] : passes_) {
    if (pass->needs(rank)) hit.push_back(pass.get());
  }
  for (Pass* pass : hit) {
    Error error = why;
    if (error.worker().empty()) error.worker(name_of_(rank));
    fail(*pass, std::move(error), rank, actions);
  }
}

void PassProtocol::release(ContextId context, PassActions& actions) {
  if (const auto found = passes_.find(context); found != passes_.end()) {
    failed(found->second->id, Error(Code::kCancelled, "the context was released meanwhile"),
           actions);
  }
  ended_.release(context);
}

}  // namespace farspan::dist_autograd
