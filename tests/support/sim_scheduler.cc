#include "support/sim_scheduler.h"

#include <algorithm>
#include <optional>
#include <thread>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/log.h>
#include <farspan/c10d/base/mutex.h>

namespace farspan::testing {
namespace {

// Far from every real clock's time, so that the two can be told apart: see to_virtual().
constexpr std::chrono::hours kVirtualBegin{100 * 365 * 24};
constexpr TimePoint kBetweenClocks{kVirtualBegin / 2};

// The right to run. Whoever gives it away goes to sleep until it comes back.
class Baton {
 public:
  void give() {
    MutexLock lock(mutex_);
    here_ = true;
    condition_.notify_one();
  }
  void take() {
    MutexLock lock(mutex_);
    while (!here_) condition_.wait(mutex_);
    here_ = false;
  }

 private:
  Mutex mutex_;
  CondVar condition_;
  bool here_ FARSPAN_GUARDED_BY(mutex_) = false;
};

std::string micros(Clock::duration d) {
  return std::to_string(std::chrono::duration_cast<Micros>(d).count()) + " us";
}

}  // namespace

struct SimScheduler::Thread {
  int number = 0;
  Owner owner = 0;                       // whose work it does now
  std::string what;                      // its task, for people
  const std::string* inline_ = nullptr;  // work that must not wait, while it runs
  Parked* top = nullptr;                 // its innermost wait
  std::optional<Task> task;              // what it is to begin with next
  bool ending = false;
  Baton baton;
  std::thread handle;  // not of the first one
};

// A wait of a thread that is set aside.
struct SimScheduler::Parked final : Sleeper {
  Parked(Thread& on, TimePoint when) : thread(on), owner(on.owner), outer(on.top), since(when) {
    thread.top = this;
  }
  ~Parked() { thread.top = outer; }
  void wake() noexcept override { ready = true; }

  Thread& thread;
  const Owner owner;
  Parked* const outer;
  const TimePoint since;
  TimePoint until = TimePoint::max();
  bool ready = false;    // may go on
  bool resumed = false;  // goes on
};

class SimScheduler::WorldWaiter final : public Waiter {
 public:
  explicit WorldWaiter(SimScheduler& scheduler) : scheduler_(scheduler) {}
  bool wait(FutureCore& future, Deadline deadline) override {
    return scheduler_.wait(future, deadline);
  }

 private:
  SimScheduler& scheduler_;
};

namespace {
struct ThisThread {
  SimScheduler* scheduler = nullptr;
  void* thread = nullptr;
};
thread_local ThisThread this_thread;
}  // namespace

SimScheduler::SimScheduler(uint64_t seed, int64_t max_steps, SimTrace& trace, Traffic& traffic)
    : trace_(trace),
      traffic_(traffic),
      max_steps_(max_steps),
      begin_(TimePoint(kVirtualBegin) + std::chrono::seconds(seed % 10'000'000)),
      now_(begin_),
      random_(seed),
      main_id_(std::this_thread::get_id()),
      waiter_(std::make_unique<WorldWaiter>(*this)),
      outer_waiter_(current_waiter()) {
  threads_.push_back(std::make_unique<Thread>());
  threads_[0]->what = "the test";
  set_current_waiter(waiter_.get());
}

SimScheduler::~SimScheduler() {
  stop();
  set_current_waiter(outer_waiter_);
}

TimePoint SimScheduler::to_virtual(Deadline deadline) const {
  if (deadline.is_never() || deadline.at() >= kBetweenClocks) return deadline.at();
  // Rounded up to about three digits: what a program means by "in 5 s" is the same in every run,
  // however long it took from there to here.
  const auto left = std::chrono::ceil<Micros>(deadline.remaining()).count();
  int64_t grain = 1000;
  while (left / grain >= 1000) grain *= 10;
  return now_ + Micros((left + grain - 1) / grain * grain);
}

SimScheduler::Thread& SimScheduler::current() {
  if (this_thread.scheduler == this) return *static_cast<Thread*>(this_thread.thread);
  FARSPAN_ASSERT(std::this_thread::get_id() == main_id_,
                 "a World moves by the thread that made it, and by its own");
  return *threads_[0];
}

void SimScheduler::note(const std::string& what) { trace_.add(elapsed(), what); }

SimScheduler::EventId SimScheduler::at(TimePoint when, Owner owner, std::string what, Work work) {
  const EventId id = next_event_++;
  if (stopped_ || ended_.count(owner)) return id;
  timeline_.emplace(std::pair(std::max(when, now_), id),
                    Event{owner, std::move(what), std::move(work)});
  when_.emplace(id, std::max(when, now_));
  return id;
}

bool SimScheduler::cancel(EventId id) {
  const auto when = when_.find(id);
  if (when == when_.end()) return false;
  timeline_.erase({when->second, id});
  when_.erase(when);
  std::erase_if(overdue_, [&](const auto& late) { return late.first == id; });
  return true;
}

void SimScheduler::run(Owner owner, std::string what, Work work) {
  if (stopped_ || ended_.count(owner)) return;
  tasks_.push_back({owner, std::move(what), std::move(work)});
}

bool SimScheduler::wait(FutureCore& future, Deadline deadline) {
  if (future.ready()) return true;
  Thread& self = current();
  if (stopped_ || ended_.count(self.owner)) return false;
  if (self.inline_) complaints_.push_back(*self.inline_ + " waited, but must not block");
  const TimePoint until = to_virtual(deadline);
  if (until <= now_) return false;
  if (&self == threads_[0].get()) {
    Goal goal{[&future] { return future.ready(); }, until, Time::kPasses};
    pursue(goal);
    return future.ready();
  }
  Parked parked(self, now_);
  parked.until = until;
  if (!future.add_sleeper(parked)) return true;
  EventId timer = 0;
  if (until != TimePoint::max()) {
    timer = at(until, self.owner, "", [&parked] { parked.ready = true; });
  }
  parked_.push_back(&parked);
  drive(self, &parked);
  std::erase(parked_, &parked);
  cancel(timer);
  future.remove_sleeper(parked);
  return future.ready();
}

bool SimScheduler::step() {
  Goal goal{nullptr, now_, Time::kStands};
  goal.reached = [&goal] { return goal.steps > 0; };
  pursue(goal);
  return goal.steps > 0;
}

void SimScheduler::drain() {
  Goal goal{[] { return false; }, TimePoint::max(), Time::kFollowsFrames};
  pursue(goal);
}

void SimScheduler::advance(Clock::duration duration) {
  Goal goal{[] { return false; }, now_ + duration, Time::kPasses};
  pursue(goal);
}

bool SimScheduler::run_until(std::function<bool()> condition, TimePoint limit) {
  Goal goal{condition, limit, Time::kPasses};
  pursue(goal);
  return condition();
}

// By the first thread: drives the world, itself and through others, until the goal is over.
void SimScheduler::pursue(Goal& goal) {
  Thread& self = current();
  FARSPAN_ASSERT(&self == threads_[0].get(), "a World is moved by the thread that made it");
  Goal* const outer = goal_;
  goal_ = &goal;
  drive(self, nullptr);
  goal_ = outer;
}

// What every thread does that has the baton and no work of its own: moves the world on, until it is
// its turn to go on (its wait is over, it is given a task, the goal is reached).
void SimScheduler::drive(Thread& self, Parked* mine) {
  const bool is_first = &self == threads_[0].get();
  const bool at_base = !is_first && !mine;
  for (;;) {
    if (at_base && (self.task || self.ending)) return;
    if (mine && mine->resumed) return;
    if (!goal_->over && goal_->reached()) goal_->over = true;
    if (!goal_->over && goal_->steps >= max_steps_) {
      diagnosis_ = "still busy after " + std::to_string(max_steps_) + " steps: a livelock?\n" +
                   (describer_ ? describer_() : describe());
      complaints_.push_back(diagnosis_);
      goal_->over = true;
    }
    if (goal_->over) {
      if (is_first) return;
      hand_to(self, at_base, *threads_[0]);
      continue;
    }
    if (act(self, at_base)) continue;
    pass_time_or_give_up();
  }
}

// One of the things that can happen now, as the seed decides. False: there are none.
bool SimScheduler::act(Thread& self, bool at_base) {
  std::vector<Parked*> ready;
  for (Parked* parked : parked_) {
    if (!parked->ready || parked->thread.top != parked || frozen_.count(parked->owner)) continue;
    ready.push_back(parked);
  }
  std::vector<size_t> tasks;
  for (size_t i = 0; i < tasks_.size(); ++i) {
    if (!frozen_.count(tasks_[i].owner)) tasks.push_back(i);
  }
  const size_t frames = traffic_.deliverable();
  const size_t events = !timeline_.empty() && timeline_.begin()->first.first <= now_;
  const size_t choices = ready.size() + tasks.size() + frames + events;
  if (choices == 0) return false;
  ++goal_->steps;
  size_t choice = random_.below(choices);
  if (choice < ready.size()) {
    resume(self, at_base, *ready[choice]);
  } else if ((choice -= ready.size()) < tasks.size()) {
    start_task(self, at_base, tasks[choice]);
  } else if ((choice -= tasks.size()) < frames) {
    traffic_.deliver(choice);
  } else {
    run_due_event();
  }
  return true;
}

void SimScheduler::resume(Thread& self, bool at_base, Parked& parked) {
  note(parked.thread.what + " goes on");
  std::erase(parked_, &parked);
  parked.resumed = true;
  if (&parked.thread != &self) hand_to(self, at_base, parked.thread);
}

void SimScheduler::start_task(Thread& self, bool at_base, size_t index) {
  Thread& runner = at_base ? self : idle_thread();
  runner.task = std::move(tasks_[index]);
  tasks_.erase(tasks_.begin() + static_cast<std::ptrdiff_t>(index));
  if (&runner != &self) hand_to(self, at_base, runner);
}

void SimScheduler::run_due_event() {
  const auto first = timeline_.begin();
  const EventId id = first->first.second;
  Event event = std::move(first->second);
  timeline_.erase(first);
  if (frozen_.count(event.owner)) {
    overdue_.emplace_back(id, std::move(event));
    return;
  }
  when_.erase(id);
  if (!event.what.empty()) note(event.what);
  run_as(event.owner, event.work);
}

void SimScheduler::pass_time_or_give_up() {
  const TimePoint arrival = traffic_.next_arrival();
  const TimePoint event = timeline_.empty() ? TimePoint::max() : timeline_.begin()->first.first;
  const TimePoint next = std::min(arrival, event);
  const bool may_pass = goal_->time == Time::kPasses ||
                        (goal_->time == Time::kFollowsFrames && arrival != TimePoint::max());
  if (may_pass && next != TimePoint::max() && next <= goal_->limit) {
    now_ = next;
    return;
  }
  goal_->over = true;
  if (goal_->time != Time::kPasses) return;
  if (goal_->limit != TimePoint::max()) {
    now_ = goal_->limit;
    return;
  }
  diagnosis_ = "nothing is under way, and no timer is set: what is waited for can never come\n" +
               (describer_ ? describer_() : describe());
  log(LogLevel::kWarning, "world", diagnosis_);
}

void SimScheduler::run_as(Owner owner, const Work& work) {
  Thread& self = current();
  const Owner outer = std::exchange(self.owner, owner);
  work();
  self.owner = outer;
}

void SimScheduler::run_inline(Owner owner, const std::string& what, const Work& work) {
  Thread& self = current();
  const std::string* const outer = std::exchange(self.inline_, &what);
  run_as(owner, work);
  self.inline_ = outer;
}

// `next` runs; this thread sleeps until it is handed the baton.
void SimScheduler::hand_to(Thread& self, bool at_base, Thread& next) {
  if (at_base) idle_.push_back(&self);
  next.baton.give();
  self.baton.take();
}

SimScheduler::Thread& SimScheduler::idle_thread() {
  if (!idle_.empty()) {
    Thread& thread = *idle_.back();
    idle_.pop_back();
    return thread;
  }
  threads_.push_back(std::make_unique<Thread>());
  Thread& thread = *threads_.back();
  thread.number = static_cast<int>(threads_.size()) - 1;
  thread.handle = std::thread([this, &thread] { run_thread(thread); });
  return thread;
}

void SimScheduler::run_thread(Thread& self) {
  this_thread = {this, &self};
  set_current_waiter(waiter_.get());
  self.baton.take();
  while (!self.ending) {
    if (self.task) {
      const Task task = std::move(*self.task);
      self.task.reset();
      self.what = task.what;
      note(task.what);
      run_as(task.owner, task.work);
    }
    drive(self, nullptr);
  }
}

void SimScheduler::thaw(Owner owner) {
  if (frozen_.erase(owner) == 0) return;
  std::vector<std::pair<EventId, Event>> others;
  for (auto& [id, event] : std::exchange(overdue_, {})) {
    if (event.owner == owner) {
      when_[id] = now_;
      timeline_.emplace(std::pair(now_, id), std::move(event));
    } else {
      others.emplace_back(id, std::move(event));
    }
  }
  overdue_ = std::move(others);
}

void SimScheduler::end_owner(Owner owner) {
  thaw(owner);
  ended_.insert(owner);
  // Moved out first: what goes with them may ask for more.
  std::vector<Task> tasks;
  std::vector<Event> events;
  const auto kept = std::stable_partition(tasks_.begin(), tasks_.end(),
                                          [&](const Task& task) { return task.owner != owner; });
  std::move(kept, tasks_.end(), std::back_inserter(tasks));
  tasks_.erase(kept, tasks_.end());
  for (auto it = timeline_.begin(); it != timeline_.end();) {
    if (it->second.owner == owner) {
      when_.erase(it->first.second);
      events.push_back(std::move(it->second));
      it = timeline_.erase(it);
    } else {
      ++it;
    }
  }
  for (Parked* parked : parked_) {
    if (parked->owner == owner) parked->ready = true;
  }
}

void SimScheduler::stop() {
  if (stopped_) return;
  FARSPAN_ASSERT(!goal_ && &current() == threads_[0].get(),
                 "a World ends in the thread that made it, and not while it moves");
  stopped_ = true;
  frozen_.clear();
  overdue_.clear();
  std::vector<Task> tasks;
  tasks.swap(tasks_);
  Timeline timeline;
  timeline.swap(timeline_);
  when_.clear();
  for (Parked* parked : parked_) parked->ready = true;
  tasks.clear();
  timeline.clear();
  Goal quiet{[] { return false; }, now_, Time::kStands};
  pursue(quiet);
  for (size_t i = 1; i < threads_.size(); ++i) {
    threads_[i]->ending = true;
    threads_[i]->baton.give();
    threads_[i]->handle.join();
  }
}

int SimScheduler::waiting_threads(Owner owner) const {
  return static_cast<int>(std::count_if(parked_.begin(), parked_.end(), [&](const Parked* parked) {
    return parked->owner == owner;
  }));
}

std::string SimScheduler::describe() const {
  constexpr size_t kMost = 30;
  std::string text = "time: " + micros(elapsed()) + " since the World began\n";
  for (const Parked* parked : parked_) {
    text += "  waits: " + parked->thread.what + ", since " + micros(parked->since - begin_);
    if (parked->until != TimePoint::max()) text += ", until " + micros(parked->until - begin_);
    text += parked->ready ? ", and could go on\n" : "\n";
  }
  for (size_t i = 0; i < std::min(tasks_.size(), kMost); ++i) {
    text += "  to be run: " + tasks_[i].what + "\n";
  }
  size_t shown = 0;
  for (const auto& [when, event] : timeline_) {
    if (event.what.empty() || ++shown > kMost) continue;
    text += "  at " + micros(when.first - begin_) + ": " + event.what + "\n";
  }
  return text;
}

}  // namespace farspan::testing
