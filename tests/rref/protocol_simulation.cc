// The world of the simulation: time, network, deaths, and the rules that must hold.
#include "rref/protocol_simulation.h"

#include <algorithm>
#include <sstream>

#include "rref/protocol_cluster.h"

namespace farspan::rref::testing {
namespace {

std::pair<int, int> pair_of(int a, int b) { return std::minmax(a, b); }

ProtocolOptions options_for(WorkerRun self) {
  ProtocolOptions options;
  options.self = self;
  options.lease = 20s;
  options.fork_timeout = 10s;
  options.confirm_timeout = 15s;
  options.first_retry = 100ms;
  options.last_retry = 1s;
  options.window = 8;
  return options;
}

}  // namespace

Simulation::Simulation(uint64_t seed, bool keep_trace) : random_(seed), keep_trace_(keep_trace) {
  const double rates[] = {0, 0.02, 0.2};
  loss_ = rates[random_.below(3)];
  doubling_ = rates[random_.below(3)];
  faults_ = random_.chance(0.5);
  nodes_.resize(2 + random_.below(4));
  for (size_t rank = 0; rank < nodes_.size(); ++rank) {
    start(nodes_[rank], static_cast<int>(rank), ++last_instance_);
  }
  for (Node& node : nodes_) {
    for (const Node& other : nodes_) {
      if (&other == &node || random_.chance(0.3)) continue;  // the others meet by their messages
      node.protocol->on_peer_joined(other.run, name(other), now_);
    }
  }
}

void Simulation::start(Node& node, int rank, uint64_t instance) {
  node = Node();
  node.run = {rank, instance};
  node.protocol = std::make_unique<RRefProtocol>(options_for(node.run));
}

std::string Simulation::run() {
  const size_t actions = 20 + random_.below(100);
  for (size_t i = 0; i < actions && broken_.empty(); ++i) {
    act();
    run_events(now_ + random_.up_to(Micros(300'000)));
  }
  acting_ = false;
  if (!broken_.empty()) return broken_;
  const std::string left = finish();
  return broken_.empty() ? left : broken_;
}

void Simulation::at(Clock::duration delay, std::function<void()> event) {
  events_.emplace(std::pair(now_ + delay, ++last_event_), std::move(event));
}

void Simulation::at(Clock::duration delay, const Node& node, std::function<void(Node&)> event) {
  at(delay, [this, run = node.run, event = std::move(event)] {
    if (Node* there = node_of(run)) {
      event(*there);
      if (there->alive) step(*there);
    }
  });
}

void Simulation::run_events(TimePoint until) {
  while (!events_.empty() && events_.begin()->first.first <= until && broken_.empty()) {
    now_ = events_.begin()->first.first;
    const auto event = std::move(events_.begin()->second);
    events_.erase(events_.begin());
    event();
  }
  now_ = std::max(now_, until);
}

Simulation::Node* Simulation::node_of(WorkerRun run) {
  Node& node = nodes_[static_cast<size_t>(run.rank)];
  return node.alive && node.run == run ? &node : nullptr;
}

Simulation::Node* Simulation::random_node() {
  Node& node = nodes_[random_.below(nodes_.size())];
  return node.alive ? &node : nullptr;
}

void Simulation::send(Message message) {
  const auto deliver = [this](Message one) {
    // Mostly soon; sometimes so late that others give it up, or overtake it.
    Micros delay = random_.up_to(Micros(20'000));
    if (random_.chance(0.03)) delay += random_.up_to(Micros(4'000'000));
    at(delay, [this, one = std::move(one)] { arrive(one); });
  };
  Node* sender = node_of(message.from);
  if (sender && !nodes_[static_cast<size_t>(message.to.rank)].alive) {
    // Nobody answers there; those who began after its death have not heard of it.
    if (random_.chance(0.3)) tell_lost(*sender, message.to, RRefProtocol::Loss::kUnreachable);
  }
  const bool cut = cut_.contains(pair_of(message.from.rank, message.to.rank));
  const bool lost = message.from.rank != message.to.rank && (cut || random_.chance(loss_));
  if (lost) {
    ++counts_.lost;
    if (message.kind == Kind::kReply) {
      for (const ForkData& data : message.forks) in_replies_.erase(data.fork);
    }
    return;
  }
  if (random_.chance(doubling_)) {
    ++counts_.doubled;
    deliver(message);
  }
  deliver(std::move(message));
}

void Simulation::arrive(const Message& message) {
  if (message.kind == Kind::kReply) {
    for (const ForkData& data : message.forks) in_replies_.erase(data.fork);
  }
  Node& node = nodes_[static_cast<size_t>(message.to.rank)];
  if (!node.alive) return;
  if (message.kind == Kind::kControl) {
    node.protocol->on_control(message.frame, now_);
  } else if (message.to == node.run) {
    switch (message.kind) {
      case Kind::kCreate:
        serve_create(node, message);
        break;
      case Kind::kPass:
        serve_pass(node, message);
        break;
      case Kind::kFetch:
        serve_fetch(node, message);
        break;
      case Kind::kReply:
      case Kind::kControl:
        take_reply(node, message);
        break;
    }
  }
  step(node);
}

void Simulation::step(Node& node) {
  for (;;) {
    Outbox out = node.protocol->take();
    for (ControlFrame& frame : out.frames) {
      counts_.fences += frame.fence;
      Message message;
      message.from = node.run;
      message.to = frame.to;
      message.frame = std::move(frame);
      send(std::move(message));
    }
    for (const RRefId& id : out.releases) released(node, id);
    for (const WaitResult& result : out.results) wait_over(node, result);
    if (out.drained) {
      node.drained = std::move(out.drained);
      note(name(node) + " has drained");
      for (Node& other : nodes_) {  // they hear its goodbye
        if (other.alive && &other != &node) tell_lost(other, node.run, RRefProtocol::Loss::kEnded);
      }
    }
    if (out.results.empty()) break;
  }
  const TimePoint next = node.protocol->wake_at().at();
  if (next >= node.alarm || next == TimePoint::max()) return;
  node.alarm = next;
  at(std::max(next - now_, Clock::duration::zero()), node, [this, next](Node& there) {
    if (there.alarm == next) there.alarm = TimePoint::max();
    there.protocol->on_timer(now_);
  });
}

void Simulation::released(Node& node, const RRefId& id) {
  ++counts_.released;
  note(name(node) + " releases " + to_text(id));
  if (node.values.erase(id) == 0) broken(to_text(id) + " was released, but is not there");
  if (!node.protocol->drained()) check_unused(node, id);
}

// ---- faults ----

void Simulation::tell_lost(Node& node, WorkerRun lost, RRefProtocol::Loss loss) {
  at(random_.up_to(Micros(2'000'000)), node, [this, lost, loss](Node& there) {
    note(name(there) + " loses w" + std::to_string(lost.rank));
    there.protocol->on_peer_lost(lost, loss, now_);
    fail_calls_to(there, lost);
  });
}

void Simulation::crash(Node& node) {
  note(name(node) + " dies");
  ++counts_.crashes;
  disturbed_ = true;
  node.alive = false;
  node.held.clear();
  for (Node& other : nodes_) {
    if (!other.alive) continue;
    const bool certain = random_.chance(0.5);
    tell_lost(other, node.run,
              certain ? RRefProtocol::Loss::kEnded : RRefProtocol::Loss::kUnreachable);
  }
  if (random_.chance(0.7)) {
    at(random_.up_to(Micros(40'000'000)), [this, rank = node.run.rank] { restart(rank); });
  }
}

void Simulation::restart(int rank) {
  Node& node = nodes_[static_cast<size_t>(rank)];
  start(node, rank, ++last_instance_);
  note(name(node) + " is back");
  for (Node& other : nodes_) {
    if (!other.alive || &other == &node) continue;
    node.protocol->on_peer_joined(other.run, name(other), now_);
    at(random_.up_to(Micros(500'000)), other, [this, run = node.run](Node& there) {
      there.protocol->on_peer_joined(run, "w" + std::to_string(run.rank), now_);
    });
  }
  step(node);
}

void Simulation::cut_off(int a, int b) {
  if (a == b || !cut_.insert(pair_of(a, b)).second) return;
  ++counts_.cuts;
  const bool long_one = random_.chance(0.3) || !ever_cut_.insert(pair_of(a, b)).second;
  note("w" + std::to_string(a) + " and w" + std::to_string(b) + " are cut off");
  if (long_one) {
    disturbed_ = true;
    apart_.insert(pair_of(a, b));
  }
  for (const auto& [at_rank, lost] : {std::pair(a, b), std::pair(b, a)}) {
    Node& node = nodes_[static_cast<size_t>(at_rank)];
    // Not always noticed.
    if (!node.alive || random_.chance(0.3)) continue;
    tell_lost(node, nodes_[static_cast<size_t>(lost)].run, RRefProtocol::Loss::kUnreachable);
  }
  const Micros most = long_one ? Micros(60'000'000) : Micros(4'000'000);
  at(random_.up_to(most), [this, a, b] { heal(a, b); });
}

void Simulation::heal(int a, int b) {
  if (cut_.erase(pair_of(a, b)) == 0) return;
  note("w" + std::to_string(a) + " and w" + std::to_string(b) + " see each other");
  Node &one = nodes_[static_cast<size_t>(a)], &two = nodes_[static_cast<size_t>(b)];
  if (!one.alive || !two.alive || random_.chance(0.5)) return;
  one.protocol->on_peer_joined(two.run, name(two), now_);
  two.protocol->on_peer_joined(one.run, name(one), now_);
  step(one);
  step(two);
}

// ---- the rules ----

void Simulation::broken(std::string rule) {
  if (broken_.empty()) broken_ = std::move(rule);
  note("BROKEN: " + broken_);
}

// A promise may be broken only to those who were out of reach, or by a death.
bool Simulation::excused(const Node& owner, const Node& holder, const Held& held) const {
  if (held.id.at_owner()) return false;
  if (held.weak || holder.protocol->failure_of(held.id)) return true;
  if (holder.protocol->confirmed(held.id)) {
    return apart_.contains(pair_of(owner.run.rank, holder.run.rank));
  }
  return disturbed_;
}

// `id` is being released by its owner: nobody may have a handle that is good.
void Simulation::check_unused(const Node& owner, const RRefId& id) {
  for (const Node& node : nodes_) {
    if (!node.alive) continue;
    for (const Held& held : node.held) {
      if (held.id.rref == id && !excused(owner, node, held)) {
        broken(to_text(id) + " was released while " + name(node) + " holds " +
               to_text(held.id.fork));
      }
    }
    for (const auto& [number, call] : node.calls) {
      for (const ForkData& data : call.forks) {
        if (data.rref == id && !arrived_.contains(data.fork) && !weak_.contains(data.fork) &&
            !disturbed_) {
          broken(to_text(id) + " was released while " + to_text(data.fork) +
                 " is under way in a call of " + name(node));
        }
      }
    }
  }
  if (disturbed_) return;
  for (const auto& [fork, rref] : in_replies_) {
    if (rref == id && !weak_.contains(fork)) {
      broken(to_text(id) + " was released while " + to_text(fork) + " is under way in an answer");
    }
  }
}

// The network heals, calls end, and then everything is dropped, by hand or by drain().
std::string Simulation::finish() {
  for (size_t a = 0; a < nodes_.size(); ++a) {
    for (size_t b = a; b < nodes_.size(); ++b) heal(static_cast<int>(a), static_cast<int>(b));
  }
  run_events(now_ + 60s);  // the longest timeouts, and the restarts that are due
  loss_ = std::min(loss_, 0.05);
  const bool drain = random_.chance(0.5);
  for (Node& node : nodes_) {
    if (!node.alive) continue;
    if (drain) {
      node.protocol->drain(Deadline(now_ + 5min), now_);
      node.held.clear();
    }
    while (!node.held.empty()) drop_one(node, node.held.size() - 1);
    step(node);
    run_events(now_ + random_.up_to(Micros(2'000'000)));
  }
  run_events(now_ + 10min);
  std::string left = left_behind();
  if (!left.empty() && disturbed_ && !drain) {
    // Those who did not notice that they were cut off are told, but seldom.
    run_events(now_ + 24h);
    left = left_behind();
  }
  return left;
}

std::string Simulation::left_behind() {
  std::ostringstream left;
  for (const Node& node : nodes_) {
    if (!node.alive) continue;
    const Counters c = node.protocol->counters();
    if (c.owned + c.forks + c.users + c.pending_users + c.unborn + c.pending_children + c.waits +
            c.unacknowledged + c.taken_back + node.values.size() + node.calls.size() +
            node.serving.size() + node.own_waits.size() >
        0) {
      left << name(node) << " is left with " << c << ", values " << node.values.size() << ", calls "
           << node.calls.size() << ", served " << node.serving.size() << "; ";
    }
    if (node.drained && !node.drained->clean) {
      left << name(node) << " did not drain: " << node.drained->leak_count << " leaks, unheard "
           << node.drained->unheard << "; ";
    }
  }
  return left.str();
}

}  // namespace farspan::rref::testing
