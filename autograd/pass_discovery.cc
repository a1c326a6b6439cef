// The exact mode's first half: questions walk the graph, answers come back along the tree that the
// questions made.
#include <utility>

#include <farspan/autograd/pass_protocol.h>
#include <farspan/autograd/pass_state.h>

namespace farspan::dist_autograd {

void PassProtocol::on(int from, const Question& question, TimePoint now, PassActions& actions) {
  Pass* pass = join(from, question.pass, question.terms, now, actions);
  if (!pass || !pass->questions_seen.emplace(from, question.id).second) return;
  meet(*pass, from, actions);
  bool is_new = !pass->running;
  for (const SendId send : question.sends) {
    is_new = pass->to_come.emplace(send, from).second && is_new;
  }
  if (!is_new) {
    const Error why(Code::kCorrupt,
                    "'" + name_of_(from) + "' asked about a send twice or too late");
    return fail(*pass, why, self_, actions);
  }
  const uint64_t token = next_token_++;
  pass->walks[token] = {.asker = from, .question = question.id};
  actions.push_back(Walk{pass->id, pass->terms, token, false, false, question.sends});
}

void PassProtocol::walked(const PassId& id, uint64_t token, const Walked& found, TimePoint now,
                          PassActions& actions) {
  Pass* pass = find(id);
  if (!pass || pass->walks.count(token) == 0) return;
  for (const Crossing& receive : found.receives) pass->to_leave[receive.id] = receive.peer;
  if (pass->is_exact()) {
    ask_on(*pass, token, found.receives, now, actions);
    return settle(now, actions);
  }
  pass->walks.erase(token);
  for (const Crossing& send : found.sends) pass->to_come[send.id] = send.peer;
  start(*pass, actions);
  for (const Crossing& early : std::exchange(pass->kept, {})) {
    if (!take(*pass, early, actions)) return;
  }
}

// Asks on from all receives that the walk has reached, one question for each worker.
void PassProtocol::ask_on(Pass& pass, uint64_t token, const std::vector<Crossing>& receives,
                          TimePoint now, PassActions& actions) {
  std::map<int, Question> questions;
  for (const Crossing& receive : receives) questions[receive.peer].sends.push_back(receive.id);
  pass.walks[token].unanswered = questions.size();
  for (auto& [peer, question] : questions) {
    question.pass = pass.id;
    question.terms = pass.terms_at(now);
    question.id = next_token_++;
    pass.asked[question.id] = {token, peer};
    tell(pass, peer, std::move(question), actions);
  }
  if (questions.empty()) answer(pass, token, actions);
}

void PassProtocol::on(int from, const Answer& got, TimePoint, PassActions& actions) {
  Pass* pass = find(got.pass);
  if (!pass) return;
  const auto asked = pass->asked.find(got.question);
  if (asked == pass->asked.end() || asked->second.peer != from) return;
  const uint64_t token = asked->second.token;
  pass->asked.erase(asked);
  Pass::OpenWalk& walk = pass->walks[token];
  walk.workers.insert(got.workers.begin(), got.workers.end());
  if (--walk.unanswered == 0) answer(*pass, token, actions);
}

// All that the walk has caused is counted.
void PassProtocol::answer(Pass& pass, uint64_t token, PassActions& actions) {
  Pass::OpenWalk walk = std::move(pass.walks[token]);
  pass.walks.erase(token);
  walk.workers.insert(self_);
  if (walk.asker != Pass::kRoots) {
    std::vector<int> workers(walk.workers.begin(), walk.workers.end());
    return tell(pass, walk.asker, Answer{pass.id, walk.question, std::move(workers)}, actions);
  }
  pass.known = std::move(walk.workers);
  for (const int worker : pass.known) {
    if (worker != self_) tell(pass, worker, Go{pass.id}, actions);
  }
  start(pass, actions);
}

void PassProtocol::on(int, const Go& go, TimePoint, PassActions& actions) {
  Pass* pass = find(go.pass);
  if (pass && pass->is_exact()) start(*pass, actions);
}

}  // namespace farspan::dist_autograd
