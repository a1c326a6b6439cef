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

#include <farspan/rpc/agent/messenger.h>

namespace farspan::testing {

class SimNetwork;

// It does what the agent does, at the same moments: requests of kind kInline run where they
// arrive, those of kind kAsTask on a thread of their own and in any order; deadlines travel as what
// is left; an unknown kind is refused; an answer that is too late goes to on_late_reply().
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
  void post(int to, wire::OutFrame& frame) override;
  bool wait(FutureCore& future, Deadline deadline, int from) override;
  TimePoint now() const noexcept override;
  agent::TimerId call_at(TimePoint at, std::function<void()> callback) override;
  bool cancel(agent::TimerId timer) override;
  void run(std::function<void()> task) override;
  void on_worker_lost(OnLost callback) override { on_lost_.push_back(std::move(callback)); }
  void on_late_reply(OnLateReply callback) override { on_late_reply_ = std::move(callback); }
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
  struct HandlerSlot {
    Run run = Run::kAsTask;
    Handler handler;
  };
  struct PendingCall {
    std::shared_ptr<agent::ReplyHandler> handler;
    int to = -1;
    int epoch = 0;  // of the line that it was sent on
    wire::Kind kind = wire::Kind::kCall;
    TimePoint sent;
    Deadline deadline;
    uint64_t expiry = 0;  // the event
  };

  // What the network brings.
  void on_request(int from, int epoch, wire::InFrame&& frame);
  void on_reply(int from, wire::InFrame&& frame, bool copy);
  void on_line_end(int peer, int epoch, const Error& why);
  void tell_loss(int peer, const Error& why);
  void fail_call(uint64_t id, const Error& why);
  void die(const Error& why);

  void serve(const Handler& handler, agent::Request request);
  PendingCall take(uint64_t id);
  std::string call_text(uint64_t id, const PendingCall& call) const;

  SimNetwork* network_;  // null: dead
  const std::vector<WorkerInfo> workers_;
  const int rank_;
  const uint64_t life_;
  const wire::InstanceId instance_;
  std::array<HandlerSlot, 256> handlers_;
  std::vector<OnLost> on_lost_;
  OnLateReply on_late_reply_;
  std::vector<wire::FunctionRecord> functions_;
  std::map<uint64_t, PendingCall> pending_;
  uint64_t last_id_ = 0, last_chain_ = 0;
  agent::MessengerCounters counters_;
  TimePoint died_at_{};
};

}  // namespace farspan::testing
