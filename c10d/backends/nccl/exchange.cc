#include <farspan/c10d/backends/nccl/exchange.h>

#include <chrono>
#include <utility>

#include <farspan/c10d/backends/messages/receive.h>

namespace farspan::dist::nccl {
namespace {

constexpr std::chrono::milliseconds kLookAgain{1};

thread_local bool helps = false;

}  // namespace

SharedEvent make_event(const std::shared_ptr<device::Devices>& devices, int device) {
  return SharedEvent(devices->new_event(device, device::Reach::kThisProcess),
                     [devices](device::Event event) { devices->end_event(event); });
}

Exchange::Exchange(const std::shared_ptr<device::Devices>& devices, End which, const Message& what,
                   Block memory)
    : end(which),
      message(what),
      data(memory),
      begins(make_event(devices, what.on_device->stream.device)) {
  devices->record(begins.get(), what.on_device->stream);
}

std::string Exchange::description() const {
  return (end == End::kSend ? "send of " : "recv of ") +
         messages::describe(data.count, message.type, true) + ", tag " +
         std::to_string(message.tag);
}

bool Exchange::is_helping() noexcept { return helps; }

void Exchange::set_task(Future<int> task) {
  MutexLock lock(mutex_);
  task_ = std::move(task);
}

Future<int> Exchange::task() const {
  MutexLock lock(mutex_);
  return task_;
}

bool Exchange::block(Deadline deadline) {
  if (announced.valid() && !announced.wait_until(deadline)) return false;
  while (!ready()) {
    const Future<int> task = this->task();
    if (task.valid()) {
      const bool outer = std::exchange(helps, true);
      const bool has_run = task.wait_until(deadline);
      helps = outer;
      return has_run && sleep(deadline);
    }
    if (sleep(earlier(deadline, Deadline::after(kLookAgain)))) return true;
    if (deadline.expired()) return false;
  }
  return true;
}

}  // namespace farspan::dist::nccl
