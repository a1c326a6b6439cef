#include <farspan/c10d/base/processors.h>

#include <sched.h>
#include <unistd.h>

#include <algorithm>

namespace farspan {
namespace {

int online_processors() noexcept {
  return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace

int available_processors() noexcept {
  cpu_set_t allowed;
  if (sched_getaffinity(getpid(), sizeof allowed, &allowed) != 0) {
    return online_processors();  // more than the set has room for
  }
  return std::clamp(CPU_COUNT(&allowed), 1, online_processors());
}

bool has_all_processors() noexcept { return available_processors() >= online_processors(); }

}  // namespace farspan
