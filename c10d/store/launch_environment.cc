#include <farspan/c10d/store/launch_environment.h>

#include <cstdlib>

namespace farspan::dist {
namespace {
std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);
  if (!value || *value == '\0') return std::nullopt;
  return value;
}
}  // namespace

LaunchEnvironment LaunchEnvironment::read() {
  LaunchEnvironment found;
  found.rank = variable("RANK");
  found.world_size = variable("WORLD_SIZE");
  found.local_world_size = variable("LOCAL_WORLD_SIZE");
  found.master_addr = variable("MASTER_ADDR");
  found.master_port = variable("MASTER_PORT");
  found.agent_hosts_store = variable("TORCHELASTIC_USE_AGENT_STORE") == "True";
  found.store_password = variable("FARSPAN_STORE_PASSWORD");
  found.store_password_file = variable("FARSPAN_STORE_PASSWORD_FILE");
  return found;
}

}  // namespace farspan::dist
