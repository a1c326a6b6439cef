// A second process for the programs that show what the machine allows, and memory that both share.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>

namespace bench {

// Every limit needs these calls to work: there is nothing to measure without them.
inline void require(bool done, const char* what) {
  if (done) return;
  std::perror(what);
  std::exit(1);
}

// A child process that runs `work` and ends; killed with this object or with its parent.
class Child {
 public:
  explicit Child(const std::function<void()>& work) : pid_(fork()) {
    require(pid_ >= 0, "fork");
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    work();
    _exit(0);
  }
  ~Child() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  pid_t pid() const { return pid_; }

 private:
  const pid_t pid_;
};

// One that child processes share.
template <class T>
class Shared {
 public:
  Shared() {
    void* const at =
        mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    require(at != MAP_FAILED, "mmap");
    value_ = new (at) T;
  }
  ~Shared() { munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T& operator*() const { return *value_; }

 private:
  T* value_;
};

}  // namespace bench
