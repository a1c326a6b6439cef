// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Cluster: a few RRefProtocols, and a test that decides which frames arrive, and when.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <farspan/rref/protocol.h>

#include "support/errors.h"

namespace farspan::rref {

// Not needed by the protocol, but by tests that print.
inline std::ostream& operator<<(std::ostream& out, const Counters& c) {
  return out << "owned " << c.owned << " (unborn " << c.unborn << "), forks " << c.forks
             << ", users " << c.users << " (pending " << c.pending_users << "), children "
             << c.pending_children << ", waits " << c.waits << ", unacknowledged "
             << c.unacknowledged << ", taken back " << c.taken_back;
}

namespace testing {

using namespace std::chrono_literals;
using farspan::testing::code_of;
using farspan::testing::error_of;

// "w0", "w1", ... all met each other. Time stands still unless advance() moves it, and frames stay
// on `wire` until deliver().
class Cluster {
 public:
  explicit Cluster(int workers, ProtocolOptions options = {}) : options_(options) {
    for (int rank = 0; rank < workers; ++rank) start(rank, 1);
    for (int rank = 0; rank < workers; ++rank) introduce(rank);
  }

  RRefProtocol& operator[](int rank) { return *nodes_.at(rank).protocol; }
  WorkerRun run(int rank) const { return nodes_.at(rank).run; }
  TimePoint now() const { return now_; }

  // The worker dies and comes back as another run; the others are not told, see introduce().
  void restart(int rank) { start(rank, nodes_.at(rank).run.instance + 1); }
  void introduce(int rank) {
    for (auto& [other, node] : nodes_) {
      if (other == rank) continue;
      node.protocol->on_peer_joined(run(rank), "w" + std::to_string(rank), now_);
      (*this)[rank].on_peer_joined(node.run, "w" + std::to_string(other), now_);
    }
  }
  void lose(int rank, int lost, RRefProtocol::Loss loss = RRefProtocol::Loss::kUnreachable) {
    (*this)[rank].on_peer_lost(run(lost), loss, now_);
  }

  // What every worker has to send goes on the wire.
  void collect() {
    for (auto& [rank, node] : nodes_) {
      Outbox out = node.protocol->take();
      for (ControlFrame& frame : out.frames) wire.push_back(std::move(frame));
      for (const RRefId& id : out.releases) {
        EXPECT_TRUE(node.released.insert(id).second) << "released twice: " << to_text(id);
      }
      for (WaitResult& result : out.results) {
        EXPECT_TRUE(node.results.emplace(result.id, result.error).second) << "answered twice";
      }
      if (out.drained) node.drained = std::move(out.drained);
    }
  }
  // Everything arrives, and what it gives rise to, until nothing is under way. Returns the frames.
  size_t deliver() {
    size_t count = 0;
    for (collect(); !wire.empty(); collect()) {
      const ControlFrame frame = wire.front();
      wire.erase(wire.begin());
      arrive(frame);
      ++count;
    }
    return count;
  }
  void arrive(const ControlFrame& frame) {
    const auto to = nodes_.find(frame.to.rank);
    if (to != nodes_.end()) to->second.protocol->on_control(frame, now_);
  }
  // What is under way, and what is to be sent now, never arrives. Returns the frames.
  size_t lose_wire() {
    collect();
    return std::exchange(wire, {}).size();
  }

  // Lets time pass; timers run at their time, and all frames arrive at once.
  void advance(Clock::duration duration) {
    const TimePoint until = now_ + duration;
    for (deliver(); next_timer() <= until; deliver()) {
      now_ = std::max(now_, next_timer());
      for (auto& [rank, node] : nodes_) {
        if (node.protocol->wake_at().at() <= now_) node.protocol->on_timer(now_);
      }
    }
    now_ = until;
  }

  // The whole of remote(): a value on `owner`, its only handle on `creator`.
  HandleId make(int creator, int owner) {
    const HandleId id = (*this)[creator].create(run(owner), "int", now_);
    if (creator == owner) {
      (*this)[owner].value_set(id.rref, std::nullopt, now_);
      return id;
    }
    EXPECT_EQ((*this)[owner].on_creation(run(creator), id, "int", now_),
              RRefProtocol::Creation::kRun);
    (*this)[owner].value_set(id.rref, std::nullopt, now_);
    (*this)[creator].creation_done(id, now_);
    return id;
  }
  // The whole of a call that passes a reference on.
  HandleId pass(const HandleId& handle, int from, int to) {
    const ForkData data = (*this)[from].fork(handle, run(to), now_);
    const HandleId there = (*this)[to].received(run(from), data, now_);
    end_carrier(from, to, data, RRefProtocol::Carrier::kArrived);
    return there;
  }
  void end_carrier(int from, int to, const ForkData& data, RRefProtocol::Carrier end) {
    (*this)[from].carrier_ended(run(to), std::span(&data.fork, 1), end, now_);
  }
  void drop(int rank, const HandleId& handle) { (*this)[rank].drop(handle, now_); }

  bool released(int rank, const HandleId& handle) {
    collect();
    return nodes_.at(rank).released.contains(handle.rref);
  }
  // Nothing: it has not ended. kOk: without an error.
  std::optional<Code> result(int rank, WaitId id) {
    collect();
    const auto& results = nodes_.at(rank).results;
    const auto it = results.find(id);
    if (it == results.end()) return std::nullopt;
    return it->second ? it->second->code() : Code::kOk;
  }
  const Error& error(int rank, WaitId id) { return *nodes_.at(rank).results.at(id); }
  const std::optional<DrainReport>& drained(int rank) {
    collect();
    return nodes_.at(rank).drained;
  }
  bool empty(int rank) {
    const Counters c = (*this)[rank].counters();
    return c.owned + c.forks + c.users + c.pending_children + c.waits + c.unacknowledged == 0;
  }
  void expect_empty() {
    for (auto& [rank, node] : nodes_) {
      EXPECT_TRUE(empty(rank)) << "w" << rank << ": " << node.protocol->counters();
    }
  }

  std::vector<ControlFrame> wire;

 private:
  struct Node {
    WorkerRun run;
    std::unique_ptr<RRefProtocol> protocol;
    std::set<RRefId, std::function<bool(const RRefId&, const RRefId&)>> released{
        [](const RRefId& a, const RRefId& b) {
          return std::hash<RRefId>()(a) < std::hash<RRefId>()(b);
        }};
    std::map<WaitId, std::optional<Error>> results;
    std::optional<DrainReport> drained;
  };

  void start(int rank, uint64_t instance) {
    Node node;
    node.run = {rank, instance};
    ProtocolOptions options = options_;
    options.self = node.run;
    node.protocol = std::make_unique<RRefProtocol>(options);
    nodes_.erase(rank);
    nodes_.emplace(rank, std::move(node));
  }
  TimePoint next_timer() {
    TimePoint next = TimePoint::max();
    for (auto& [rank, node] : nodes_) next = std::min(next, node.protocol->wake_at().at());
    return next;
  }

  ProtocolOptions options_;
  TimePoint now_ = TimePoint{} + 1h;
  std::map<int, Node> nodes_;
};

}  // namespace testing
}  // namespace farspan::rref
