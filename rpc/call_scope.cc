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
  if (!devices_ && carrier) devices_ = carrier->open(peer_, way_, device_terms_);
  return devices_.get();
}

void CallScope::borrow(std::shared_ptr<void> borrowed) {
  if (borrowed && device_tensors()) devices_->keep_until_copied(std::move(borrowed));
}

}  // namespace farspan
