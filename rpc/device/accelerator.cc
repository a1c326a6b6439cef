#include <farspan/rpc/device/accelerator.h>

#include <utility>

#include <farspan/c10d/base/mutex.h>

namespace farspan {
namespace {

struct Registered {
  Mutex mutex;
  std::function<Accelerator()> open FARSPAN_GUARDED_BY(mutex);
  std::optional<Accelerator> accelerator FARSPAN_GUARDED_BY(mutex);
};

Registered& registered() {
  static Registered* one = new Registered;  // never destroyed: libraries are unloaded in any order
  return *one;
}

}  // namespace

void register_accelerator(std::function<Accelerator()> open) {
  MutexLock lock(registered().mutex);
  registered().open = std::move(open);
  registered().accelerator.reset();
}

std::optional<Accelerator> registered_accelerator() {
  MutexLock lock(registered().mutex);
  if (!registered().accelerator && registered().open) {
    registered().accelerator = registered().open();
  }
  return registered().accelerator;
}

}  // namespace farspan
