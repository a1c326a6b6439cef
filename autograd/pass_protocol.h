// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// PassProtocol: what one worker does in the distributed backward passes of its contexts, as a state
// machine without I/O. Events come in by its methods, actions come back.
// Source: PyTorch design note "Distributed Autograd Design" for the graph and the fast mode; the
//         exact mode and the ends of passes: autograd/README.md.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <farspan/autograd/ended_passes.h>
#include <farspan/autograd/pass_actions.h>
#include <farspan/autograd/pass_messages.h>

namespace farspan::dist_autograd {

struct Pass;  // pass_state.h

// A node where the local graph meets another worker (or this one: workers may call themselves).
struct Crossing {
  int peer = -1;
  SendId id{};
};

// What a walk has found.
struct Walked {
  std::vector<Crossing> receives;  // receive nodes reached for the first time, and who sent to them
  std::vector<Crossing> sends;     // for Walk::all_sends: the sends, and who has received them
};

// Every event for a pass that has ended, or was never known, is harmless. Messages may come late,
// twice and in any order.
//
// Threading: none of its own; the driver calls it under one lock. Actions from two calls may be
//            performed in either order.
class PassProtocol {
 public:
  // `self`: this worker's rank. `name_of`: worker names for messages. `memory`: how many contexts
  // with ended passes are remembered.
  PassProtocol(int self, std::function<std::string(int)> name_of, size_t memory = 4096);
  ~PassProtocol();

  // The user calls backward. Complete says how it ends. A deadline other than never is kept here
  // and on every worker that takes part.
  //   throws  Error: kInvalidArgument when another pass of the context is under way here, or the
  //           context is released
  PassId begin(ContextId context, PassMode mode, bool retain_graph, Deadline deadline,
               TimePoint now, PassActions& actions);

  // A Walk is done.
  void walked(const PassId& pass, uint64_t token, const Walked& found, TimePoint now,
              PassActions& actions);

  // The executor hands over the gradient of a receive node.
  void gradient_left(const PassId& pass, SendId receive, TimePoint now, PassActions& actions);

  // The executor has run all that was counted.
  void finished(const PassId& pass, PassActions& actions);

  // Something of the pass went wrong here: a walk, a node, a message that could not be sent.
  void failed(const PassId& pass, Error why, PassActions& actions);

  void received(int from, const PassMessage& message, TimePoint now, PassActions& actions);

  // The connection to a worker has broken, or the worker is known to be dead.
  void peer_lost(int rank, const Error& why, PassActions& actions);

  // The context is released here; its passes end, and none begins any more.
  void release(ContextId context, PassActions& actions);

  // The time asked for by ArmTimer has come.
  void timer(const PassId& pass, TimePoint now, PassActions& actions);

  // Passes under way here.
  size_t active() const noexcept { return passes_.size(); }
  bool knows(const PassId& pass) const { return find(pass) != nullptr; }  // it is under way here

  // One line for each pass under way: its phase and what it waits for.
  std::string describe() const;

 private:
  Pass* find(const PassId& pass) const;
  Pass* join(int from, const PassId& pass, const PassTerms& terms, TimePoint now,
             PassActions& actions);
  Pass& open(const PassId& pass, const PassTerms& terms, TimePoint now, PassActions& actions);
  void tell(Pass& pass, int to, PassMessage message, PassActions& actions);
  void meet(Pass& pass, int rank, PassActions& actions);
  void settle(TimePoint now, PassActions& actions);

  void on(int from, const Question& question, TimePoint now, PassActions& actions);
  void on(int from, const Answer& answer, TimePoint now, PassActions& actions);
  void on(int from, const Go& go, TimePoint now, PassActions& actions);
  void on(int from, const GradientHead& head, TimePoint now, PassActions& actions);
  void on(int from, const Done& done, TimePoint now, PassActions& actions);
  void on(int from, const Abort& abort, TimePoint now, PassActions& actions);

  void ask_on(Pass& pass, uint64_t token, const std::vector<Crossing>& receives, TimePoint now,
              PassActions& actions);
  void answer(Pass& pass, uint64_t token, PassActions& actions);
  void start(Pass& pass, PassActions& actions);
  bool take(Pass& pass, const Crossing& gradient, PassActions& actions);
  void mark_done(Pass& pass, int worker, const std::vector<int>& contacted, PassActions& actions);
  void fail(Pass& pass, Error why, int told_by, PassActions& actions);
  void close(const PassId& pass, std::optional<Error> why = std::nullopt);
  Error late(const Pass& pass) const;

  const int self_;
  const std::function<std::string(int)> name_of_;
  uint64_t next_number_ = 1;
  uint64_t next_token_ = 1;
  std::map<ContextId, std::unique_ptr<Pass>> passes_;  // a context has one at a time
  std::vector<PassMessage> to_self_;                   // handled before the call returns
  EndedPasses ended_;
};

}  // namespace farspan::dist_autograd
