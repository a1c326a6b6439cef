// What a run would leave in the memory of the machine.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <system_error>

namespace farspan::testing {

// Memory that has a name and so outlives all who use it: farspan's in /dev/shm, and of System V
// what one of these processes has made.
inline std::set<std::string> named_memory(const std::set<pid_t>& makers = {}) {
  std::set<std::string> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", none)) {
    const std::string name = entry.path().filename();
    if (name.find("farspan") != std::string::npos) names.insert(name);
  }
  std::ifstream segments("/proc/sysvipc/shm");
  std::string line;
  std::getline(segments, line);  // what the columns are
  while (std::getline(segments, line)) {
    std::istringstream columns(line);
    std::string key, id, mode, size;
    pid_t maker = 0;
    columns >> key >> id >> mode >> size >> maker;
    if (makers.count(maker) > 0) names.insert("segment " + id);
  }
  return names;
}

}  // namespace farspan::testing
