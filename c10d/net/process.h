// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Whether another process of this host has ended.
#pragma once

#include <string>

namespace farspan::net {

// Of this process: what no other one has until the host starts anew, also when its number is given
// out again. No blanks; empty: nothing can be known of processes here.
std::string process_mark();

// For certain: not of a process that cannot be seen from here (in another pid namespace), nor of
// what is no mark. One that nobody has waited for yet has ended.
//
// Threading: any thread.
bool has_ended(const std::string& mark);

}  // namespace farspan::net
