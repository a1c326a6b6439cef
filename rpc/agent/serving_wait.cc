#include <farspan/rpc/agent/serving_wait.h>

#include <utility>

namespace farspan::agent {
namespace {

thread_local ServingWait* innermost = nullptr;

}  // namespace

class ServingWait::Taken final : public FutureCore {
 public:
  void set() {
    complete([] {});
  }
};

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

void ServingWait::wait(FutureCore& future, net::Source* hint, net::Expected expected) {
  over_ = std::make_shared<Taken>();
  future.on_ready([over = over_] { over->set(); });
  depth_ = net::depth_of_waits() + 1;
  reactor_.wait(*over_, Deadline::never(), hint, expected, /*back_soon=*/false);
  depth_ = -1;
}

void ServingWait::serve() noexcept {
  const std::unique_ptr<net::Task> task = std::move(task_);
  if (!task) return;
  const uint64_t outer = net::current_chain();
  net::set_current_chain(task->chain);
  task->run();
  net::set_current_chain(outer);
}

ServingWait* ServingWait::for_request(const net::Reactor& reactor,
                                      const Request& request) noexcept {
  ServingWait* const wait = innermost;
  if (!wait || &wait->reactor_ != &reactor || wait->task_) return nullptr;
  if (wait->depth_ != net::depth_of_waits() || !net::has_stack_for_task()) return nullptr;
  try {
    return wait->is_own_(request) ? wait : nullptr;
  } catch (...) {  // what is wrong with it is found where it is served
    return nullptr;
  }
}

void ServingWait::take(std::unique_ptr<net::Task> task) {
  task_ = std::move(task);
  over_->set();
}

void ServingWait::hand_over() noexcept {
  if (!task_) return;
  const auto task = std::make_shared<std::unique_ptr<net::Task>>(std::move(task_));
  reactor_.timers().add(TimePoint(),
                        [&reactor = reactor_, task] { reactor.run(std::move(*task)); });
}

}  // namespace farspan::agent
