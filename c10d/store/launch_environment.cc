#include <farspan/c10d/store/launch_environment.h>

#include <unistd.h>

#include <cstdlib>

namespace farspan::dist {
namespace {

using Variables = LaunchEnvironment::Variables;

std::optional<std::string> variable(const Variables& variables, const char* name) {
  std::string value = variables(name);
  if (value.empty()) return std::nullopt;
  return value;
}

// A launcher that knows nothing of RANK: its variables in that place.
struct Launcher {
  const char* rank;
  const char* world_size;
  const char* local_world_size;
};
constexpr Launcher kOpenMpi{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                            "OMPI_COMM_WORLD_LOCAL_SIZE"};
constexpr Launcher kMpich{"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"};
// A batch script, too, has SLURM_PROCID and SLURM_NTASKS; only what srun starts has a step's.
constexpr Launcher kSlurm{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", nullptr};

void take(const Launcher& launcher, const Variables& variables, LaunchEnvironment& found) {
  found.rank = variable(variables, launcher.rank);
  found.world_size = variable(variables, launcher.world_size);
  if (launcher.local_world_size) {
    found.local_world_size = variable(variables, launcher.local_world_size);
  }
  found.rank_variable = launcher.rank;
  found.world_size_variable = launcher.world_size;
}

// "1561001985.3" of rank 3: the job and the rank.
std::string job_of_open_mpi(const Variables& variables) {
  if (const auto name = variable(variables, "PMIX_NAMESPACE")) return *name;
  const std::string id = variables("PMIX_ID");
  return id.substr(0, id.rfind('.'));
}

void look_for_launcher(const Variables& variables, LaunchEnvironment& found) {
  if (variable(variables, kOpenMpi.rank)) {
    take(kOpenMpi, variables, found);
    found.job = "ompi-" + job_of_open_mpi(variables);
  } else if (variable(variables, kMpich.rank)) {
    take(kMpich, variables, found);
    found.job = "mpich-" + std::to_string(getppid());  // the proxy that starts them all
  } else if (variable(variables, kSlurm.rank) && variable(variables, kSlurm.world_size)) {
    take(kSlurm, variables, found);
    if (variables("SLURM_STEP_NUM_NODES") == "1") found.local_world_size = found.world_size;
    found.job = "slurm-" + variables("SLURM_JOB_ID") + "." + variables("SLURM_STEP_ID");
  }
}

}  // namespace

LaunchEnvironment LaunchEnvironment::read() {
  return read_from([](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  });
}

LaunchEnvironment LaunchEnvironment::read_from(const Variables& variables) {
  LaunchEnvironment found;
  found.rank = variable(variables, "RANK");
  found.world_size = variable(variables, "WORLD_SIZE");
  found.local_world_size = variable(variables, "LOCAL_WORLD_SIZE");
  if (!found.rank) look_for_launcher(variables, found);
  found.master_addr = variable(variables, "MASTER_ADDR");
  found.master_port = variable(variables, "MASTER_PORT");
  found.agent_hosts_store = variables("TORCHELASTIC_USE_AGENT_STORE") == "True";
  found.error_file = variable(variables, "TORCHELASTIC_ERROR_FILE");
  found.store_password = variable(variables, "FARSPAN_STORE_PASSWORD");
  found.store_password_file = variable(variables, "FARSPAN_STORE_PASSWORD_FILE");
  return found;
}

}  // namespace farspan::dist
