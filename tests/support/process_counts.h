// What the system has for this process, to show that something costs nothing or leaves nothing.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <sstream>
#include <string>

namespace farspan::testing {

struct ProcessCounts {
  int descriptors = 0, threads = 0;
  int memories = 0;  // mappings of memory that it shares with other processes (memfd)

  static ProcessCounts now() {
    const auto entries = [](const char* folder) {
      return static_cast<int>(std::distance(std::filesystem::directory_iterator(folder), {}));
    };
    ProcessCounts counts;
    counts.descriptors = entries("/proc/self/fd") - 1;  // that of the look itself
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      counts.threads += is_alive(task.path() / "stat");
    }
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("memfd:") != std::string::npos) ++counts.memories;
    }
    return counts;
  }

  // A thread that has been joined is listed until the kernel is done with it.
  static bool is_alive(const std::filesystem::path& stat) {
    std::ifstream file(stat);
    std::string line;
    if (!std::getline(file, line)) return false;
    std::istringstream fields(line.substr(line.rfind(')') + 1));
    constexpr int kFlags = 6;  // of the fields behind the name; proc(5)
    constexpr unsigned kExiting = 0x4;
    std::string field;
    for (int before = 0; before < kFlags; ++before) fields >> field;
    unsigned flags = 0;
    fields >> flags;
    return (flags & kExiting) == 0;
  }

  friend bool operator==(const ProcessCounts&, const ProcessCounts&) = default;
  friend std::ostream& operator<<(std::ostream& out, const ProcessCounts& counts) {
    return out << counts.descriptors << " descriptors, " << counts.threads << " threads, "
               << counts.memories << " shared memories";
  }
};

}  // namespace farspan::testing
