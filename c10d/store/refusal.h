// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Refusals: what all stores say in the same words. Where and after how long, the Store adds.
#pragma once

#include <string>

#include <farspan/c10d/base/error.h>

namespace farspan::dist {

inline Error nobody_has_set() {
  return Error(Code::kTimeout, "nobody has set it")
      .advice("is the worker that should set it running? Its own errors say more");
}
inline Error nothing_was_pushed() {
  return Error(Code::kTimeout, "nothing was pushed for this worker")
      .advice("is the worker that should push running? Its own errors say more");
}
inline Error no_number(const std::string& value) {
  return Error(Code::kInvalidArgument,
               "the value '" + value.substr(0, 40) + "' is no number that this can be added to")
      .advice("use one key for numbers and another for text");
}
inline Error too_long() {
  return Error(Code::kInvalidArgument, "the value would grow past 256 MiB")
      .advice("a store is for addresses and settings: send tensors by RPC");
}

}  // namespace farspan::dist
