#include "console/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace console {
namespace {

constexpr int kDefaultColumns = 80;

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {  // the first that is set decides
    const std::string_view value = environment(name);
    if (value.empty()) continue;
    return value.find("UTF-8") != value.npos || value.find("utf8") != value.npos ||
           value.find("utf-8") != value.npos;
  }
  return false;
}

void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody reads it any more; that must not stop the work
    text.remove_prefix(static_cast<size_t>(written));
  }
}

int columns_of(int descriptor) {
  winsize size{};
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col
                                                                      : kDefaultColumns;
}

const char* code_of(Style style) {
  switch (style) {
    case Style::kBold:
      return "1";
    case Style::kDim:
      return "2";
    case Style::kRed:
      return "31";
    case Style::kGreen:
      return "32";
    case Style::kYellow:
      return "33";
    case Style::kBlue:
      return "34";
    case Style::kMagenta:
      return "35";
    case Style::kCyan:
      return "36";
  }
  return "0";
}

}  // namespace

Terminal terminal(int descriptor) {
  Terminal result;
  result.write = [descriptor](std::string_view text) { write_all(descriptor, text); };
  result.columns = [descriptor] { return columns_of(descriptor); };
  const std::string_view kind = environment("TERM");
  // Open MPI gives each rank a terminal of its own, wherever what is written there goes.
  const bool is_mpis = !environment("OMPI_COMM_WORLD_SIZE").empty();
  result.interactive = isatty(descriptor) != 0 && !is_mpis && !kind.empty() && kind != "dumb";
  result.color = result.interactive && environment("NO_COLOR").empty();
  result.unicode = locale_is_utf8();
  return result;
}

Terminal standard_output() { return terminal(STDOUT_FILENO); }
Terminal standard_error() { return terminal(STDERR_FILENO); }

std::string styled(const Terminal& terminal, Style style, std::string_view text) {
  if (!terminal.color || text.empty()) return std::string(text);
  return "\x1b[" + std::string(code_of(style)) + "m" + std::string(text) + "\x1b[0m";
}

}  // namespace console
