// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Whether another process of this host still runs.
#pragma once

#include <string>

namespace farspan::net {

// Of this process: what no other one of its pid namespace has until the host starts anew, also when
// its number is given out again. No blanks; empty: /proc is not there.
std::string process_mark();

// Of a process in this one's pid namespace. One that has ended and that nobody has waited for does
// not run; nor does what is no mark.
//
// Threading: any thread.
bool is_running(const std::string& mark);

}  // namespace farspan::net
