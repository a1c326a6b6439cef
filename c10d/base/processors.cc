#include <farspan/c10d/base/processors.h>

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>

namespace farspan {
namespace {

int online_processors() noexcept {
  return std::max(1, static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN)));
}

int processors_by_affinity() noexcept {
  cpu_set_t allowed;
  if (sched_getaffinity(getpid(), sizeof allowed, &allowed) != 0) {
    return online_processors();  // more than the set has room for
  }
  return CPU_COUNT(&allowed);
}

// Of one control group: microseconds of time in each period. What is not a number is no limit.
int quota_of(const std::string& group) {
  double quota = 0, period = 0;
  std::ifstream both(group + "/cpu.max"), first(group + "/cpu.cfs_quota_us"),
      second(group + "/cpu.cfs_period_us");
  if (!(both >> quota >> period)) {
    if (!(first >> quota) || !(second >> period)) return std::numeric_limits<int>::max();
  }
  if (quota <= 0 || period <= 0) return std::numeric_limits<int>::max();
  return static_cast<int>(std::clamp(std::ceil(quota / period), 1.0, 1e6));
}

// Of a group and of those that it is in; `mount` shows perhaps only the last of them.
int least_quota(const std::string& mount, std::string group) {
  int least = quota_of(mount);
  while (!group.empty()) {
    least = std::min(least, quota_of(mount + group));
    group.resize(group.find_last_of('/') == std::string::npos ? 0 : group.find_last_of('/'));
  }
  return least;
}

}  // namespace

int processors_by_quota(const char* groups, const char* mount) noexcept try {
  int least = std::numeric_limits<int>::max();
  std::ifstream lines(groups);
  for (std::string line; std::getline(lines, line);) {  // "4:cpu,cpuacct:/group", "0::/group"
    const size_t kinds = line.find(':'), group = line.find(':', kinds + 1);
    if (kinds == std::string::npos || group == std::string::npos) continue;
    const std::string of = line.substr(kinds + 1, group - kinds - 1), path = line.substr(group + 1);
    if (of.empty()) {
      least = std::min(least, least_quota(mount, path));
    } else if (("," + of + ",").find(",cpu,") != std::string::npos) {
      for (const std::string& folder : {of, std::string("cpu")}) {
        least = std::min(least, least_quota(std::string(mount) + "/" + folder, path));
      }
    }
  }
  return least;
} catch (...) {
  return std::numeric_limits<int>::max();
}

int available_processors() noexcept {
  const int by_quota = processors_by_quota("/proc/self/cgroup", "/sys/fs/cgroup");
  return std::clamp(std::min(processors_by_affinity(), by_quota), 1, online_processors());
}

bool has_all_processors() noexcept { return available_processors() >= online_processors(); }

}  // namespace farspan
