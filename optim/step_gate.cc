#include <farspan/optim/step_gate.h>

#include <algorithm>
#include <utility>

namespace farspan::optim {
namespace {

bool overlap(const std::set<int>& a, const std::set<int>& b) {
  return std::any_of(a.begin(), a.end(), [&](int owner) { return b.count(owner) > 0; });
}

}  // namespace

StepGate::Context& StepGate::know(ContextId context, Ticket age, TimePoint now) {
  return contexts_.try_emplace(context, Context{age, now, {}, 0}).first->second;
}

void StepGate::forget_if_gone(ContextId context) {
  const auto found = contexts_.find(context);
  if (found == contexts_.end()) return;
  if (found->second.inside.empty() && found->second.waiting == 0) contexts_.erase(found);
}

Ticket StepGate::enter(ContextId context, int owner, TimePoint now, GateActions& actions) {
  const Ticket ticket = next_++;
  Context& known = know(context, ticket, now);
  if (known.inside.count(owner) > 0) {
    actions.push_back(Granted{ticket, 0});
    return ticket;
  }
  ++known.waiting;
  entries_.emplace(ticket, Entry{context, owner, now});
  advance(actions);
  return ticket;
}

void StepGate::adopt(ContextId context, int owner, TimePoint now) {
  know(context, next_++, now).inside.insert(owner);
}

template <class Which>
void StepGate::refuse_entries(Which which, const Error& why, GateActions& actions) {
  for (auto at = entries_.begin(); at != entries_.end();) {
    if (!which(at->second)) {
      ++at;
      continue;
    }
    const ContextId context = at->second.context;
    actions.push_back(Refused{at->first, why});
    at = entries_.erase(at);
    --contexts_.at(context).waiting;
    forget_if_gone(context);
  }
}

void StepGate::leave(ContextId context, int owner, GateActions& actions) {
  refuse_entries([&](const Entry& e) { return e.context == context && e.owner == owner; },
                 Error(Code::kCancelled, text(context) + " has ended"), actions);
  const auto found = contexts_.find(context);
  if (found == contexts_.end()) return;
  found->second.inside.erase(owner);
  forget_if_gone(context);
  advance(actions);
}

Ticket StepGate::request_step(ContextId context, int trainer, std::set<int> owners, TimePoint now,
                              GateActions& actions) {
  const auto found = contexts_.find(context);
  if (found != contexts_.end()) {
    found->second.inside.clear();
    forget_if_gone(context);
  }
  const Ticket ticket = next_++;
  steps_.emplace(ticket, Step{context, trainer, std::move(owners), now});
  advance(actions);
  return ticket;
}

void StepGate::step_done(Ticket step, GateActions& actions) {
  if (steps_.erase(step) > 0) advance(actions);
}

void StepGate::abandon(Steps::value_type& step, int lost, GateActions& actions) {
  auto& [ticket, what] = step;
  if (what.abandoned) return;
  what.abandoned = true;
  for (const int owner : what.owners) {
    if (owner == lost) continue;
    what.fenced.insert(owner);
    actions.push_back(Fence{ticket, owner, what.number});
  }
}

void StepGate::abandon_step(Ticket step, GateActions& actions) {
  const auto found = steps_.find(step);
  if (found == steps_.end()) return;
  if (!found->second.granted()) return step_done(step, actions);
  abandon(*found, /*lost=*/-1, actions);
}

void StepGate::part_ended(Ticket step, int owner, GateActions& actions) {
  const auto found = steps_.find(step);
  if (found == steps_.end() || found->second.fenced.erase(owner) == 0) return;
  if (found->second.fenced.empty()) step_done(step, actions);
}

// A step that waits holds up only contexts younger than itself, and itself waits only for what is
// older. So no circle of waiting can close, however calls, contexts and owners meet.
bool StepGate::holds_up(Ticket ticket, const Step& step, const Entry& entry) const {
  if (step.owners.count(entry.owner) == 0) return false;
  return step.granted() || ticket < contexts_.at(entry.context).age;
}

bool StepGate::admit_entries(GateActions& actions) {
  bool any = false;
  for (auto at = entries_.begin(); at != entries_.end();) {
    const Entry& entry = at->second;
    const bool waits = std::any_of(steps_.begin(), steps_.end(), [&](const auto& step) {
      return holds_up(step.first, step.second, entry);
    });
    if (waits) {
      ++at;
      continue;
    }
    Context& context = contexts_.at(entry.context);
    context.inside.insert(entry.owner);
    --context.waiting;
    actions.push_back(Granted{at->first, 0});
    at = entries_.erase(at);
    any = true;
  }
  return any;
}

bool StepGate::may_go(Ticket ticket, const Step& step) const {
  for (const auto& [earlier, other] : steps_) {
    if (earlier < ticket && overlap(other.owners, step.owners)) return false;
  }
  for (const auto& [id, context] : contexts_) {
    if (overlap(context.inside, step.owners)) return false;
  }
  // Contexts that came before it and wait for another step go first, or they might wait for ever.
  return std::none_of(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return step.owners.count(entry.second.owner) > 0 &&
           contexts_.at(entry.second.context).age < ticket;
  });
}

bool StepGate::grant_steps(GateActions& actions) {
  bool any = false;
  for (auto& [ticket, step] : steps_) {
    if (step.granted() || !may_go(ticket, step)) continue;
    step.number = ++granted_;
    any = true;
    actions.push_back(Granted{ticket, step.number});
  }
  return any;
}

void StepGate::advance(GateActions& actions) {
  while (admit_entries(actions) || grant_steps(actions)) {
  }
}

std::string StepGate::text(ContextId context) const {
  return "context " + std::to_string(number_of(context)) + " of worker '" +
         name_of_(maker_of(context)) + "'";
}

std::string StepGate::state(const Step& step) const {
  if (!step.granted()) return "waits, too";
  if (!step.abandoned) return "is being applied";
  std::string owners;
  for (const int owner : step.fenced) {
    owners += (owners.empty() ? "'" : ", '") + name_of_(owner) + "'";
  }
  return "its trainer has given up, but " + owners + " may still be applying";
}

std::string StepGate::holders(Ticket ticket, const Step& step, TimePoint now) const {
  std::vector<std::string> all;
  for (const auto& [id, context] : contexts_) {
    std::string where;
    for (const int owner : context.inside) {
      if (step.owners.count(owner) == 0) continue;
      where += (where.empty() ? "" : ", ") + ("'" + name_of_(owner) + "'");
    }
    if (where.empty()) continue;
    all.push_back(text(id) + " (which began " + describe(now - context.since) +
                  " ago and has called " + where + ")");
  }
  for (const auto& [earlier, other] : steps_) {
    if (earlier >= ticket || !overlap(other.owners, step.owners)) continue;
    all.push_back("the step of " + text(other.context) + " (which " + state(other) + ")");
  }
  std::string joined;
  for (const std::string& one : all) joined += (joined.empty() ? "" : ", ") + one;
  return joined.empty() ? "nothing any more" : joined;
}

void StepGate::expire(Ticket ticket, TimePoint now, GateActions& actions) {
  if (const auto entry = entries_.find(ticket); entry != entries_.end()) {
    std::string message = "waited to use the parameters of worker '" +
                          name_of_(entry->second.owner) + "' in " + text(entry->second.context);
    for (const auto& [step, what] : steps_) {
      if (!holds_up(step, what, entry->second)) continue;
      message += "; the step of " + text(what.context) + " is first, which " +
                 (what.granted() ? state(what) : "waits for " + holders(step, what, now));
    }
    const Error why = Error(Code::kTimeout, message)
                          .operation("consistent step")
                          .elapsed(now - entry->second.asked)
                          .advice("end each Context, or step, soon after its backward()");
    const ContextId context = entry->second.context;
    entries_.erase(entry);
    --contexts_.at(context).waiting;
    forget_if_gone(context);
    actions.push_back(Refused{ticket, why});
    return advance(actions);
  }
  const auto step = steps_.find(ticket);
  if (step == steps_.end() || step->second.granted()) return;
  const Error why =
      Error(Code::kTimeout, "waited for " + holders(ticket, step->second, now))
          .operation("consistent step")
          .elapsed(now - step->second.asked)
          .advice("end each Context, or step, soon after its backward(), or give step() more time");
  steps_.erase(step);
  actions.push_back(Refused{ticket, why});
  advance(actions);
}

void StepGate::lose_worker(int rank, const Error& why, GateActions& actions) {
  refuse_entries([&](const Entry& e) { return e.owner == rank || maker_of(e.context) == rank; },
                 why, actions);
  for (auto at = contexts_.begin(); at != contexts_.end();) {
    at->second.inside.erase(rank);
    if (maker_of(at->first) == rank) at->second.inside.clear();
    const bool gone = at->second.inside.empty() && at->second.waiting == 0;
    at = gone ? contexts_.erase(at) : std::next(at);
  }
  for (auto at = steps_.begin(); at != steps_.end();) {
    Step& step = at->second;
    const bool its_own = step.trainer == rank;
    if (its_own && step.granted()) abandon(*at, rank, actions);
    step.fenced.erase(rank);
    const bool waits = its_own && !step.granted();
    if (waits) actions.push_back(Refused{at->first, why});
    const bool over = waits || (step.abandoned && step.fenced.empty());
    at = over ? steps_.erase(at) : std::next(at);
  }
  advance(actions);
}

}  // namespace farspan::optim
