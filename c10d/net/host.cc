#include <farspan/c10d/net/host.h>

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

namespace farspan::net {

// Abstract names live in a network namespace of one running kernel.
std::string host_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat net {};
  stat("/proc/self/ns/net", &net);
  const char* const part = std::getenv("FARSPAN_HOST_ID");
  return boot + "/" + std::to_string(net.st_ino) + (part ? std::string("/") + part : "");
}

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = "";
  gethostname(name, sizeof name - 1);
  return *name ? name : "host";
}

std::string process_name() { return host_name() + ":" + std::to_string(getpid()); }

}  // namespace farspan::net
