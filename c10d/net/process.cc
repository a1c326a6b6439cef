#include <farspan/c10d/net/process.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
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
bool may_have_other_threads(const std::string& process) {
  std::error_code failed;
  int threads = 0;
  for (std::filesystem::directory_iterator one("/proc/" + process + "/task", failed), end;
       !failed && one != end; one.increment(failed)) {
    ++threads;
  }
  if (failed) return failed != std::errc::no_such_file_or_directory;
  return threads > 1;
}

struct Mark {
  std::string namespaces, process, started;
  std::string text() const { return namespaces + "." + process + "." + started; }
};

// Those that numbers and times of processes are counted in: "4026531836-4026531834".
std::string own_namespaces() {
  std::string all;
  for (const char* const kind : {"pid", "time"}) {
    struct stat found {};
    if (stat((std::string("/proc/self/ns/") + kind).c_str(), &found) != 0) found.st_ino = 0;
    all += (all.empty() ? "" : "-") + std::to_string(found.st_ino);
  }
  return all;
}

std::optional<Mark> own_mark() {
  const std::string process = std::to_string(getpid());
  std::error_code failed;
  // /proc may be that of another namespace.
  if (std::filesystem::read_symlink("/proc/self", failed).string() != process) return std::nullopt;
  Stat own;
  if (see(process, own) != Seen::kYes) return std::nullopt;
  return Mark{own_namespaces(), process, own.started};
}

std::optional<Mark> read_mark(const std::string& text) {
  std::istringstream parts(text);
  Mark mark;
  for (std::string* const part : {&mark.namespaces, &mark.process, &mark.started}) {
    std::getline(parts, *part, '.');
  }
  const auto is_number = [](const std::string& part) {
    return !part.empty() && part.size() < 20 &&
           part.find_first_not_of("0123456789") == std::string::npos;
  };
  if (!is_number(mark.process) || !is_number(mark.started)) return std::nullopt;
  return mark;
}

}  // namespace

std::string process_mark() {
  const auto own = own_mark();
  return own ? own->text() : "";
}

bool has_ended(const std::string& mark) {
  const auto other = read_mark(mark), own = own_mark();
  if (!other || !own || other->namespaces != own->namespaces) return false;
  Stat now;
  switch (see(other->process, now)) {
    case Seen::kYes:
      if (now.started != other->started) return true;
      return (now.state == 'Z' || now.state == 'X') && !may_have_other_threads(other->process);
    case Seen::kThereIsNone:  // or it is hidden from this user
      return kill(static_cast<pid_t>(std::stoll(other->process)), 0) != 0 && errno == ESRCH;
    case Seen::kCannotTell:
      break;
  }
  return false;
}

}  // namespace farspan::net
