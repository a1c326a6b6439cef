// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// What all ends with on a rank that leaves a group, and all that it asks of the group after that.
#pragma once

#include <farspan/c10d/base/error.h>

namespace farspan::dist {

inline Error left_error() { return Error(Code::kShutdown, "this rank has left the group"); }

}  // namespace farspan::dist
