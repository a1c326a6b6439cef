// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// SimNetwork: workers of one process, and a network between them that a seed and a test control.
//
// Between each two workers there is a line, as in the agent: it opens with the first frame, keeps
// frames in order, and when it breaks each end hears of it in its own time; what is sent before
// that is lost.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <farspan/rpc/wire/frame.h>

#include "support/faults.h"
#include "support/sim_messenger.h"
#include "support/sim_scheduler.h"

namespace farspan::testing {

struct SimOptions {
  int workers = 2;  // "w0", "w1", ...
  uint64_t seed = 1;
  Micros max_latency{0};    // of a frame: from nothing to this, by the seed
  bool stragglers = false;  // half of what a broken line held arrives, even after the next line's
  int64_t max_steps = 1'000'000;  // of one wait(), drain(), ...: more are a livelock
  // Of a peer, see agent::Heartbeat. Nobody looks unless it is set: who pings for ever keeps a wait
  // that cannot end from being noticed.
  Millis silence_timeout = kNoTimeout;
};

// What a worker that dies had sent: the kernel may deliver it, or the machine is gone.
enum class Sent { kArrives, kLost };

enum class Cut {
  kSilent,   // frames vanish, nobody is told
  kNoticed,  // lines break, new ones are refused
};

// Threading: see SimScheduler.
// Lifetime:  messengers may outlive it; they are shut down then.
class SimNetwork final : private Traffic {
 public:
  using Names = std::vector<std::string>;

  explicit SimNetwork(SimOptions options = {});
  ~SimNetwork();
  // Ends all workers, and the threads that run for them. Idempotent.
  void stop();

  int size() const noexcept { return static_cast<int>(workers_.size()); }
  const std::vector<WorkerInfo>& workers() const noexcept { return workers_; }
  //   throws  Error kInvalidArgument
  int rank_of(std::string_view name) const;
  // A worker in its present life; the last one when it is dead.
  const std::shared_ptr<SimMessenger>& at(int rank) const;
  const std::shared_ptr<SimMessenger>& at(std::string_view name) const { return at(rank_of(name)); }

  Faults& faults() noexcept { return faults_; }
  SimScheduler& scheduler() noexcept { return scheduler_; }
  const SimTrace& trace() const noexcept { return trace_; }
  // For a test's own choices.
  SeededRandom& random() noexcept { return test_random_; }
  std::string describe() const;

  // The process ends, as after SIGKILL: its calls and timers stop, the others hear of it when what
  // it sent before has arrived. Its threads that wait stop waiting, with false.
  void kill(const std::string& name, Sent sent = Sent::kArrives);
  // The process ends as programs do, with a goodbye.
  void leave(const std::string& name);
  // A dead worker comes back, as a new instance that knows nothing.
  const std::shared_ptr<SimMessenger>& restart(const std::string& name);

  // The line between the two breaks: what is on it is lost, each end is told, calls fail with
  // kDisconnected. The next frame opens a new one.
  void break_line(const std::string& a, const std::string& b);

  // Frames wait: those to and from a worker, or those from one to another. Nothing is lost.
  void clog(const std::string& name);
  void unclog(const std::string& name);
  void clog(const std::string& from, const std::string& to);
  void unclog(const std::string& from, const std::string& to);
  // Clogs some workers one by one, and unclogs them in another order, over `duration` from now.
  void swizzle_clog(Micros duration);

  // The process stands still, as after SIGSTOP: nothing of it runs, its timers come late, what is
  // sent to it waits.
  void freeze(const std::string& name);
  void thaw(const std::string& name);

  // Nothing passes between the two sides, in both directions, until heal().
  void partition(const Names& side, const Names& other, Cut cut = Cut::kSilent);
  void heal();

  bool alive(int rank) const { return at(rank)->alive(); }

 private:
  friend class SimMessenger;
  using Pair = std::pair<int, int>;
  struct Item {
    int from = 0, to = 0;
    uint64_t to_life = 0;  // of what keeps no order: whom it is meant for; 0: whoever is there
    int epoch = 0;         // of the line that it was sent on
    TimePoint not_before{};
    wire::InFrame frame{};
    bool copy = false;
    // The end of a line, instead of a frame.
    bool end = false;
    Error why{Code::kOk, ""};
  };
  // One worker's end of a line.
  struct LineEnd {
    int epoch = 1;  // as it knows
    wire::InstanceId instance;
  };
  struct Line {
    int epoch = 1;  // counts lines between the two
    bool open = false;
  };

  // For SimMessenger.
  void send(SimMessenger& from, int to, wire::OutFrame& frame);
  void send_reply(SimMessenger& from, int to, int epoch, wire::OutFrame& frame);
  Millis silence_timeout() const noexcept { return options_.silence_timeout; }
  int epoch_seen(int rank, int peer) const { return ends_.at({rank, peer}).epoch; }
  // Whether a worker still takes the line of that number for the one to its peer.
  bool knows_line(int rank, int peer, int epoch) const { return epoch_seen(rank, peer) <= epoch; }
  wire::InstanceId instance_seen(int rank, int peer) const {
    return ends_.at({rank, peer}).instance;
  }
  int open_lines(int rank) const;
  bool line_open(int a, int b) const { return line(a, b).open; }
  void give_up(int rank, int peer, const std::string& why);
  static std::string number_of(uint64_t request_id);
  void note(const std::string& what) { trace_.add(scheduler_.elapsed(), what); }

  size_t deliverable() override;
  void deliver(size_t which) override;
  TimePoint next_arrival() override;

  const Line& line(int a, int b) const { return lines_.at(std::minmax(a, b)); }
  Line& line(int a, int b) { return lines_.at(std::minmax(a, b)); }
  const std::string& name(int rank) const { return workers_[static_cast<size_t>(rank)].name; }
  void add_messenger(int rank);
  void put_on_line(Item item);
  void put_end(int from, int to, int epoch, const Error& why);
  void lose(const Item& item, Loss loss);
  void fail_call_of(const Item& item, const Error& why);
  void end_line(int from, int to, const Error& why);
  void end_life(int rank, Sent sent, const Error& why);
  void drop_frames(int from, int to, bool may_straggle);
  bool held(const Item& item) const;
  void arrive(Item item);
  void arrive_end(const Item& item);
  static std::string label(const wire::FrameHeader& header);

  const SimOptions options_;
  SimTrace trace_;
  SimScheduler scheduler_;
  SeededRandom network_random_, test_random_;
  Faults faults_;

  std::vector<WorkerInfo> workers_;
  std::vector<std::shared_ptr<SimMessenger>> messengers_;  // by rank
  uint64_t last_life_ = 0;
  bool stopped_ = false;

  std::map<Pair, Line> lines_;              // lower rank first
  std::map<Pair, LineEnd> ends_;            // of the first, towards the second
  std::map<Pair, std::deque<Item>> lanes_;  // one direction of a line
  std::vector<Item> strays_;                // what keeps no order
  std::set<int> clogged_, frozen_;
  std::set<Pair> clogged_lanes_;
  std::map<Pair, Cut> cuts_;
  struct Choice {
    std::deque<Item>* lane;  // null: a stray
    size_t stray;
  };
  std::vector<Choice> choices_;  // of the last deliverable()
};

}  // namespace farspan::testing
