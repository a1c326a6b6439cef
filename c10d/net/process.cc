#include <farspan/c10d/net/process.h>

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <sstream>

namespace farspan::net {
namespace {

struct Stat {
  char state = 0;       // 0: there is no such process
  std::string started;  // in ticks since the host did
};

// proc(5): the name, in parentheses, may hold anything; the state is field 3, the start field 22.
Stat stat_of(const std::string& process) {
  std::ifstream file("/proc/" + process + "/stat");
  const std::string line{std::istreambuf_iterator<char>(file), {}};
  const size_t name_end = line.rfind(')');
  if (name_end == std::string::npos) return {};
  std::istringstream fields(line.substr(name_end + 1));
  Stat stat;
  fields >> stat.state;
  for (int field = 4; field <= 22; ++field) fields >> stat.started;
  return fields ? stat : Stat{};
}

}  // namespace

std::string process_mark() {
  const std::string process = std::to_string(getpid());
  const Stat own = stat_of(process);
  return own.state == 0 ? "" : process + "." + own.started;
}

bool is_running(const std::string& mark) {
  const size_t dot = mark.find('.');
  const std::string process = mark.substr(0, dot);
  if (dot == std::string::npos || process.empty()) return false;
  if (process.find_first_not_of("0123456789") != std::string::npos) return false;
  const Stat stat = stat_of(process);
  const bool has_ended = stat.state == 0 || stat.state == 'Z' || stat.state == 'X';
  return !has_ended && stat.started == mark.substr(dot + 1);
}

}  // namespace farspan::net
