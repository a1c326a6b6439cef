#include <farspan/rpc/agent/serving_wait.h>

#include <utility>

namespace farspan::agent {
namespace {

thread_local ServingWait* innermost = nullptr;

}  // namespace

ServingWait::ServingWait(net::Reactor& reactor,
                         const std::function<bool(const Request&)>& is_own) noexcept
    : Unfinished(reactor.timers()),
      reactor_(reactor),
      is_own_(is_own),
      outer_(std::exchange(innermost, this)) {}

ServingWait::~ServingWait() {
  innermost = outer_;
  hand_over();
}

std::unique_ptr<net::Task> ServingWait::wait(FutureCore& future, net::Source* hint,
                                             const net::WaitPlan& plan) {
  const Relay relay(future, over_);
  depth_ = net::depth_of_waits() + 1;
  reactor_.wait(over_, Deadline::never(), hint, plan);
  depth_ = -1;
  return std::move(task_);
}

// The depth comes first: deeper down others may be coming for what was taken.
ServingWait* ServingWait::for_request(const net::Reactor& reactor,
                                      const Request& request) noexcept {
  ServingWait* const wait = innermost;
  if (!wait || wait->depth_ != net::depth_of_waits() || wait->is_lent() || wait->task_) {
    return nullptr;
  }
  if (&wait->reactor_ != &reactor || !net::has_stack_for_task()) return nullptr;
  try {
    return wait->is_own_(request) ? wait : nullptr;
  } catch (...) {  // what is wrong with it is found where it is served
    return nullptr;
  }
}

void ServingWait::take(std::unique_ptr<net::Task> task) noexcept {
  task_ = std::move(task);
  over_.set();
}

void ServingWait::hand_over() noexcept {
  if (!task_) return;
  const auto task = std::make_shared<std::unique_ptr<net::Task>>(std::move(task_));
  reactor_.timers().add(TimePoint(),
                        [&reactor = reactor_, task] { reactor.run(std::move(*task)); });
}

}  // namespace farspan::agent
