// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What operations end with when a rank is not there any more: the same texts in all backends.
#pragma once

#include <string>

#include <farspan/c10d/base/error.h>

namespace farspan::dist {

// This rank: what is under way there, and all that it asks of the group after that.
inline Error left_error() { return Error(Code::kShutdown, "this rank has left the group"); }

// Another one, "rank 3 (host:pid)", which has said so.
inline Error left_error(const std::string& who) {
  return Error(Code::kDisconnected, who + " has left the group")
      .worker(who)
      .advice("do all ranks call as much? Those that go on can make a new_group()");
}

// Another one, which has said nothing.
inline Error gone_error(const std::string& who) {
  return Error(Code::kDisconnected, who + " is gone")
      .worker(who)
      .advice("look at that rank's own error; those that go on can make a new_group()");
}

}  // namespace farspan::dist
