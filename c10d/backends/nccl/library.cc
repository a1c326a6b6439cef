#include <farspan/c10d/backends/nccl/library.h>

#include <utility>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/mutex.h>

namespace farspan::dist::nccl {
namespace {

struct Registered {
  Mutex mutex;
  OpenLibrary open FARSPAN_GUARDED_BY(mutex);
  std::shared_ptr<Library> opened FARSPAN_GUARDED_BY(mutex);
};

Registered& registered() {
  static Registered* one = new Registered;  // never destroyed: libraries are unloaded in any order
  return *one;
}

}  // namespace

void register_library(OpenLibrary open) {
  MutexLock lock(registered().mutex);
  registered().open = std::move(open);
  registered().opened.reset();
}

std::shared_ptr<Library> registered_library() {
  MutexLock lock(registered().mutex);
  if (!registered().open) {
    throw Error(Code::kInvalidArgument, "this program has no NCCL in it")
        .advice(
            "link farspan::cuda of a build that found the CUDA toolkit and NCCL, or use "
            "\"cpu\"");
  }
  if (!registered().opened) registered().opened = registered().open();
  return registered().opened;
}

}  // namespace farspan::dist::nccl
