// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// How every collective is performed: at once on the calling thread when it is its turn, or in the
// lane of its group.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <farspan/c10d/base/device_order.h>
#include <farspan/c10d/group/device_place.h>
#include <farspan/c10d/group/process_group.h>
#include <farspan/c10d/group/work.h>

namespace farspan::dist {

// What a collective does in its turn, before it begins: TensorBlock::begin().
using BeginFirst = std::function<void(Deadline deadline)>;

// One collective that is ready to be performed. `body(backend, call)` does it, and holds on to the
// tensors that it needs.
template <class Body>
struct Plan {
  Group group;
  Signature signature;
  double factor = 1;
  std::optional<Millis> timeout;
  std::shared_ptr<const DevicePlace> device;  // that the backend works on; else null
  std::vector<BeginFirst> first;
  Body body;
};

namespace detail {

// When a device has ended it, notes how it went.
inline void note_end(const Future<int>& ended, const Group& group, const Signature& signature,
                     uint64_t record, TimePoint called) {
  // Not the group: the last one to let go of it waits for the thread that this is called on.
  ended.on_ready([ended, weak = std::weak_ptr<ProcessGroup>(group), signature, record, called] {
    const Group alive = weak.lock();
    if (!alive) return;
    alive->records().end(record, ended.has_error(), Clock::now());
    if (ended.has_error()) alive->fail(ended.error(), signature, Clock::now() - called);
  });
}

// What a device goes on with; empty where the backend works on none.
struct OnDevice {
  Future<int> ended;
  std::shared_ptr<DeviceWork> work;  // of a stream of the collective's own
};

// Performs a plan in its turn, and notes how it went.
//   after  of one on a device: behind that, on a stream of its own; null: on the current one
template <class Body>
OnDevice perform(Plan<Body>& plan, uint64_t record, Deadline deadline, TimePoint called,
                 DeviceWork* after = nullptr) {
  ProcessGroup& group = *plan.group;
  OnDevice on_device;
  try {
    group.check_turn(plan.signature);
    try {
      std::unique_ptr<DevicePlace::Turn> turn;
      if (plan.device) turn = after ? plan.device->turn_after(*after) : plan.device->turn();
      for (const BeginFirst& begin : plan.first) begin(deadline);
      const auto type = static_cast<DType>(plan.signature.type);
      plan.body(group.backend(),
                Call{plan.signature, type, plan.factor, deadline, turn ? &turn->call : nullptr});
      if (turn) on_device.ended = turn->call.ended;
      if (after) on_device.work = plan.device->work_so_far();
    } catch (...) {
      throw group.fail(to_error(std::current_exception()), plan.signature, Clock::now() - called);
    }
  } catch (...) {
    group.records().end(record, true, Clock::now());
    throw;
  }
  if (on_device.ended.valid()) {
    note_end(on_device.ended, plan.group, plan.signature, record, called);
  } else {
    group.records().end(record, false, Clock::now());
  }
  return on_device;
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
    if (!after_) observe_device_work();  // what the caller's streams have been given
    plan_->signature.sequence = sequence;
    plan_->group->records().begin(record_, sequence, Clock::now());
    try {
      OnDevice on_device = perform(*plan_, record_, deadline(), called_, after_.get());
      work_ = std::move(on_device.work);
      if (ended_) *ended_ = std::move(on_device.ended);
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
      failure_ = group.fail(group.missed_turn(record_), plan_->signature, Clock::now() - called_);
    } catch (...) {
      failure_ = to_error(std::current_exception());
    }
    group.records().end(record_, true, Clock::now());
    complete();
  }

  // Of one that the backend works on a device for; else null.
  const std::shared_ptr<Future<int>>& ended() const noexcept { return ended_; }

 private:
  CollectiveTask(Plan<Body> plan, TimePoint called)
      : Task(plan.group->lane(), plan.group->deadline(plan.timeout, called)),
        called_(called),
        plan_(std::move(plan)),
        record_(note(*plan_, OperationRecord::State::kQueued, called_)),
        ended_(plan_->device ? std::make_shared<Future<int>>() : nullptr),
        after_(plan_->device ? plan_->device->work_so_far() : nullptr) {}

  // Who waits for it uses the results on his current stream.
  void take_over() override {
    if (work_) return work_->wait_on_current_streams();
    observe_device_work();
  }

  void let_go() noexcept { plan_.reset(); }  // of the tensors, and of the group

  const TimePoint called_;
  std::optional<Plan<Body>> plan_;
  const uint64_t record_;
  const std::shared_ptr<Future<int>> ended_;
  const std::shared_ptr<DeviceWork> after_;  // what the caller's stream had been given
  std::shared_ptr<DeviceWork> work_;         // of the collective
  std::optional<Error> failure_;
};

}  // namespace detail

template <class Body>
Work perform_async(Plan<Body> plan) {
  plan.group->check_usable(plan.signature);
  if (!plan.device) publish_device_work();
  const std::shared_ptr<Lane> lane = plan.group->lane();
  // Nobody to wait for, but maybe a device: a thread would cost more.
  const bool is_alone =
      plan.group->size() == 1 || (plan.device && !plan.group->backend().waits_on_device());
  auto task = std::make_shared<detail::CollectiveTask<Body>>(std::move(plan));
  const Work work(Future<int>(task), task->ended());
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
