// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// LaunchEnvironment: what a launcher (torchrun, mpirun, srun, or a person) says through environment
// variables.
// The only place of this room that reads them.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace farspan::dist {

// As found; nothing is checked. A variable that is empty counts as not set.
//
// Threading: a value. Read it before threads change the environment.
struct LaunchEnvironment {
  // RANK, WORLD_SIZE and LOCAL_WORLD_SIZE (workers on this host). Without a RANK: what Open MPI's
  // or MPICH's mpirun, or Slurm's srun, has in their place.
  std::optional<std::string> rank;
  std::optional<std::string> world_size;
  std::optional<std::string> local_world_size;
  // Where the first two are from, for errors.
  std::string rank_variable = "RANK", world_size_variable = "WORLD_SIZE";
  // Of mpirun and srun: a name for this start of the job, which its processes on this host share,
  // and nobody else who runs now has.
  std::optional<std::string> job;
  std::optional<std::string> master_addr;  // MASTER_ADDR
  std::optional<std::string> master_port;  // MASTER_PORT
  // TORCHELASTIC_USE_AGENT_STORE is "True": the launcher hosts the store at
  // MASTER_ADDR:MASTER_PORT.
  bool agent_hosts_store = false;
  // TORCHELASTIC_ERROR_FILE: where torchrun reads what has ended this process.
  std::optional<std::string> error_file;
  // For redis:// and etcd:// URLs without a password.
  std::optional<std::string> store_password;       // FARSPAN_STORE_PASSWORD
  std::optional<std::string> store_password_file;  // FARSPAN_STORE_PASSWORD_FILE: its first line

  static LaunchEnvironment read();
  // The same from another place than the process's environment; empty: not set.
  using Variables = std::function<std::string(const char* name)>;
  static LaunchEnvironment read_from(const Variables& variables);
};

}  // namespace farspan::dist
