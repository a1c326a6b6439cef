// What the workers of the simulation do: the part of the room above the protocol.
#include <algorithm>

#include "rref/protocol_cluster.h"
#include "rref/protocol_simulation.h"

namespace farspan::rref::testing {

using Carrier = RRefProtocol::Carrier;

void Simulation::act() {
  Node* node = random_node();
  if (!node) return;
  const size_t dice = random_.below(100);
  if (dice < 20) {
    create(*node);
  } else if (dice < 60) {
    pass(*node);
  } else if (dice < 72) {
    fetch(*node);
  } else if (dice < 94) {
    if (!node->held.empty()) drop_one(*node, random_.below(node->held.size()));
  } else if (faults_ && dice < 96) {
    return crash(*node);
  } else if (faults_) {
    cut_off(node->run.rank, static_cast<int>(random_.below(nodes_.size())));
  }
  if (node->alive) step(*node);
}

void Simulation::create(Node& node) {
  if (random_.chance(0.15)) {
    const HandleId id = node.protocol->create_local("local");
    node.values.insert(id.rref);
    node.held.push_back({id});
    return;
  }
  const Node& owner = nodes_[random_.below(nodes_.size())];
  HandleId id;
  try {
    id = node.protocol->create(owner.run, "remote", now_);
  } catch (const Error&) {
    return;
  }
  ++counts_.created;
  note(name(node) + " asks " + name(owner) + " for " + to_text(id.rref));
  if (random_.chance(0.9)) {
    node.held.push_back({id});
  } else {
    node.protocol->drop(id, now_);  // started and forgotten
  }
  if (owner.run == node.run) {
    node.values.insert(id.rref);
    made(node, id.rref, [](Node&, bool) {});
    return;
  }
  Message request;
  request.kind = Kind::kCreate;
  request.from = node.run;
  request.to = owner.run;
  request.id = id;
  request.call = open_call(node, {Kind::kCreate, owner.run, id, {}}, 5s);
  send(std::move(request));
}

ForkData Simulation::fork(Node& node, const Held& held, WorkerRun to) {
  ForkData data = node.protocol->fork(held.id, to, now_);
  if (held.weak) weak_.insert(data.fork);
  note(name(node) + " passes " + to_text(data.rref) + " to w" + std::to_string(to.rank) + " as " +
       to_text(data.fork));
  ++counts_.passed;
  return data;
}

void Simulation::pass(Node& node) {
  if (node.held.empty()) return;
  const WorkerRun to = nodes_[random_.below(nodes_.size())].run;
  Message request;
  request.kind = Kind::kPass;
  request.from = node.run;
  request.to = to;
  const size_t count = 1 + random_.below(2);
  for (size_t i = 0; i < count && !node.held.empty(); ++i) {
    const size_t which = random_.below(node.held.size());
    try {
      request.forks.push_back(fork(node, node.held[which], to));
    } catch (const Error&) {
      continue;
    }
    if (random_.chance(0.4)) drop_one(node, which);
  }
  if (request.forks.empty()) return;
  request.call = open_call(node, {Kind::kPass, to, {}, request.forks}, 3s);
  send(std::move(request));
}

void Simulation::fetch(Node& node) {
  if (node.held.empty()) return;
  const HandleId id = node.held[random_.below(node.held.size())].id;
  if (id.at_owner()) {
    node.own_waits.insert(node.protocol->wait_value(node.run, id.rref, Deadline(now_ + 10s), now_));
    return;
  }
  if (node.protocol->failure_of(id)) return;
  Message request;
  request.kind = Kind::kFetch;
  request.from = node.run;
  request.to = id.rref.owner;
  request.id = id;
  request.call = open_call(node, {Kind::kFetch, id.rref.owner, id, {}}, 10s);
  send(std::move(request));
}

void Simulation::drop_one(Node& node, size_t which) {
  const Held held = node.held[which];
  node.held.erase(node.held.begin() + static_cast<std::ptrdiff_t>(which));
  drop(node, held);
}

void Simulation::drop(Node& node, const Held& held) {
  note(name(node) + " drops " + to_text(held.id.rref) + " " + to_text(held.id.fork));
  node.protocol->drop(held.id, now_);
}

// ---- callers ----

uint64_t Simulation::open_call(Node& node, Call call, Clock::duration timeout) {
  const uint64_t number = ++last_call_;
  node.calls.emplace(number, std::move(call));
  at(timeout, node, [this, number](Node& there) {
    if (there.calls.contains(number)) end_call(there, number, false);
  });
  return number;
}

void Simulation::end_call(Node& node, uint64_t number, bool ok) {
  const Call call = std::move(node.calls.at(number));
  node.calls.erase(number);
  counts_.failed_calls += !ok;
  if (call.kind == Kind::kCreate) {
    if (ok) {
      node.protocol->creation_done(call.id, now_);
    } else {
      node.protocol->creation_failed(call.id, Error(Code::kTimeout, "no answer"), now_);
    }
  }
  std::vector<ForkId> forks;
  for (const ForkData& data : call.forks) forks.push_back(data.fork);
  node.protocol->carrier_ended(call.to, forks, ok ? Carrier::kArrived : Carrier::kFailed, now_);
}

void Simulation::fail_calls_to(Node& node, WorkerRun lost) {
  std::vector<uint64_t> calls;
  for (const auto& [number, call] : node.calls) {
    if (call.to == lost) calls.push_back(number);
  }
  for (const uint64_t number : calls) end_call(node, number, false);
}

void Simulation::take_reply(Node& node, const Message& reply) {
  if (!node.calls.contains(reply.call)) {  // too late, or the second copy
    for (const ForkData& data : reply.forks) {
      ++counts_.declined;
      node.protocol->declined(reply.from, data, now_);
    }
    return;
  }
  for (const ForkData& data : reply.forks) take(node, reply, data, node.held);
  end_call(node, reply.call, reply.ok);
}

// ---- callees ----

void Simulation::reply(Node& node, WorkerRun to, uint64_t call, bool ok,
                       std::vector<ForkData> forks) {
  Message answer;
  answer.kind = Kind::kReply;
  answer.from = node.run;
  answer.to = to;
  answer.call = call;
  answer.ok = ok;
  answer.forks = std::move(forks);
  std::vector<ForkId> ids;
  for (const ForkData& data : answer.forks) {
    ids.push_back(data.fork);
    in_replies_.emplace(data.fork, data.rref);
  }
  node.protocol->carrier_ended(to, ids, Carrier::kArrived, now_);
  send(std::move(answer));
}

void Simulation::made(Node& node, const RRefId& id, std::function<void(Node&, bool)> then) {
  const bool fails = random_.chance(0.1);
  Micros delay = random_.up_to(Micros(100'000));
  if (random_.chance(0.1)) delay += random_.up_to(Micros(8'000'000));
  at(delay, node, [this, id, fails, then = std::move(then)](Node& there) {
    std::optional<Error> failure;
    if (fails) failure = Error(Code::kRemote, "it threw");
    note(name(there) + " has made " + to_text(id));
    there.protocol->value_set(id, failure, now_);
    then(there, !fails);
  });
}

void Simulation::serve_create(Node& node, const Message& request) {
  using Creation = RRefProtocol::Creation;
  switch (node.protocol->on_creation(request.from, request.id, "remote", now_)) {
    case Creation::kRun:
      note(name(node) + " makes " + to_text(request.id.rref));
      if (!run_.insert(request.id.rref).second) broken(to_text(request.id.rref) + " is made twice");
      node.values.insert(request.id.rref);
      made(node, request.id.rref,
           [this, to = request.from, call = request.call](Node& there, bool ok) {
             reply(there, to, call, ok);
           });
      break;
    case Creation::kDuplicate:
      ++counts_.duplicate_creations;
      break;
    case Creation::kGone:
      ++counts_.late_creations;
      break;
    case Creation::kRefused:
      reply(node, request.from, request.call, false);
      break;
  }
}

// A reference among what a message carries; false when it is refused.
bool Simulation::take(Node& node, const Message& message, const ForkData& data,
                      std::vector<Held>& into) {
  try {
    const bool again = arrived_.contains(data.fork);
    const bool at_hand = std::ranges::any_of(
        node.held, [&](const Held& held) { return held.id.fork == data.fork && !held.weak; });
    const HandleId id = node.protocol->received(message.from, data, now_);
    arrived_.insert(data.fork);
    note(name(node) + " receives " + to_text(data.fork) + (again ? " again" : ""));
    into.push_back({id, weak_.contains(data.fork) || (again && !at_hand && !id.at_owner())});
    return true;
  } catch (const Error& error) {
    counts_.taken_back += error.code() == Code::kCancelled;
    counts_.refused_released += error.code() == Code::kNotFound;
    note(name(node) + " does not take " + to_text(data.fork) + ": " + error.what());
    return false;
  }
}

void Simulation::serve_pass(Node& node, const Message& request) {
  Serving serving;
  serving.caller = request.from;
  serving.call = request.call;
  std::vector<HandleId> ids;
  for (const ForkData& data : request.forks) {
    if (!take(node, request, data, serving.handles)) {
      for (const Held& held : serving.handles) drop(node, held);
      return reply(node, request.from, request.call, false);
    }
    ids.push_back(serving.handles.back().id);
  }
  const WaitId wait = node.protocol->wait_confirmed(ids, Deadline(now_ + 60s), now_);
  for (const Held& held : serving.handles) node.held.push_back(held);
  node.serving.emplace(wait, std::move(serving));
}

void Simulation::serve_fetch(Node& node, const Message& request) {
  ++counts_.fetched;
  Serving serving;
  serving.fetch = true;
  serving.caller = request.from;
  serving.call = request.call;
  counts_.unborn += node.protocol->value(request.id.rref) == RRefProtocol::Value::kUnborn;
  const WaitId wait =
      node.protocol->wait_value(request.from, request.id.rref, Deadline(now_ + 10s), now_);
  node.serving.emplace(wait, std::move(serving));
}

void Simulation::wait_over(Node& node, const WaitResult& result) {
  if (node.own_waits.erase(result.id) > 0) return;
  const auto it = node.serving.find(result.id);
  if (it == node.serving.end()) return broken("a wait ended that nobody began");
  Serving serving = std::move(it->second);
  node.serving.erase(it);
  counts_.refused_released += result.error && result.error->code() == Code::kNotFound;
  if (serving.fetch) return reply(node, serving.caller, serving.call, !result.error);
  // The handles are held since they came, if nothing else took them meanwhile.
  if (result.error) {
    for (const Held& held : serving.handles) {
      const auto mine =
          std::ranges::find_if(node.held, [&](const Held& other) { return other.id == held.id; });
      if (mine != node.held.end()) drop_one(node, static_cast<size_t>(mine - node.held.begin()));
    }
    return reply(node, serving.caller, serving.call, false);
  }
  ++counts_.confirmed;
  run_function(node, std::move(serving));
}

// The user's function: it keeps some of its arguments, lets go of others, and returns one at times.
void Simulation::run_function(Node& node, Serving serving) {
  std::vector<ForkData> returned;
  for (const Held& held : serving.handles) {
    const auto mine =
        std::ranges::find_if(node.held, [&](const Held& other) { return other.id == held.id; });
    if (mine == node.held.end()) continue;
    if (acting_ && random_.chance(0.2)) {
      try {
        returned.push_back(fork(node, *mine, serving.caller));
      } catch (const Error&) {
      }
    }
    if (random_.chance(0.5)) drop_one(node, static_cast<size_t>(mine - node.held.begin()));
  }
  reply(node, serving.caller, serving.call, true, std::move(returned));
}

}  // namespace farspan::rref::testing
