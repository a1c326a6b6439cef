#include <farspan/c10d/net/process.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

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
  EXPECT_FALSE(has_ended(process_mark()));
  pid_t child = 0;
  const std::string mark = mark_of_child(child);
  EXPECT_NE(mark, process_mark());
  EXPECT_FALSE(has_ended(mark));
  kill(child, SIGSTOP);
  EXPECT_FALSE(has_ended(mark)) << "it may go on";
  kill(child, SIGKILL);
  EXPECT_TRUE(eventually([&] { return has_ended(mark); })) << "nobody has waited for it";
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(has_ended(mark));
}

TEST(ProcessMark, IsOfNoOtherProcessWithThatNumber) {
  EXPECT_TRUE(has_ended(process_mark() + "1"));
}

TEST(ProcessMark, OfAProcessWhoseFirstThreadHasEndedIsThatOfOneThatRuns) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string& mark = *new std::string(process_mark());
    std::thread([&] {
      const bool said = write(ends[1], mark.data(), mark.size()) > 0;
      while (said) pause();
    }).detach();
    syscall(SYS_exit, 0);  // of this thread alone
  }
  std::array<char, 100> said{};
  const ssize_t size = read(ends[0], said.data(), said.size());
  ASSERT_GT(size, 0);
  const std::string mark(said.data(), static_cast<size_t>(size));
  const std::string stat = "/proc/" + std::to_string(child) + "/stat";
  EXPECT_TRUE(eventually([&] {
    std::ifstream file(stat);
    const std::string line{std::istreambuf_iterator<char>(file), {}};
    return line.find(") Z ") != std::string::npos;
  }));
  EXPECT_FALSE(has_ended(mark));
  kill(child, SIGKILL);
  EXPECT_TRUE(eventually([&] { return has_ended(mark); }));
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  for (const int end : ends) close(end);
}

// In another pid namespace, say: what has this number here is another process.
TEST(ProcessMark, OfWhichNothingIsKnownIsNotThatOfOneThatHasEnded) {
  const std::string own = process_mark();
  const std::string elsewhere = "1" + own.substr(0, own.find('.')) + ".999999999.1";
  for (const std::string& mark : {elsewhere, std::string(), std::string("."), std::string("1.2"),
                                  std::string("self.1.1"), std::string("../self.1")}) {
    EXPECT_FALSE(has_ended(mark)) << mark;
  }
}

}  // namespace
}  // namespace farspan::net
