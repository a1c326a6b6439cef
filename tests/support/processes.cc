#include "support/processes.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <poll.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <stdexcept>
#include <string_view>
#include <system_error>
#include <vector>

extern char** environ;

namespace farspan::testing {
namespace {

constexpr const char* kRoleVariable = "FARSPAN_TEST_ROLE";

std::vector<std::string> environment_of(const std::string& role,
                                        const Process::Environment& added) {
  std::set<std::string, std::less<>> left_out = {"RANK",
                                                 "WORLD_SIZE",
                                                 "LOCAL_RANK",
                                                 "LOCAL_WORLD_SIZE",
                                                 "MASTER_ADDR",
                                                 "MASTER_PORT",
                                                 "TORCHELASTIC_USE_AGENT_STORE",
                                                 "TORCHELASTIC_ERROR_FILE",
                                                 "FARSPAN_STORE_PASSWORD",
                                                 "FARSPAN_STORE_PASSWORD_FILE",
                                                 "GTEST_TOTAL_SHARDS",
                                                 kRoleVariable};
  std::vector<std::string> all = {kRoleVariable + ("=" + role)};
  for (const auto& [name, value] : added) {
    left_out.insert(name);
    all.push_back(name + "=" + value);
  }
  for (char** each = environ; *each; ++each) {
    const std::string_view entry(*each);
    if (left_out.count(entry.substr(0, entry.find('='))) == 0) all.emplace_back(entry);
  }
  return all;
}

int play(const std::map<std::string, Role>& roles, const std::string& name) {
  const auto role = roles.find(name);
  if (role == roles.end()) {
    std::fprintf(stderr, "no role is called '%s'\n", name.c_str());
    return 127;
  }
  int status = 1;
  try {
    status = role->second();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
  return status;
}

}  // namespace

int run_tests(int argc, char** argv, const std::map<std::string, Role>& roles) {
  if (const char* role = std::getenv(kRoleVariable)) return play(roles, role);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}

Process::Process(const std::string& role, const Environment& environment)
    : output_(memfd_create("output of a process", MFD_CLOEXEC)) {
  if (output_.get() < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
  // All that needs memory comes before the fork: another thread may hold the heap's lock then.
  const std::vector<std::string> entries = environment_of(role, environment);
  std::vector<char*> envp;
  for (const std::string& entry : entries) envp.push_back(const_cast<char*>(entry.c_str()));
  envp.push_back(nullptr);
  char name[] = "test_role";
  char* const argv[] = {name, nullptr};
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
  if (pid_ > 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(126);
  if (dup2(output_.get(), STDOUT_FILENO) < 0 || dup2(output_.get(), STDERR_FILENO) < 0) _exit(126);
  execve("/proc/self/exe", argv, envp.data());
  _exit(126);
}

Process::~Process() {
  if (!running()) return;
  signal(SIGKILL);
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

bool Process::running() {
  if (status_) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return true;
  status_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return false;
}

void Process::signal(int number) {
  if (status_) return;
  kill(pid_, number);
  if (number != SIGSTOP) return;
  siginfo_t info{};  // it takes effect a little later
  while (waitid(P_PID, static_cast<id_t>(pid_), &info, WSTOPPED | WEXITED | WNOWAIT) < 0 &&
         errno == EINTR) {
  }
}

Process::End Process::wait(Clock::duration limit) {
  const Deadline deadline = Deadline::after(limit);
  const net::OwnedDescriptor end(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  while (running()) {
    if (deadline.expired()) {
      ADD_FAILURE() << "process " << pid_ << " has not ended after " << describe(limit)
                    << "; it wrote:\n"
                    << output();
      signal(SIGKILL);
    }
    pollfd ended{end.get(), POLLIN, 0};
    poll(&ended, 1, deadline.expired() ? -1 : deadline.poll_ms());
  }
  return {*status_, output()};
}

std::string Process::output() const {
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0;
       (got = pread(output_.get(), buffer, sizeof buffer, static_cast<off_t>(text.size()))) > 0;) {
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

}  // namespace farspan::testing
