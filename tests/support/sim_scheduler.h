// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// SimScheduler: one thing at a time, in an order that a seed decides, on a clock of its own.
//
// Handlers that may block run on threads of their own, as in the agent: a thread that waits is set
// aside, and goes on when what it waits for is there, whatever the others do meanwhile. But only
// one thread runs at any moment, and it runs until it waits or ends: so tests need no locks, and a
// run is a function of its seed.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <farspan/c10d/base/future_core.h>
#include <farspan/c10d/base/time.h>

#include "support/seeded_random.h"
#include "support/sim_trace.h"

namespace farspan::testing {

// What moves beside threads and timers: the network's frames.
class Traffic {
 public:
  virtual size_t deliverable() = 0;        // how many can arrive now
  virtual void deliver(size_t which) = 0;  // one of those
  virtual TimePoint next_arrival() = 0;    // of one that is still under way; max: none is

 protected:
  ~Traffic() = default;
};

// Threading: by the thread that made it, and by the threads that it runs tasks on; of all these one
//            runs at a time.
class SimScheduler {
 public:
  using Owner = uint64_t;  // whose work it is; 0: nobody's, it is part of the world
  using EventId = uint64_t;
  using Work = std::function<void()>;

  SimScheduler(uint64_t seed, int64_t max_steps, SimTrace& trace, Traffic& traffic);
  ~SimScheduler();

  // Virtual time; it begins at a point that no real clock reaches.
  TimePoint now() const noexcept { return now_; }
  Clock::duration elapsed() const noexcept { return now_ - begin_; }
  // A deadline of this clock as it is; one of the real clock as the time that was left, from now.
  TimePoint to_virtual(Deadline deadline) const;

  EventId at(TimePoint when, Owner owner, std::string what, Work work);
  bool cancel(EventId id);  // false: it has run, or was never there
  // Runs `work` on a thread on which it may wait.
  void run(Owner owner, std::string what, Work work);

  // From any of its threads: lets the world go on until the future is ready. Time moves when
  // nothing else can, up to the deadline.
  //   returns  false: the deadline has passed, or nothing can ever bring the result (diagnosis())
  bool wait(FutureCore& future, Deadline deadline);

  // From the thread that made it. One event: true. Nothing can happen now: false.
  bool step();
  // Until nothing can happen now and no frame is under way. Time moves only as those need it.
  void drain();
  // Lets `duration` pass.
  void advance(Clock::duration duration);
  //   returns  false: it did not come true before the limit
  bool run_until(std::function<bool()> condition, TimePoint limit);

  // Runs `work` on the calling thread, in the name of `owner`. Inline: it must not wait; if it
  // does, that is a complaint.
  void run_as(Owner owner, const Work& work);
  void run_inline(Owner owner, const std::string& what, const Work& work);
  // Nothing of this owner happens any more: its work is dropped, its threads stop waiting.
  void end_owner(Owner owner);
  // Nothing of this owner happens until thaw(): what comes due meanwhile happens then.
  void freeze(Owner owner) { frozen_.insert(owner); }
  void thaw(Owner owner);
  // Ends all owners, and the threads.
  void stop();

  SeededRandom& random() noexcept { return random_; }
  // Why the last wait() gave up, or the last step took too many steps.
  const std::string& diagnosis() const noexcept { return diagnosis_; }
  // Rules that were broken: work waited that must not.
  const std::vector<std::string>& complaints() const noexcept { return complaints_; }
  int waiting_threads(Owner owner) const;
  std::string describe() const;
  // Called for diagnosis().
  void set_describer(std::function<std::string()> describer) { describer_ = std::move(describer); }

 private:
  struct Thread;
  struct Parked;
  class WorldWaiter;
  enum class Time { kStands, kFollowsFrames, kPasses };
  // What the thread that drives the world wants.
  struct Goal {
    std::function<bool()> reached;
    TimePoint limit;
    Time time;
    int64_t steps = 0;
    bool over = false;
  };
  struct Event {
    Owner owner;
    std::string what;
    Work work;
  };
  struct Task {
    Owner owner;
    std::string what;
    Work work;
  };
  using Timeline = std::map<std::pair<TimePoint, EventId>, Event>;

  Thread& current();
  void pursue(Goal& goal);
  void drive(Thread& self, Parked* mine);
  bool act(Thread& self, bool at_base);
  void pass_time_or_give_up();
  void resume(Thread& self, bool at_base, Parked& parked);
  void start_task(Thread& self, bool at_base, size_t index);
  void run_due_event();
  void hand_to(Thread& self, bool at_base, Thread& next);
  void run_thread(Thread& self);
  Thread& idle_thread();
  void note(const std::string& what);

  SimTrace& trace_;
  Traffic& traffic_;
  const int64_t max_steps_;
  const TimePoint begin_;
  TimePoint now_;
  SeededRandom random_;

  Timeline timeline_;
  std::map<EventId, TimePoint> when_;
  EventId next_event_ = 1;
  std::vector<Task> tasks_;
  std::vector<Parked*> parked_;  // in the order of their waiting
  std::set<Owner> ended_, frozen_;
  std::vector<std::pair<EventId, Event>> overdue_;  // of frozen owners
  bool stopped_ = false;

  std::vector<std::unique_ptr<Thread>> threads_;  // the first is the one that made this
  std::vector<Thread*> idle_;
  std::thread::id main_id_;
  std::unique_ptr<WorldWaiter> waiter_;
  Waiter* outer_waiter_ = nullptr;
  Goal* goal_ = nullptr;

  std::function<std::string()> describer_;
  std::string diagnosis_;
  std::vector<std::string> complaints_;
};

}  // namespace farspan::testing
