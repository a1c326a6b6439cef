#include <farspan/c10d/backends/nccl/apart.h>

#include <pthread.h>

#include <system_error>
#include <thread>
#include <utility>

namespace farspan::dist::nccl {

bool run_apart(const char* name, std::function<void()> fn) noexcept {
  const auto* const held = new std::function<void()>(std::move(fn));
  try {
    std::thread([name, held] {
      pthread_setname_np(pthread_self(), name);
      (*held)();
      delete held;
    }).detach();
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

}  // namespace farspan::dist::nccl
