#include <farspan/rpc/call_scope.h>

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

}  // namespace farspan
