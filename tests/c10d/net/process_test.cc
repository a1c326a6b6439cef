#include <farspan/c10d/net/process.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <string>

#include "support/eventually.h"

namespace farspan::net {
namespace {

using farspan::testing::eventually;

// Of a child that waits to be killed.
std::string mark_of_child(pid_t& child) {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  child = fork();
  if (child == 0) {
    const std::string mark = process_mark();
    const bool said = write(ends[1], mark.data(), mark.size()) > 0;
    while (said) pause();
    _exit(1);
  }
  close(ends[1]);
  std::array<char, 100> said{};
  const ssize_t size = read(ends[0], said.data(), said.size());
  close(ends[0]);
  return {said.data(), static_cast<size_t>(std::max<ssize_t>(size, 0))};
}

TEST(ProcessMark, IsOfAProcessUntilItEnds) {
  EXPECT_TRUE(is_running(process_mark()));
  pid_t child = 0;
  const std::string mark = mark_of_child(child);
  EXPECT_NE(mark, process_mark());
  EXPECT_TRUE(is_running(mark));
  kill(child, SIGSTOP);
  EXPECT_TRUE(is_running(mark)) << "it may go on";
  kill(child, SIGKILL);
  EXPECT_TRUE(eventually([&] { return !is_running(mark); })) << "nobody has waited for it";
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(is_running(mark));
}

TEST(ProcessMark, IsOfNoOtherProcessWithThatNumber) {
  EXPECT_FALSE(is_running(process_mark() + "1"));
  EXPECT_FALSE(is_running(std::to_string(getpid())));
  for (const char* const none : {"", ".", ".5", "self.1", "../self.1", "-1.1", "0.0"}) {
    EXPECT_FALSE(is_running(none)) << none;
  }
}

}  // namespace
}  // namespace farspan::net
