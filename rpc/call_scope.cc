#include <farspan/rpc/call_scope.h>

#include <utility>

#include <farspan/rpc/worker.h>

namespace farspan {

void CallScope::before_run() {
  for (const Future<void>& ready : first_) {
    if (!ready.wait_until(agent::current_call().deadline)) {
      throw Error(Code::kTimeout,
                  "a remote reference among the arguments was not confirmed in time");
    }
    ready.value();
  }
}

Buffer CallScope::allocate(size_t bytes) { return worker_.messenger().allocate(bytes); }

DeviceTensors* CallScope::device_tensors() {
  DeviceCarrier* const carrier = worker_.device_carrier();
  if (!devices_ && carrier) {
    devices_ = carrier->open(peer_, way_);
    devices_->set_deadline(deadline_);
    if (place_) devices_->set_place(*place_);
    if (host_if_unmapped_) devices_->use_host_if_unmapped();
    if (must_not_block_) devices_->must_not_block();
    if (over_) devices_->wait_at_most_until(*over_);
    if (drops_device_bytes_) devices_->drop_bytes();
  }
  return devices_.get();
}

void CallScope::set_deadline(Deadline deadline) noexcept {
  deadline_ = deadline;
  if (devices_) devices_->set_deadline(deadline);
}

void CallScope::borrow(std::shared_ptr<void> borrowed) {
  if (borrowed && device_tensors()) devices_->keep_until_copied(std::move(borrowed));
}

}  // namespace farspan
