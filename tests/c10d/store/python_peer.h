// PythonPeer: a Python process with PyTorch in it, for tests against the real thing.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include <farspan/c10d/net/owned_descriptor.h>

// The interpreter beside LibTorch; empty where there is none.
#ifndef FARSPAN_PYTHON
#define FARSPAN_PYTHON ""
#endif

namespace farspan::testing {

class PythonPeer {
 public:
  //   throws  where FARSPAN_NEED_ALL is set, if there is none
  static bool exists() {
    const bool is_here = !std::string(FARSPAN_PYTHON).empty();
    if (!is_here && std::getenv("FARSPAN_NEED_ALL")) {
      throw std::runtime_error("there is no Python with PyTorch, but FARSPAN_NEED_ALL is set");
    }
    return is_here;
  }

  PythonPeer() {
    int to[2], from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0) {
      throw std::runtime_error("no pipe");
    }
    requests_ = net::OwnedDescriptor(to[1]);
    answers_ = net::OwnedDescriptor(from[0]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, to[0], 0);
    posix_spawn_file_actions_adddup2(&actions, from[1], 1);
    std::string python = FARSPAN_PYTHON, script = FARSPAN_PYTHON_PEER;
    // PyTorch's server looks up the name of everyone who connects, which takes 5 s where the name
    // service does not answer.
    std::string resolver = "RES_OPTIONS=timeout:1 attempts:1";
    std::vector<char*> variables{resolver.data()};
    for (char** variable = environ; *variable; ++variable) variables.push_back(*variable);
    variables.push_back(nullptr);
    char* const arguments[] = {python.data(), script.data(), nullptr};
    const int failure =
        posix_spawn(&process_, python.c_str(), &actions, nullptr, arguments, variables.data());
    posix_spawn_file_actions_destroy(&actions);
    close(to[0]);
    close(from[1]);
    if (failure != 0) throw std::runtime_error("cannot start " + python);
    if (read_line() != "ready") throw std::runtime_error("PyTorch cannot be imported");
  }
  ~PythonPeer() {
    requests_.reset();  // the end of its input ends it
    waitpid(process_, nullptr, 0);
  }

  // repr() of the expression's value, or the type and message of what it threw. "name :=
  // expression" keeps the value and answers "ok".
  std::string ask(const std::string& expression) {
    start(expression);
    return read_line();
  }
  // The same in two steps, for an expression that waits.
  void start(const std::string& expression) {
    const std::string line = expression + "\n";
    if (write(requests_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size())) {
      throw std::runtime_error("the Python process has ended");
    }
  }
  std::string read_line() {
    std::string line;
    for (char byte = 0; byte != '\n';) {
      pollfd poller{answers_.get(), POLLIN, 0};
      if (poll(&poller, 1, 60'000) != 1 || read(answers_.get(), &byte, 1) != 1) {
        throw std::runtime_error("the Python process does not answer");
      }
      if (byte != '\n') line += byte;
    }
    return line;
  }

 private:
  net::OwnedDescriptor requests_, answers_;
  pid_t process_ = -1;
};

}  // namespace farspan::testing
