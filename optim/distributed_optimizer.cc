#include <farspan/optim/distributed_optimizer.h>

#include <atomic>
#include <map>
#include <string>
#include <utility>

#include <farspan/c10d/base/log.h>

namespace farspan::optim {
namespace {

// Ends a consistent step, whatever came of it.
class EndOfStep {
 public:
  EndOfStep(OptimRoom& room, OptimRoom::StepKey key) : room_(room), key_(key) {}
  ~EndOfStep() { in_doubt ? room_.abandon_step(key_) : room_.end_step(key_); }
  EndOfStep(const EndOfStep&) = delete;
  EndOfStep& operator=(const EndOfStep&) = delete;

  bool in_doubt = false;  // owners have been asked to apply it, and may be at it still

 private:
  OptimRoom& room_;
  const OptimRoom::StepKey key_;
};

// Each owner's share of the groups; an owner has all groups, so that they keep their order.
std::map<int, std::vector<OwnedGroup>> by_owner(const std::vector<OwnerOptimizers::Group>& groups) {
  std::map<int, std::vector<OwnedGroup>> shares;
  for (const auto& group : groups) {
    for (const auto& part : group.parameters) shares.try_emplace(part.owner().rank);
  }
  for (const auto& group : groups) {
    for (auto& [owner, share] : shares) {
      OwnedGroup& own = share.emplace_back(OwnedGroup{{}, group.options});
      for (const auto& part : group.parameters) {
        if (part.owner().rank == owner) own.parameters.push_back(part);
      }
    }
  }
  return shares;
}

// What `call` returns; what it throws at once comes the same way.
template <class Call>
Future<void> guarded(Call call) {
  try {
    return call();
  } catch (const Error& e) {
    return make_error_future<void>(e);
  }
}

// Waits for one call to each owner, and throws all that failed as one error.
void wait_for_all(const char* operation, const std::vector<std::string>& owners,
                  const std::vector<Future<void>>& calls) {
  std::optional<Error> first;
  std::string all;
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i].wait_until(Deadline::never());  // the call has a deadline of its own
    if (!calls[i].has_error()) continue;
    const Error& error = calls[i].error();
    if (!first) first = error;
    all += (all.empty() ? "on '" : "; on '") + owners[i] +
           "': " + std::string(name_of(error.code())) + ": " + error.message();
  }
  if (!first) return;
  throw Error(first->code(), all)
      .operation(operation)
      .elapsed(first->elapsed())
      .advice(first->advice());
}

}  // namespace

OwnerOptimizers::OwnerOptimizers(Worker& worker, const std::vector<Group>& groups,
                                 const OptimizerSpec& defaults, StepMode mode)
    : room_(OptimRoom::of(worker)),
      autograd_(dist_autograd::AutogradRoom::of(worker)),
      mode_(mode) {
  const dist_autograd::OutsideContext outside;
  const bool consistent = mode == StepMode::kConsistent;
  std::vector<Future<void>> made;
  for (const auto& [rank, share] : by_owner(groups)) {
    owners_.push_back(rank);
    names_.push_back(worker.worker_info(WorkerTarget(rank)).name);
    made.push_back(guarded([&, owner = rank, &owned = share] {
      locals_.push_back(worker.remote(owner, make_local_optimizer, defaults, owned, consistent));
      return locals_.back().rpc_async(&LocalOptimizer::size).then([](int64_t) {});
    }));
  }
  if (owners_.empty()) {
    throw Error(Code::kInvalidArgument, "no parameters").operation("DistributedOptimizer");
  }
  wait_for_all("DistributedOptimizer", names_, made);
}

uint64_t OwnerOptimizers::step(dist_autograd::ContextId context, const CallOptions& options) {
  const dist_autograd::OutsideContext outside;
  const auto apply = [&](uint64_t number) {
    std::atomic<int64_t> gradients{0};
    std::vector<Future<void>> steps;
    for (const auto& local : locals_) {
      steps.push_back(guarded([&] {
        return local
            .rpc_async(options, &LocalOptimizer::step, static_cast<uint64_t>(context), number)
            .then([&](int64_t here) { gradients += here; });
      }));
    }
    wait_for_all("DistributedOptimizer::step", names_, steps);
    if (gradients == 0 && !warned_->exchange(true)) {
      log(LogLevel::kWarning, "optim",
          "DistributedOptimizer::step changes nothing: no worker has a gradient of its parameters "
          "in context " +
              std::to_string(static_cast<uint64_t>(context)) +
              "; call dist_autograd::backward() before it, in the same context");
    }
  };
  if (mode_ == StepMode::kHogwild) return apply(0), 0;
  if (const auto state = autograd_->find(context)) state->finished = true;
  const auto key = room_->new_key();
  EndOfStep end(*room_, key);
  const uint64_t number = room_->begin_step(key, context, owners_, options);
  end.in_doubt = true;
  apply(number);
  end.in_doubt = false;
  return number;
}

}  // namespace farspan::optim
