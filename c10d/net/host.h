// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Host: which processes can share memory and unix sockets.
#pragma once

#include <string>

namespace farspan::net {

// Equal for two processes of one running kernel that see the same abstract unix sockets, and
// different for others. FARSPAN_HOST_ID in the environment splits a host further: processes that
// have different ones exchange nothing but through the network.
std::string host_id();

// This host's name, and this process on it: "node7:4711". For messages; no blanks.
std::string host_name();
std::string process_name();

}  // namespace farspan::net
