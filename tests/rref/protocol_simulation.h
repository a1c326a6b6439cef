// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Simulation: workers with an RRefProtocol each that run a random program of creations, calls,
// fetches and drops, over a network that loses, doubles, delays and reorders everything, while
// workers die, come back, and are cut off. All of it follows from one seed.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <farspan/rref/protocol.h>

#include "support/seeded_random.h"

namespace farspan::rref::testing {

// What happened, in numbers: to see that the simulation reached what it is for.
struct SimulationCounts {
  uint64_t created = 0, passed = 0, fetched = 0, released = 0, confirmed = 0;
  uint64_t lost = 0, doubled = 0, crashes = 0, cuts = 0, fences = 0;
  uint64_t duplicate_creations = 0, late_creations = 0, unborn = 0;
  uint64_t taken_back = 0, refused_released = 0, failed_calls = 0, declined = 0;
};

class Simulation {
 public:
  Simulation(uint64_t seed, bool keep_trace);
  // Runs it all. Empty, or the rule that was broken.
  std::string run();
  const SimulationCounts& counts() const noexcept { return counts_; }
  const std::vector<std::string>& trace() const noexcept { return trace_; }

 private:
  // A handle that the program holds. What came in a second copy of a message, after the first was
  // let go, has no promise of the value, nor has what is made from it: `weak`.
  struct Held {
    HandleId id;
    bool weak = false;
  };
  enum class Kind { kControl, kCreate, kPass, kFetch, kReply };
  struct Message {
    Kind kind{};
    WorkerRun from, to;
    uint64_t call = 0;
    HandleId id;  // kCreate, kFetch
    std::vector<ForkData> forks;
    ControlFrame frame;
    bool ok = true;  // kReply
  };
  struct Call {
    Kind kind{};
    WorkerRun to;
    HandleId id;
    std::vector<ForkData> forks;
  };
  // A request that waits for something before it is served.
  struct Serving {
    bool fetch = false;
    WorkerRun caller;
    uint64_t call = 0;
    std::vector<Held> handles;
  };
  struct Node {
    WorkerRun run;
    bool alive = true;
    std::unique_ptr<RRefProtocol> protocol;
    std::vector<Held> held;
    std::map<uint64_t, Call> calls;
    std::map<WaitId, Serving> serving;
    std::set<WaitId> own_waits;
    std::unordered_set<RRefId> values;  // made, or being made
    TimePoint alarm = TimePoint::max();
    std::optional<DrainReport> drained;
  };

  // protocol_simulation.cc: the world.
  void start(Node& node, int rank, uint64_t instance);
  void at(Clock::duration delay, std::function<void()> event);
  // An event of this run of this worker: nothing happens when it is gone by then.
  void at(Clock::duration delay, const Node& node, std::function<void(Node&)> event);
  void run_events(TimePoint until);
  void send(Message message);
  void arrive(const Message& message);
  void step(Node& node);  // does what the protocol wants done
  void released(Node& node, const RRefId& id);
  void crash(Node& node);
  void restart(int rank);
  void cut_off(int a, int b);
  void heal(int a, int b);
  void tell_lost(Node& node, WorkerRun lost, RRefProtocol::Loss loss);
  std::string finish();
  std::string left_behind();

  // protocol_program.cc: what the workers do.
  void act();
  void create(Node& node);
  void pass(Node& node);
  void fetch(Node& node);
  void drop_one(Node& node, size_t which);
  void drop(Node& node, const Held& held);
  uint64_t open_call(Node& node, Call call, Clock::duration timeout);
  void end_call(Node& node, uint64_t call, bool ok);
  void fail_calls_to(Node& node, WorkerRun lost);
  void serve_create(Node& node, const Message& request);
  void serve_pass(Node& node, const Message& request);
  void serve_fetch(Node& node, const Message& request);
  void take_reply(Node& node, const Message& reply);
  void made(Node& node, const RRefId& id, std::function<void(Node&, bool)> then);
  bool take(Node& node, const Message& message, const ForkData& data, std::vector<Held>& into);
  void run_function(Node& node, Serving serving);
  void wait_over(Node& node, const WaitResult& result);
  void reply(Node& node, WorkerRun to, uint64_t call, bool ok, std::vector<ForkData> forks = {});
  ForkData fork(Node& node, const Held& held, WorkerRun to);

  // The rule: see protocol_simulation_test.cc.
  void check_unused(const Node& owner, const RRefId& id);
  bool excused(const Node& owner, const Node& holder, const Held& held) const;

  void broken(std::string rule);
  void note(const std::string& text) {
    if (keep_trace_)
      trace_.push_back(std::to_string((now_ - begin_).count() / 1'000) + " us: " + text);
  }
  Node* random_node();
  Node* node_of(WorkerRun run);
  static std::string name(const Node& node) { return "w" + std::to_string(node.run.rank); }

  farspan::testing::SeededRandom random_;
  const bool keep_trace_;
  const TimePoint begin_ = TimePoint{} + std::chrono::hours(1);
  TimePoint now_ = begin_;
  std::map<std::pair<TimePoint, uint64_t>, std::function<void()>> events_;
  uint64_t last_event_ = 0, last_call_ = 0, last_instance_ = 0;

  std::vector<Node> nodes_;
  double loss_ = 0, doubling_ = 0;
  bool faults_ = false;     // workers die and are cut off
  bool acting_ = true;      // the program runs
  bool disturbed_ = false;  // one of them was out of reach for longer than its lease, or died
  std::set<std::pair<int, int>> cut_;
  std::set<std::pair<int, int>> ever_cut_;
  std::set<std::pair<int, int>> apart_;            // those that were cut for long
  std::unordered_map<ForkId, RRefId> in_replies_;  // forks in answers that are under way
  std::unordered_set<ForkId> arrived_, weak_;
  std::unordered_set<RRefId> run_;  // creations that were run
  std::string broken_;
  SimulationCounts counts_;
  std::vector<std::string> trace_;
};

}  // namespace farspan::rref::testing
