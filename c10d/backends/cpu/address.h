// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Address: where a rank is; the store has one for each.
#pragma once

#include <string>
#include <vector>

#include <farspan/c10d/backends/cpu/post/post.h>
#include <farspan/c10d/backends/cpu/tuning.h>
#include <farspan/c10d/store/store.h>

namespace farspan::dist::cpu {

struct Address {
  std::string host;         // host_id() and the user: who shares memory with whom
  std::string process;      // net::process_name(), for people
  std::string host_socket;  // of its Node
  PostAddress post;         // within the host
  Tuning tuning;            // what this rank would do

  // This process's, but for its sockets.
  //   host_id  empty: net::host_id()
  static Address of_this_process(const std::string& host_id);

  std::string text() const;
  //   throws  Error kCorrupt
  static Address parse(const std::string& text);
};

// Puts this rank's text into the store under `what`, and gets those of all ranks, by rank.
//   throws  Error kTimeout (names the ranks that are missing), and what the store throws
std::vector<std::string> exchange(Store& store, const std::string& what, int rank, int world_size,
                                  const std::string& own, Deadline deadline);

}  // namespace farspan::dist::cpu
