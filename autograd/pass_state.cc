#include <farspan/autograd/pass_state.h>

namespace farspan::dist_autograd {
namespace {

std::string names(const std::set<int>& workers, const std::function<std::string(int)>& name_of) {
  std::string text;
  for (const int worker : workers) {
    if (!text.empty()) text += ", ";
    text += '\'' + name_of(worker) + '\'';
  }
  return text;
}

std::set<int> peers_of(const std::map<SendId, int>& gradients) {
  std::set<int> peers;
  for (const auto& [send, peer] : gradients) peers.insert(peer);
  return peers;
}

}  // namespace

PassTerms Pass::terms_at(TimePoint now) const {
  PassTerms result = terms;
  result.remaining = Deadline(deadline).remaining(now);
  return result;
}

bool Pass::needs(int rank) const {
  if (rank == id.initiator) return true;
  if (!running) return neighbours.count(rank) != 0;
  if (known.count(rank) != 0 && done.count(rank) == 0) return true;
  return peers_of(to_come).count(rank) != 0 || peers_of(to_leave).count(rank) != 0;
}

std::string Pass::describe(const std::function<std::string(int)>& name_of) const {
  std::string text = is_exact() ? "exact " : "fast ";
  text += dist_autograd::describe(id);
  if (!running) {
    std::set<int> silent;
    for (const auto& [question, to] : asked) silent.insert(to.peer);
    text += ", counting: waits for ";
    if (!silent.empty()) return text + "answers of " + names(silent, name_of);
    return text + (walks.empty() ? "the go of " + names({id.initiator}, name_of) : "its own walk");
  }
  text += ", running: ";
  if (finished) {
    std::set<int> missing;
    for (const int worker : known) {
      if (done.count(worker) == 0) missing.insert(worker);
    }
    return text + "waits for the end at " + names(missing, name_of);
  }
  if (to_come.empty()) return text + "waits for its own nodes";
  return text + "waits for " + std::to_string(to_come.size()) + " gradients from " +
         names(peers_of(to_come), name_of);
}

std::string describe(const PassId& pass) {
  return "backward pass " + std::to_string(pass.number) + " of context " +
         std::to_string(static_cast<uint64_t>(pass.context));
}

}  // namespace farspan::dist_autograd
