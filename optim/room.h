// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// OptimRoom: a worker's part in consistent steps. As an owner of parameters it asks before a
// context uses them; as a trainer it asks before a step. Rank 0 answers, from its StepGate.
#pragma once

#include <atomic>
#include <compare>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <farspan/autograd/room.h>
#include <farspan/c10d/base/future.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/optim/recent_set.h>
#include <farspan/optim/step_gate.h>
#include <farspan/rpc/worker.h>

namespace farspan::optim {

// Threading: every method from any thread.
class OptimRoom final : public WorkerRoom,
                        public dist_autograd::ContextGate,
                        public std::enable_shared_from_this<OptimRoom> {
 public:
  using ContextId = dist_autograd::ContextId;
  // A step that a trainer asks for; unique at that trainer.
  enum class StepKey : uint64_t {};

  // After the worker's AutogradRoom.
  static void install(Worker& worker);
  //   throws  Error kInvalidArgument: this worker has none
  static std::shared_ptr<OptimRoom> of(Worker& worker);

  // From the first to the last of these two, contexts ask before they use what this worker owns.
  //   throws  Error: rank 0 could not be asked
  void guard_parameters();
  void unguard_parameters() noexcept;

  StepKey new_key() noexcept { return StepKey(next_key_.fetch_add(1)); }
  // Waits for the turn of a step that changes parameters of these owners. Whatever comes of it, one
  // of the next two must follow.
  //   returns  its number: 1, 2, ... in the order of the turns
  //   throws   Error kTimeout: names the contexts, and their workers, that hold it up
  uint64_t begin_step(StepKey key, ContextId context, const std::vector<int64_t>& owners,
                      const CallOptions& options);
  // No owner is applying it, or will.
  void end_step(StepKey key) noexcept;
  // An owner may still be applying it, or yet begin to, since it has not answered.
  void abandon_step(StepKey key) noexcept;

  // Around what a step does to the parameters here.
  //   number  of the step
  //   throws  Error kCancelled: it is over already
  void begin_part(uint64_t number);
  void end_part(uint64_t number) noexcept;

  // ContextGate
  bool enter(ContextId context) override;
  void released(ContextId context) noexcept override;

  // What rank 0 is asked.
  Future<uint64_t> on_enter(int owner, ContextId context, Deadline deadline);
  void on_adopt(int owner, ContextId context);
  Future<uint64_t> on_begin(int trainer, StepKey key, ContextId context,
                            const std::vector<int64_t>& owners, Deadline deadline);

  // Of the gate: all zero but on rank 0.
  GateCounters counters() const;
  // Ends that came before what they end, which may come yet. They may stay when it has been lost.
  size_t ends_remembered() const;

  // WorkerRoom
  void stop() override;

 private:
  // What rank 0 is told, as it lies on the wire.
  struct Farewell {
    // A context is gone at the sender, and no request to enter it is under way; or one may be,
    // since it had no answer; a step of the sender's has ended; it has given one up.
    enum What : uint64_t { kLeft = 1, kGaveUp = 2, kStepped = 3, kAbandoned = 4 };
    uint64_t what = 0;
    uint64_t id = 0;  // ContextId or StepKey
    auto operator<=>(const Farewell&) const = default;
  };
  // A request that the gate has not answered yet.
  struct Waiting {
    Promise<uint64_t> answer;
    agent::TimerId timer = 0;
  };

  // That a context has entered here, or waits to.
  struct Entry {
    Future<uint64_t> asked = {};
    Deadline until = {};    // of whoever asked
    bool in_doubt = false;  // an earlier request may not have been served
  };

  explicit OptimRoom(Worker& worker);
  void listen();
  std::shared_ptr<Worker> worker() const;
  // Without a deadline: what it waits for has one of its own.
  bool wait(FutureCore& answer, Deadline deadline = Deadline::never()) const;
  bool may_be_under_way(const Future<uint64_t>& asked) const;
  void adopt_contexts();
  void ask_to_enter(Worker& here, ContextId context, const Promise<uint64_t>& answer);
  template <class Fn>
  void drive(Fn&& fn);
  template <class Request>
  Future<uint64_t> ask(Request&& request, Deadline deadline);
  void expire(Ticket ticket);
  void lose_worker(int rank, const Error& why);
  void end_part_of(const Fence& fence);
  void tell(const Farewell& farewell) noexcept;
  void on_farewell(int from, const Farewell& farewell);
  void on_step_end(int from, const Farewell& farewell);
  void send(const Fence& fence);
  void on_fence(agent::Request request);
  Future<void> fence_step(uint64_t number);
  void check_wanted(int from, const Farewell& end) FARSPAN_REQUIRES(gate_mutex_);
  void remember_overtaken(int from, const Farewell& farewell) FARSPAN_REQUIRES(gate_mutex_);

  const std::weak_ptr<Worker> worker_;
  const std::shared_ptr<agent::Messenger> messenger_;
  std::atomic<uint64_t> next_key_{1};
  std::atomic<int> guards_{0};

  Mutex mutex_;
  Future<void> guarded_ FARSPAN_GUARDED_BY(mutex_);  // since guards_ was zero
  std::map<ContextId, Entry> entered_ FARSPAN_GUARDED_BY(mutex_);
  // The last step that has begun here, or been fenced: steps on the same owner come in the order of
  // their numbers, so none up to it begins any more.
  uint64_t last_step_ FARSPAN_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Promise<void>> applying_ FARSPAN_GUARDED_BY(mutex_);

  mutable Mutex gate_mutex_;
  StepGate gate_ FARSPAN_GUARDED_BY(gate_mutex_);
  std::map<Ticket, Waiting> waiting_ FARSPAN_GUARDED_BY(gate_mutex_);
  std::map<std::pair<int, StepKey>, Ticket> steps_ FARSPAN_GUARDED_BY(gate_mutex_);
  bool ended_ FARSPAN_GUARDED_BY(gate_mutex_) = false;
  // Farewells that came before what they end, by their senders.
  std::map<int, RecentSet<Farewell>> overtaken_ FARSPAN_GUARDED_BY(gate_mutex_);
};

}  // namespace farspan::optim
