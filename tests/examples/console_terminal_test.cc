// The rules under test: examples/console/terminal.h.
#include "console/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

namespace console {
namespace {

// Sets environment variables for one test; an empty value removes one.
class Environment {
 public:
  using Values = std::map<std::string, std::string>;
  explicit Environment(const Values& values) {
    for (const auto& [name, value] : values) {
      const char* old = std::getenv(name.c_str());
      before_[name] = old ? std::optional<std::string>(old) : std::nullopt;
      set(name, value.empty() ? std::nullopt : std::optional<std::string>(value));
    }
  }
  ~Environment() {
    for (const auto& [name, value] : before_) set(name, value);
  }

 private:
  static void set(const std::string& name, const std::optional<std::string>& value) {
    value ? setenv(name.c_str(), value->c_str(), 1) : unsetenv(name.c_str());
  }
  std::map<std::string, std::optional<std::string>> before_;
};

// A terminal of `columns`, and the end of it where a person would sit.
class Screen {
 public:
  explicit Screen(unsigned short columns) {
    winsize size{};
    size.ws_col = columns, size.ws_row = 24;
    EXPECT_EQ(openpty(&person, &program, nullptr, nullptr, &size), 0);
  }
  ~Screen() { close(person), close(program); }
  int person = -1, program = -1;
};

TEST(Terminal, ATerminalIsInteractiveAndColoured) {
  const Environment environment({{"TERM", "xterm"}, {"NO_COLOR", ""}});
  const Screen screen(123);
  const Terminal t = terminal(screen.program);
  EXPECT_TRUE(t.interactive);
  EXPECT_TRUE(t.color);
  EXPECT_EQ(t.columns(), 123);
}

TEST(Terminal, TheWidthFollowsTheWindow) {
  const Screen screen(100);
  const Terminal t = terminal(screen.program);
  winsize size{};
  size.ws_col = 50;
  ASSERT_EQ(ioctl(screen.person, TIOCSWINSZ, &size), 0);
  EXPECT_EQ(t.columns(), 50);
}

TEST(Terminal, NoColorTurnsColoursOff) {
  const Environment environment({{"TERM", "xterm"}, {"NO_COLOR", "1"}});
  const Screen screen(80);
  EXPECT_TRUE(terminal(screen.program).interactive);
  EXPECT_FALSE(terminal(screen.program).color);
}

TEST(Terminal, ThatOfOpenMpiIsWatchedByNobody) {
  const Environment environment({{"TERM", "xterm"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  const Screen screen(80);
  EXPECT_FALSE(terminal(screen.program).interactive);
}

TEST(Terminal, ADumbTerminalGetsPlainLines) {
  const Screen screen(80);
  for (const char* kind : {"dumb", ""}) {
    const Environment environment(Environment::Values{{"TERM", kind}});
    EXPECT_FALSE(terminal(screen.program).interactive) << kind;
  }
}

TEST(Terminal, APipeIsNeitherInteractiveNorColoured) {
  const Environment environment({{"TERM", "xterm"}, {"NO_COLOR", ""}});
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const Terminal t = terminal(ends[1]);
  EXPECT_FALSE(t.interactive);
  EXPECT_FALSE(t.color);
  EXPECT_EQ(t.columns(), 80);
  t.write("text");
  std::array<char, 8> read_back{};
  EXPECT_EQ(read(ends[0], read_back.data(), read_back.size()), 4);
  EXPECT_STREQ(read_back.data(), "text");
  close(ends[0]), close(ends[1]);
}

TEST(Terminal, AReaderThatIsGoneDoesNotStopTheProgram) {
  const auto before = signal(SIGPIPE, SIG_IGN);
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  close(ends[0]);
  terminal(ends[1]).write("text");  // returns
  close(ends[1]);
  signal(SIGPIPE, before);
}

TEST(Terminal, TheLocaleDecidesAboutUnicode) {
  const auto unicode = [](const std::string& all, const std::string& type,
                          const std::string& lang) {
    const Environment environment({{"LC_ALL", all}, {"LC_CTYPE", type}, {"LANG", lang}});
    return terminal(STDOUT_FILENO).unicode;
  };
  EXPECT_TRUE(unicode("", "", "en_US.UTF-8"));
  EXPECT_TRUE(unicode("", "C.utf8", "C"));
  EXPECT_FALSE(unicode("C", "", "en_US.UTF-8"));
  EXPECT_FALSE(unicode("", "", ""));
}

TEST(Terminal, AStyleEndsWithItsText) {
  Terminal t;
  t.color = true;
  EXPECT_EQ(styled(t, Style::kGreen, "x"), "\x1b[32mx\x1b[0m");
  EXPECT_EQ(styled(t, Style::kGreen, ""), "");
  t.color = false;
  EXPECT_EQ(styled(t, Style::kGreen, "x"), "x");
}

}  // namespace
}  // namespace console
