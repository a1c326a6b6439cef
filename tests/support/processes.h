// Real processes: this same test program, started anew (fork and exec) in a role of its own.
//
//   int main(int argc, char** argv) {
//     return farspan::testing::run_tests(argc, argv, {{"join", [] { init_rpc("w"); return 0; }}});
//   }
//   ...
//   Process other("join", {{"RANK", "1"}});
//   const Process::End end = other.wait(seconds(20));
//   EXPECT_EQ(end.status, 1);
//   EXPECT_THAT(end.output, HasSubstr("RANK is 1"));
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <optional>
#include <string>

#include <farspan/c10d/base/time.h>
#include <farspan/c10d/net/owned_descriptor.h>

namespace farspan::testing {

// What a process does instead of running tests; its result is the exit status. What it throws goes
// to standard error, and makes the status 1.
using Role = std::function<int()>;

// The main() of a test program that starts itself anew.
int run_tests(int argc, char** argv, const std::map<std::string, Role>& roles);

// The variables of a launcher (RANK and so on) are not inherited.
//
// Threading: one thread, which must live as long as the process: that one dies with it.
// Lifetime:  the destructor kills the process and waits for its end.
class Process {
 public:
  using Environment = std::map<std::string, std::string>;

  explicit Process(const std::string& role, const Environment& environment = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const noexcept { return pid_; }
  bool running();
  void signal(int number);  // SIGSTOP: returns when it stands still

  struct End {
    int status = 0;      // the exit status; 128 + n: ended by signal n
    std::string output;  // standard output and standard error
  };
  // Waits for its end. One that takes longer than `limit` is killed, which fails the test.
  End wait(Clock::duration limit);
  // What it has written so far.
  std::string output() const;
  bool has_written(const std::string& text) const {
    return output().find(text) != std::string::npos;
  }

 private:
  pid_t pid_ = -1;
  net::OwnedDescriptor output_;
  std::optional<int> status_;
};

}  // namespace farspan::testing
