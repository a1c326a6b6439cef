// What the system has for this process, to show that something costs nothing or leaves nothing.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
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
    counts.threads = entries("/proc/self/task");
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (line.find("memfd:") != std::string::npos) ++counts.memories;
    }
    return counts;
  }

  friend bool operator==(const ProcessCounts&, const ProcessCounts&) = default;
  friend std::ostream& operator<<(std::ostream& out, const ProcessCounts& counts) {
    return out << counts.descriptors << " descriptors, " << counts.threads << " threads, "
               << counts.memories << " shared memories";
  }
};

}  // namespace farspan::testing
