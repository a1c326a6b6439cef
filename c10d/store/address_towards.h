// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The address of this host that others reach: the one on the way to the store, which all reach.
#pragma once

#include <optional>
#include <string>

#include <farspan/c10d/store/store.h>

namespace farspan::dist {

// Numeric. Nothing for a store that is no server (a file, memory), or that cannot be looked up.
// Sends nothing, but may ask the system's resolver.
//
// Threading: any thread.
std::optional<std::string> address_towards(const Store& store);

}  // namespace farspan::dist
