#include <farspan/c10d/net/process.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include <farspan/c10d/net/owned_descriptor.h>

namespace farspan::net {
namespace {

struct Stat {
  char state = 0;
  std::string started;  // in ticks since the host did
};

enum class Seen { kYes, kThereIsNone, kCannotTell };

// proc(5): the name, in parentheses, may hold anything; the state is field 3, the start field 22.
Seen see(const std::string& process, Stat& stat) {
  const OwnedDescriptor file(open(("/proc/" + process + "/stat").c_str(), O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> text{};
  const ssize_t size = file ? read(file.get(), text.data(), text.size()) : -1;
  if (size < 0) {
    return errno == ENOENT || errno == ESRCH ? Seen::kThereIsNone : Seen::kCannotTell;
  }
  const std::string_view line(text.data(), static_cast<size_t>(size));
  const size_t name_end = line.rfind(')');
  if (name_end == std::string_view::npos) return Seen::kCannotTell;
  std::istringstream fields{std::string(line.substr(name_end + 1))};
  fields >> stat.state;
  for (int field = 4; field <= 22; ++field) fields >> stat.started;
  return fields ? Seen::kYes : Seen::kCannotTell;
}

// The first of a process's threads may end before the others.
bool has_other_threads(const std::string& process) {
  std::error_code none;
  int threads = 0;
  for (std::filesystem::directory_iterator one("/proc/" + process + "/task", none), end;
       !none && one != end; one.increment(none)) {
    ++threads;
  }
  return threads > 1;
}

struct Mark {
  std::string pid_namespace, process, started;
  std::string text() const { return pid_namespace + "." + process + "." + started; }
};

std::optional<Mark> own_mark() {
  struct stat pid_namespace {};
  Stat own;
  const std::string process = std::to_string(getpid());
  if (stat("/proc/self/ns/pid", &pid_namespace) != 0) return std::nullopt;
  if (see(process, own) != Seen::kYes) return std::nullopt;
  return Mark{std::to_string(pid_namespace.st_ino), process, own.started};
}

std::optional<Mark> read_mark(const std::string& text) {
  std::istringstream parts(text);
  Mark mark;
  for (std::string* const part : {&mark.pid_namespace, &mark.process, &mark.started}) {
    std::getline(parts, *part, '.');
    if (part->empty() || part->find_first_not_of("0123456789") != std::string::npos) {
      return std::nullopt;
    }
  }
  return mark;
}

}  // namespace

std::string process_mark() {
  const auto own = own_mark();
  return own ? own->text() : "";
}

bool has_ended(const std::string& mark) {
  const auto other = read_mark(mark), own = own_mark();
  if (!other || !own || other->pid_namespace != own->pid_namespace) return false;
  Stat now;
  const Seen seen = see(other->process, now);
  if (seen != Seen::kYes) return seen == Seen::kThereIsNone;
  if (now.started != other->started) return true;
  return (now.state == 'Z' || now.state == 'X') && !has_other_threads(other->process);
}

}  // namespace farspan::net
