// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// SimMessenger: one worker's Messenger on a SimNetwork.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <farspan/rpc/agent/heartbeat.h>
#include <farspan/rpc/agent/messenger.h>
#include <farspan/rpc/agent/pending_calls.h>

namespace farspan::testing {

class SimNetwork;

// It does what the agent does, at the same moments: requests of kind kInline run where they
// arrive, those of kind kAsTask on a thread of their own and in any order; deadlines travel as what
// is left; an unknown kind is refused; an answer that is too late goes to on_late_reply(). Calls
// wait in the agent's own PendingCalls, and its own Heartbeat watches those without a deadline.
//
// Threading: see SimScheduler. Lifetime: dead after the network's stop(), kill() or leave(); then
//            calls fail with kShutdown and waits end.
class SimMessenger final : public agent::Messenger,
                           public std::enable_shared_from_this<SimMessenger> {
 public:
  SimMessenger(SimNetwork& network, int rank, uint64_t life, wire::InstanceId instance);

  const WorkerInfo& self() const noexcept override { return workers_[static_cast<size_t>(rank_)]; }
  const std::vector<WorkerInfo>& workers() const noexcept override { return workers_; }
  wire::InstanceId instance_of(int rank) const override;
  void handle(wire::Kind kind, Run run, Handler handler) override;
  void call(int to, wire::OutFrame& frame, Deadline deadline,
            std::shared_ptr<agent::ReplyHandler> handler, bool will_wait) override;
  bool cancel(int to, const agent::ReplyHandler& handler) override;
  void post(int to, wire::OutFrame& frame) override;
  bool wait(FutureCore& future, Deadline deadline, int from, net::Expected expected = {}) override;
  // Others serve: kByWaiter is kAsTask here.
  bool wait_and_serve(FutureCore& future, int from,
                      const std::function<bool(const agent::Request&)>&, net::SpinGovernor&,
                      net::Expected) override {
    return wait(future, Deadline::never(), from);
  }
  TimePoint now() const noexcept override;
  agent::TimerId call_at(TimePoint at, std::function<void()> callback) override;
  bool cancel(agent::TimerId timer) override;
  void run(std::function<void()> task, Rejected rejected = nullptr) override;
  void resume(agent::CallContext call, std::function<void()> task, Rejected rejected) override;
  void on_worker_lost(OnLost callback) override { on_lost_.push_back(std::move(callback)); }
  void on_late_reply(OnLateReply callback) override { on_late_reply_ = std::move(callback); }
  std::shared_ptr<const void> watch(int rank) override;
  std::vector<wire::FunctionRecord> functions_of(int rank) const override;
  agent::MessengerCounters counters() const override;

  // What the handshake would tell the others.
  void set_functions(std::vector<wire::FunctionRecord> functions) {
    functions_ = std::move(functions);
  }
  bool alive() const noexcept { return network_ != nullptr; }
  wire::InstanceId instance() const noexcept { return instance_; }
  uint64_t life() const noexcept { return life_; }
  // Calls that wait for their answers.
  std::string describe() const;

 private:
  friend class SimNetwork;
  class Route;
  class Call;
  struct HandlerSlot {
    Run run = Run::kAsTask;
    Handler handler;
  };
  // This worker's end of a line: what the agent's Connection keeps.
  struct Line {
    Line(int to, int number, Millis silence_timeout)
        : peer(to), epoch(number), heartbeat(silence_timeout) {}
    const int peer, epoch;
    agent::PendingCalls pending;
    agent::Heartbeat heartbeat;
    agent::Heartbeat::Traffic traffic;
    bool watched = false;
    int watches = 0;
    uint64_t requests_sent = 0, requests_received = 0;
  };
  using LinePtr = std::shared_ptr<Line>;

  // What the network brings.
  void on_request(int from, int epoch, wire::InFrame&& frame);
  void on_reply(int from, int epoch, wire::InFrame&& frame, bool copy);
  void on_line_end(int peer, int epoch, const Error& why);
  void tell_loss(int peer, const Error& why);
  void fail_call(int peer, int epoch, uint64_t id, const Error& why);
  void count_received(int from, int epoch, uint64_t bytes);
  void die(const Error& why);

  LinePtr line_to(int peer);
  Line* find_line(int peer, int epoch) const;  // null: that one has ended
  void send_on(Line& line, wire::OutFrame& frame);
  void send_sign(int to, wire::Kind kind);
  void expire_later(const LinePtr& line, TimePoint at);
  void watch_peer(const LinePtr& line);
  void act(const LinePtr& line, const agent::Heartbeat::Action& action);
  void serve(const Handler& handler, agent::Request request);
  bool is_late(Deadline deadline) const noexcept;
  void run_in(const agent::CallContext& call, const std::function<void()>& work);
  void run_as_self(const std::function<void()>& work) const;

  SimNetwork* network_;  // null: dead
  const std::vector<WorkerInfo> workers_;
  const int rank_;
  const uint64_t life_;
  const wire::InstanceId instance_;
  std::array<HandlerSlot, 256> handlers_;
  std::vector<OnLost> on_lost_;
  OnLateReply on_late_reply_;
  std::vector<wire::FunctionRecord> functions_;
  std::map<uint64_t, Call*> waiting_;  // in the order of the calls
  std::map<int, LinePtr> lines_;       // by peer, those that this worker has sent on
  uint64_t last_call_ = 0, last_chain_ = 0;
  agent::MessengerCounters counters_;
  TimePoint died_at_{};
};

}  // namespace farspan::testing
