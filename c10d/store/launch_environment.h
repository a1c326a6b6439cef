// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// LaunchEnvironment: what a launcher (torchrun, or a person) says through environment variables.
// The only place of this room that reads them.
#pragma once

#include <optional>
#include <string>

namespace farspan::dist {

// As found; nothing is checked. A variable that is empty counts as not set.
//
// Threading: a value. Read it before threads change the environment.
struct LaunchEnvironment {
  std::optional<std::string> rank;              // RANK
  std::optional<std::string> world_size;        // WORLD_SIZE
  std::optional<std::string> local_world_size;  // LOCAL_WORLD_SIZE: workers on this host
  std::optional<std::string> master_addr;       // MASTER_ADDR
  std::optional<std::string> master_port;       // MASTER_PORT
  // TORCHELASTIC_USE_AGENT_STORE is "True": the launcher hosts the store at
  // MASTER_ADDR:MASTER_PORT.
  bool agent_hosts_store = false;
  // For redis:// and etcd:// URLs without a password.
  std::optional<std::string> store_password;       // FARSPAN_STORE_PASSWORD
  std::optional<std::string> store_password_file;  // FARSPAN_STORE_PASSWORD_FILE: its first line

  static LaunchEnvironment read();
};

}  // namespace farspan::dist
