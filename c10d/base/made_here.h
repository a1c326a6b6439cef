// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// MadeHere: for what a child that fork() has made of this process has copies of, and must not end:
// the other processes would take it for the parent.
#pragma once

#include <unistd.h>

namespace farspan {

// Threading: constant.
class MadeHere {
 public:
  // False in a child.
  bool is_here() const noexcept { return getpid() == process_; }

 private:
  pid_t process_ = getpid();
};

}  // namespace farspan
