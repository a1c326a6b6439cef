// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// How every collective is performed: at once on the calling thread when it is its turn, or in the
// lane of its group.
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include <farspan/c10d/group/process_group.h>
#include <farspan/c10d/group/work.h>

namespace farspan::dist {

// One collective that is ready to be performed. `body(backend, call)` does it, and holds on to the
// tensors that it needs.
template <class Body>
struct Plan {
  Group group;
  Signature signature;
  double factor = 1;
  std::optional<Millis> timeout;
  Body body;
};

namespace detail {

// Performs a plan in its turn, and notes how it went.
template <class Body>
void perform(Plan<Body>& plan, uint64_t record, Deadline deadline, TimePoint called) {
  ProcessGroup& group = *plan.group;
  try {
    group.check_turn(plan.signature);
    try {
      const auto type = static_cast<DType>(plan.signature.type);
      plan.body(group.backend(), Call{plan.signature, type, plan.factor, deadline});
    } catch (...) {
      throw group.fail(to_error(std::current_exception()), plan.signature, Clock::now() - called);
    }
  } catch (...) {
    group.records().end(record, true, Clock::now());
    throw;
  }
  group.records().end(record, false, Clock::now());
}

template <class Body>
uint64_t note(const Plan<Body>& plan, OperationRecord::State state, TimePoint called) {
  OperationRecord record;
  record.signature = plan.signature;
  record.state = state;
  record.called = called;
  if (state == OperationRecord::State::kRunning) record.begun = called;
  return plan.group->records().add(record);
}

template <class Body>
class CollectiveTask final : public Lane::Task {
 public:
  explicit CollectiveTask(Plan<Body> plan) : CollectiveTask(std::move(plan), Clock::now()) {}

  void run(uint64_t sequence) noexcept override {
    plan_->signature.sequence = sequence;
    plan_->group->records().begin(record_, sequence, Clock::now());
    try {
      perform(*plan_, record_, deadline(), called_);
    } catch (...) {
      failure_ = to_error(std::current_exception());
    }
  }
  void complete() noexcept override {
    let_go();
    if (failure_) {
      set_error(*failure_);
    } else {
      set_value(-1);
    }
  }
  void reject() noexcept override {
    Error error = Error(Code::kShutdown, "the group has ended")
                      .operation(describe(plan_->signature))
                      .elapsed(Clock::now() - called_);
    plan_->group->records().end(record_, true, Clock::now());
    let_go();
    set_error(std::move(error));
  }
  void expire(uint64_t sequence) noexcept override {
    plan_->signature.sequence = sequence;
    ProcessGroup& group = *plan_->group;
    try {
      group.check_turn(plan_->signature);
      failure_ = group.fail(group.missed_turn(), plan_->signature, Clock::now() - called_);
    } catch (...) {
      failure_ = to_error(std::current_exception());
    }
    group.records().end(record_, true, Clock::now());
    complete();
  }

 private:
  CollectiveTask(Plan<Body> plan, TimePoint called)
      : Task(plan.group->lane(), plan.group->deadline(plan.timeout, called)),
        called_(called),
        plan_(std::move(plan)),
        record_(note(*plan_, OperationRecord::State::kQueued, called_)) {}

  void let_go() noexcept { plan_.reset(); }  // of the tensors, and of the group

  const TimePoint called_;
  std::optional<Plan<Body>> plan_;
  const uint64_t record_;
  std::optional<Error> failure_;
};

}  // namespace detail

template <class Body>
Work perform_async(Plan<Body> plan) {
  plan.group->check_usable(plan.signature);
  const std::shared_ptr<Lane> lane = plan.group->lane();
  const bool is_alone = plan.group->size() == 1;  // nobody to wait for: a thread would cost more
  auto task = std::make_shared<detail::CollectiveTask<Body>>(std::move(plan));
  const Work work{Future<int>(task)};
  lane->post(std::move(task), is_alone);
  return work;
}

template <class Body>
void perform_now(Plan<Body> plan) {
  Lane& lane = *plan.group->lane();
  const uint64_t sequence = lane.try_take();
  if (sequence == 0) return perform_async(std::move(plan)).wait();
  struct Turn {
    Lane& lane;
    ~Turn() { lane.release(); }
  } turn{lane};
  const TimePoint called = Clock::now();
  plan.signature.sequence = sequence;
  const uint64_t record = detail::note(plan, OperationRecord::State::kRunning, called);
  detail::perform(plan, record, plan.group->deadline(plan.timeout, called), called);
}

}  // namespace farspan::dist
