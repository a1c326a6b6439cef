// A random autograd graph over several workers, as numbers, and what a pass over it must do.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <farspan/autograd/pass_protocol.h>

namespace farspan::testing {

using Random = std::mt19937_64;

inline size_t pick(Random& random, size_t count) {
  return std::uniform_int_distribution<size_t>(0, count - 1)(random);
}
inline bool chance(Random& random, double probability) {
  return std::uniform_real_distribution<>(0, 1)(random) < probability;
}

// A node of one worker's graph. Its gradient is the sum over the paths that lead to it.
struct ModelNode {
  int worker = 0;
  std::vector<size_t> next{};    // backward, on the same worker
  int peer = -1;                 // of a crossing: the other worker
  dist_autograd::SendId send{};  // of a crossing
  bool is_send = false, is_receive = false;
};

// Made as a forward pass is: values are computed, sent (also to the own worker) and computed on; so
// there are calls, returns, recursion, and results that nobody uses.
struct ModelGraph {
  std::vector<ModelNode> nodes;
  std::map<dist_autograd::SendId, std::pair<size_t, size_t>> crossings;  // send and receive node

  ModelGraph(Random& random, int workers, size_t size) {
    for (int worker = 0; worker < workers; ++worker) nodes.push_back({.worker = worker});  // leaves
    for (uint64_t next_id = 1; nodes.size() < size;) {
      // Mostly what was computed last: deep graphs that go to and fro.
      const size_t recent = std::min(nodes.size(), chance(random, 0.8) ? 6 : nodes.size());
      const size_t from = nodes.size() - 1 - pick(random, recent);
      if (nodes[from].is_send) continue;
      const int worker = nodes[from].worker;
      ModelNode node{.worker = worker, .next = {from}};
      for (size_t i = pick(random, 3); i > 0; --i) {
        const size_t other = pick(random, nodes.size());
        if (nodes[other].worker == worker && !nodes[other].is_send) node.next.push_back(other);
      }
      if (!chance(random, 0.4)) {
        nodes.push_back(node);
        continue;
      }
      const auto id = static_cast<dist_autograd::SendId>(next_id++);
      const int to = static_cast<int>(pick(random, static_cast<size_t>(workers)));
      node.is_send = true;
      node.peer = to;
      node.send = id;
      crossings[id] = {nodes.size(), nodes.size() + 1};
      nodes.push_back(node);
      nodes.push_back({.worker = to, .peer = worker, .send = id, .is_receive = true});
    }
  }

  std::vector<size_t> random_roots(Random& random, int worker) const {
    std::vector<size_t> candidates, roots;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (nodes[i].worker == worker && !nodes[i].is_send) candidates.push_back(i);
    }
    for (size_t i = 1 + pick(random, 3); i > 0; --i) {
      // Mostly the latest: they have most of the graph below.
      const size_t recent =
          std::min(candidates.size(), chance(random, 0.8) ? 2 : candidates.size());
      roots.push_back(candidates[candidates.size() - 1 - pick(random, recent)]);
    }
    return roots;
  }

  std::vector<dist_autograd::Crossing> sends_of(int worker) const {
    std::vector<dist_autograd::Crossing> sends;
    for (const ModelNode& node : nodes) {
      if (node.is_send && node.worker == worker) sends.push_back({node.peer, node.send});
    }
    return sends;
  }

  // The gradient of each node, by following every edge of the whole graph; 0 where no path leads.
  std::vector<uint64_t> gradients(const std::vector<size_t>& roots) const {
    std::vector<uint64_t> result(nodes.size());
    for (const size_t root : roots) ++result[root];
    for (size_t i = nodes.size(); i-- > 0;) {  // edges lead to smaller indexes only
      for (const size_t next : nodes[i].next) result[next] += result[i];
      if (nodes[i].is_receive) result[crossings.at(nodes[i].send).first] += result[i];
    }
    return result;
  }

  // Which nodes a pass reaches; in the fast mode every worker that is reached walks all its sends.
  std::set<size_t> reached(const std::vector<size_t>& roots, dist_autograd::PassMode mode) const {
    std::set<size_t> seen;
    std::set<int> joined;
    std::vector<size_t> open;
    const auto visit = [&](size_t node) {
      if (seen.insert(node).second) open.push_back(node);
    };
    const auto join = [&](int worker) {
      if (mode != dist_autograd::PassMode::kFast || !joined.insert(worker).second) return;
      for (const auto& send : sends_of(worker)) visit(crossings.at(send.id).first);
    };
    for (const size_t root : roots) {
      visit(root);
      join(nodes[root].worker);
    }
    while (!open.empty()) {
      const ModelNode& node = nodes[open.back()];
      open.pop_back();
      for (const size_t next : node.next) visit(next);
      if (!node.is_receive) continue;
      join(node.peer);
      visit(crossings.at(node.send).first);
    }
    return seen;
  }
};

// The executor of one worker's share of a pass, over the model.
class ModelExecutor {
 public:
  ModelExecutor(const ModelGraph& graph, int worker) : graph_(&graph), worker_(worker) {}

  std::vector<dist_autograd::Crossing> walk(const std::vector<size_t>& entries) {
    std::vector<dist_autograd::Crossing> receives;
    std::vector<size_t> open;
    const auto visit = [&](size_t node) {
      const auto [found, is_new] = missing_.try_emplace(node, 0);
      ++found->second;
      if (is_new) open.push_back(node);
    };
    for (const size_t entry : entries) visit(entry);
    while (!open.empty()) {
      const ModelNode& node = graph_->nodes[open.back()];
      open.pop_back();
      if (node.worker != worker_) throw Error(Code::kInternal, "a walk left its worker");
      if (node.is_receive) receives.push_back({node.peer, node.send});
      for (const size_t next : node.next) visit(next);
    }
    return receives;
  }
  void start() {
    started_ = true;
    for (const auto& [node, gradient] : early_) feed(node, gradient);
  }
  void feed(size_t node, uint64_t gradient) {
    if (!started_) return early_.emplace_back(node, gradient), void();
    if (missing_.at(node) == 0) throw Error(Code::kInternal, "fed too often");
    sums_[node] += gradient;
    if (--missing_[node] == 0) ready_.push_back(node);
  }
  bool can_run() const { return started_ && !ready_.empty(); }
  bool is_finished() const { return started_ && run_ == missing_.size(); }

  // Runs a node; the one that it ran.
  size_t run(Random& random) {
    std::swap(ready_[pick(random, ready_.size())], ready_.back());
    const size_t node = ready_.back();
    ready_.pop_back();
    ++run_;
    for (const size_t next : graph_->nodes[node].next) feed(next, sums_[node]);
    return node;
  }
  uint64_t sum(size_t node) const { return sums_.at(node); }

 private:
  const ModelGraph* graph_;
  int worker_;
  bool started_ = false;
  size_t run_ = 0;
  std::vector<std::pair<size_t, uint64_t>> early_;  // counts are not complete before the start
  std::map<size_t, size_t> missing_;
  std::map<size_t, uint64_t> sums_;
  std::vector<size_t> ready_;
};

}  // namespace farspan::testing
