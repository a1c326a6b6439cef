// N workers' PassProtocols over a network that delivers in any order, with faults, from a seed.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "autograd/pass_graph.h"

namespace farspan::testing {

using dist_autograd::ContextId;
using dist_autograd::PassActions;
using dist_autograd::PassId;
using dist_autograd::PassMode;
using dist_autograd::PassProtocol;
using dist_autograd::SendId;

struct PassFaults {
  double duplicates = 0;    // chance that a message comes twice
  double failing_node = 0;  // chance that running a node throws
  double failing_walk = 0;  // chance that a walk throws
  double loss = 0;          // chance that a message is lost and nobody notices
};

// Threading: none. Nothing happens but in step().
class PassSimulator {
 public:
  struct Outcome {
    PassId pass;
    std::optional<Error> error;
  };

  PassSimulator(uint64_t seed, int workers, PassFaults faults = {})
      : random(seed), faults_(faults) {
    for (int rank = 0; rank < workers; ++rank) {
      workers_.push_back(std::make_unique<Worker>(rank));
    }
  }

  void add_context(ContextId context, const ModelGraph* graph) { graphs_[context] = graph; }

  PassId begin(ContextId context, int initiator, const std::vector<size_t>& roots,
               PassMode mode = PassMode::kExact, Deadline deadline = Deadline::never()) {
    PassActions actions;
    const PassId pass = at(initiator).protocol.begin(context, mode, true, deadline, now, actions);
    roots_[pass] = roots;
    perform(initiator, actions);
    return pass;
  }

  // Does one thing that can be done, chosen by the seed; false when there is none.
  bool step() {
    std::vector<std::pair<int, PassId>> runnable;
    for (const auto& worker : workers_) {
      for (const auto& [pass, executor] : worker->executors) {
        if (executor.can_run() || executor.is_finished()) runnable.push_back({worker->rank, pass});
      }
    }
    const size_t choices = network_.size() + todo_.size() + runnable.size();
    if (choices == 0) return false;
    size_t choice = pick(random, choices);
    if (choice < network_.size()) return deliver(choice), true;
    choice -= network_.size();
    if (choice < todo_.size()) {
      std::swap(todo_[choice], todo_.back());
      const std::function<void()> act = std::move(todo_.back());
      todo_.pop_back();
      return act(), true;
    }
    const auto [rank, pass] = runnable[choice - todo_.size()];
    return run(rank, pass), true;
  }

  // Lets the time of the earliest timer come; false when none is armed.
  bool next_timer() {
    if (timers_.empty()) return false;
    const auto [when, timer] = *timers_.begin();
    timers_.erase(timers_.begin());
    now = std::max(now, when);
    if (at(timer.first).dead) return true;
    PassActions actions;
    at(timer.first).protocol.timer(timer.second, now, actions);
    perform(timer.first, actions);
    return true;
  }

  // A worker dies. Those that have ever written to it, or it to them, notice some time later.
  void kill(int rank) {
    at(rank).dead = true;
    at(rank).executors.clear();
    at(rank).kept.clear();
    std::erase_if(network_, [&](const Mail& mail) {
      return mail.to == rank || (mail.from == rank && chance(random, 0.5));
    });
    for (const auto& worker : workers_) {
      if (links_.count({worker->rank, rank}) != 0) notice_loss(worker->rank, rank);
    }
  }

  void release(ContextId context, int rank) {
    if (at(rank).dead) return;
    PassActions actions;
    at(rank).protocol.release(context, actions);
    perform(rank, actions);
  }

  bool is_dead(int rank) { return at(rank).dead; }

  // What is left of a pass in any living worker; empty when all is clean.
  std::string leftovers() const {
    std::string text;
    for (const auto& worker : workers_) {
      if (worker->dead) continue;
      const std::string who = "worker " + std::to_string(worker->rank) + ": ";
      if (worker->protocol.active() != 0) text += who + worker->protocol.describe();
      if (!worker->executors.empty()) text += who + "an executor\n";
      if (!worker->kept.empty()) text += who + "tensors kept\n";
    }
    return text;
  }

  Random random;
  TimePoint now{std::chrono::hours(1)};
  std::vector<Outcome> outcomes;
  std::map<PassId, std::map<size_t, uint64_t>> gradients;  // of nodes that have run
  size_t messages = 0;

 private:
  struct Worker {
    explicit Worker(int r)
        : rank(r), protocol(r, [](int other) { return "w" + std::to_string(other); }) {}
    int rank;
    bool dead = false;
    PassProtocol protocol;
    std::map<PassId, ModelExecutor> executors;
    std::map<std::pair<PassId, SendId>, uint64_t> kept;
  };
  struct Mail {
    int from, to;
    dist_autograd::PassMessage message;
    uint64_t gradient;
  };

  Worker& at(int rank) { return *workers_[static_cast<size_t>(rank)]; }

  void notice_loss(int rank, int lost) {
    todo_.push_back([this, rank, lost] {
      if (at(rank).dead) return;
      PassActions actions;
      at(rank).protocol.peer_lost(lost, Error(Code::kDisconnected, "the worker is gone"), actions);
      perform(rank, actions);
    });
  }

  void deliver(size_t index) {
    std::swap(network_[index], network_.back());
    const Mail mail = network_.back();
    if (!chance(random, faults_.duplicates)) network_.pop_back();
    if (at(mail.to).dead || chance(random, faults_.loss)) return;
    PassActions actions;
    at(mail.to).protocol.received(mail.from, mail.message, now, actions);
    perform(mail.to, actions, mail.gradient);
  }

  void run(int rank, const PassId pass) {
    ModelExecutor& executor = at(rank).executors.at(pass);
    PassActions actions;
    uint64_t gradient = 0;
    if (!executor.can_run()) {
      at(rank).protocol.finished(pass, actions);
    } else if (chance(random, faults_.failing_node)) {
      at(rank).protocol.failed(pass, Error(Code::kRemote, "a node has failed"), actions);
    } else {
      const size_t node = executor.run(random);
      gradient = executor.sum(node);
      EXPECT_TRUE(gradients[pass].emplace(node, gradient).second)
          << "node " << node << " ran twice";
      const ModelNode& model = graphs_.at(pass.context)->nodes[node];
      if (model.is_receive) at(rank).protocol.gradient_left(pass, model.send, now, actions);
    }
    perform(rank, actions, gradient);
  }

  // `gradient`: what came with the message, or what has left the executor.
  void perform(int rank, const PassActions& actions, uint64_t gradient = 0) {
    for (const auto& action : actions) {
      std::visit([&](const auto& act) { this->act(rank, act, gradient); }, action);
    }
  }

  void act(int rank, const dist_autograd::Walk& walk, uint64_t) {
    at(rank).executors.try_emplace(walk.pass, *graphs_.at(walk.pass.context), rank);
    todo_.push_back([this, rank, walk] { do_walk(rank, walk); });
  }

  void do_walk(int rank, const dist_autograd::Walk& walk) {
    const auto executor = at(rank).executors.find(walk.pass);
    if (executor == at(rank).executors.end()) return;  // cancelled
    const ModelGraph& graph = *graphs_.at(walk.pass.context);
    PassActions actions;
    if (chance(random, faults_.failing_walk)) {
      at(rank).protocol.failed(walk.pass, Error(Code::kNotFound, "no such send"), actions);
      return perform(rank, actions);
    }
    dist_autograd::Walked found;
    std::vector<size_t> entries;
    if (walk.roots) entries = roots_.at(walk.pass);
    for (const SendId send : walk.sends) entries.push_back(graph.crossings.at(send).first);
    if (walk.all_sends) {
      found.sends = graph.sends_of(rank);
      for (const auto& send : found.sends) entries.push_back(graph.crossings.at(send.id).first);
    }
    found.receives = executor->second.walk(entries);
    if (walk.roots) {
      for (const size_t root : roots_.at(walk.pass)) executor->second.feed(root, 1);
    }
    at(rank).protocol.walked(walk.pass, walk.token, found, now, actions);
    perform(rank, actions);
  }

  void act(int rank, const dist_autograd::Start& start, uint64_t) {
    const auto executor = at(rank).executors.find(start.pass);
    ASSERT_NE(executor, at(rank).executors.end());
    executor->second.start();
  }

  void act(int rank, const dist_autograd::Send& send, uint64_t gradient) {
    ++messages;
    links_.insert({rank, send.to});
    links_.insert({send.to, rank});
    if (at(send.to).dead) return notice_loss(rank, send.to);
    network_.push_back({rank, send.to, send.message, gradient});
  }

  void act(int rank, const dist_autograd::Keep& keep, uint64_t gradient) {
    EXPECT_TRUE(at(rank).kept.emplace(std::pair(keep.pass, keep.send), gradient).second);
  }

  void act(int rank, const dist_autograd::Feed& feed, uint64_t gradient) {
    if (const auto kept = at(rank).kept.extract({feed.pass, feed.send})) gradient = kept.mapped();
    const size_t node = graphs_.at(feed.pass.context)->crossings.at(feed.send).first;
    at(rank).executors.at(feed.pass).feed(node, gradient);
  }

  void act(int, const dist_autograd::Watch&, uint64_t) {}  // whoever is lost is heard of at once

  void act(int rank, const dist_autograd::Retire& retire, uint64_t) { drop(rank, retire.pass); }
  void act(int rank, const dist_autograd::Cancel& cancel, uint64_t) { drop(rank, cancel.pass); }

  void drop(int rank, const PassId& pass) {
    EXPECT_EQ(at(rank).executors.erase(pass), 1u);
    std::erase_if(at(rank).kept, [&](const auto& kept) { return kept.first.first == pass; });
  }

  void act(int rank, const dist_autograd::Complete& complete, uint64_t) {
    EXPECT_EQ(rank, complete.pass.initiator);
    outcomes.push_back({complete.pass, complete.error});
  }

  void act(int rank, const dist_autograd::ArmTimer& timer, uint64_t) {
    timers_.insert({timer.at, {rank, timer.pass}});
  }

  const PassFaults faults_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::map<ContextId, const ModelGraph*> graphs_;
  std::map<PassId, std::vector<size_t>> roots_;
  std::vector<Mail> network_;
  std::vector<std::function<void()>> todo_;
  std::multimap<TimePoint, std::pair<int, PassId>> timers_;
  std::set<std::pair<int, int>> links_;
};

}  // namespace farspan::testing
