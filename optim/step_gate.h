// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// StepGate: who may use parameters, and who may change them, in consistent mode. A state machine
// without I/O; one worker drives it for the whole job. Its rules: optim/README.md, "Consistent".
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include <farspan/autograd/pass_messages.h>
#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/time.h>

namespace farspan::optim {

// Of a request, in the order of arrival: it is also its age.
using Ticket = uint64_t;

struct Granted {
  Ticket ticket;
  uint64_t number;  // of a step: 1, 2, ... in the order in which steps were granted; entries: 0
};
struct Refused {
  Ticket ticket;
  Error why;
};
// Tell the owner that it may not begin this step any more; part_ended() when it is not applying it.
struct Fence {
  Ticket step;
  int owner;
  uint64_t number;  // of the step
};
using GateActions = std::vector<std::variant<Granted, Refused, Fence>>;

struct GateCounters {
  size_t contexts = 0;  // inside, or waiting to get in
  size_t entries = 0;   // that wait
  size_t steps = 0;     // that wait, or may be being applied
};

// A context *enters* an owner before its first call there runs, and is inside until it leaves or
// asks for a step; a step is granted when no context is inside any of the owners it changes.
//
// Threading: one thread at a time. No method blocks; what it leads to is appended to `actions`.
class StepGate {
 public:
  using ContextId = dist_autograd::ContextId;
  using NameOf = std::function<std::string(int rank)>;
  explicit StepGate(NameOf name_of) : name_of_(std::move(name_of)) {}

  // Granted at once when the context is inside this owner already.
  Ticket enter(ContextId context, int owner, TimePoint now, GateActions& actions);
  // Enters whatever waits: a context that used the owner's parameters before it had a gate.
  void adopt(ContextId context, int owner, TimePoint now);
  // The owner has let go of the context. What waits to enter it there is refused.
  void leave(ContextId context, int owner, GateActions& actions);

  // A step on the gradients of `context`, which is finished now: it leaves all owners.
  Ticket request_step(ContextId context, int trainer, std::set<int> owners, TimePoint now,
                      GateActions& actions);
  // A granted step is being applied by no owner, now and later; a waiting one is given up.
  void step_done(Ticket step, GateActions& actions);
  // The trainer is done with a granted step, but owners may not be: it is over when all of them
  // have been fenced and have ended their parts.
  void abandon_step(Ticket step, GateActions& actions);
  // This owner is not applying the step, and will not; or it is lost.
  void part_ended(Ticket step, int owner, GateActions& actions);

  // When it still waits: refuses it with kTimeout, naming what holds it up.
  void expire(Ticket ticket, TimePoint now, GateActions& actions);
  // Drops what came from this worker: entries, contexts inside it and made by it, and steps that
  // wait. Granted ones are abandoned.
  void lose_worker(int rank, const Error& why, GateActions& actions);

  GateCounters counters() const noexcept {
    return {contexts_.size(), entries_.size(), steps_.size()};
  }

 private:
  struct Context {
    Ticket age;
    TimePoint since;
    std::set<int> inside;  // owners
    int waiting = 0;       // entries
  };
  struct Entry {
    ContextId context;
    int owner;
    TimePoint asked;
  };
  struct Step {
    ContextId context;
    int trainer;
    std::set<int> owners;
    TimePoint asked;
    uint64_t number = 0;  // once it is granted
    bool abandoned = false;
    std::set<int> fenced = {};  // owners that may still be applying it, once it is abandoned

    bool granted() const noexcept { return number > 0; }
  };
  using Steps = std::map<Ticket, Step>;

  Context& know(ContextId context, Ticket age, TimePoint now);
  void forget_if_gone(ContextId context);
  template <class Which>
  void refuse_entries(Which which, const Error& why, GateActions& actions);
  void advance(GateActions& actions);
  bool admit_entries(GateActions& actions);
  bool grant_steps(GateActions& actions);
  void abandon(Steps::value_type& step, int lost, GateActions& actions);
  bool holds_up(Ticket step, const Step& what, const Entry& entry) const;
  bool may_go(Ticket ticket, const Step& step) const;
  std::string holders(Ticket ticket, const Step& step, TimePoint now) const;
  std::string state(const Step& step) const;
  std::string text(ContextId context) const;

  const NameOf name_of_;
  Ticket next_ = 1;
  uint64_t granted_ = 0;
  std::map<ContextId, Context> contexts_;
  std::map<Ticket, Entry> entries_;
  Steps steps_;
};

}  // namespace farspan::optim
