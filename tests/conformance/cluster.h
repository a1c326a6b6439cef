// Cluster: the workers of a job, however they live: in one process, in the World, or in processes
// of their own. What tests of calls need of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <farspan/rpc/worker.h>

namespace farspan::testing {

struct ClusterOptions {
  int workers = 3;
  Millis rpc_timeout{60'000};
  int threads = 0;
  int max_threads = 256;
  uint64_t max_in_flight_bytes = uint64_t{256} << 20;
  Millis silence_timeout{30'000};
  // Of processes; the first two are w0's.
  DeviceToDevice device_to_device = DeviceToDevice::kAllowed;
  std::map<std::string, device::DeviceMap> device_maps = {};
  std::map<std::string, std::string> environment = {};  // what else the others find in theirs
  bool operator==(const ClusterOptions&) const = default;
};

// "w0", "w1", ... The test's thread is a thread of w0's program; what is to happen at another
// worker is called there, as a registered function.
class Cluster {
 public:
  virtual ~Cluster() = default;

  virtual Worker& driver() = 0;  // w0
  // All shut down, each by itself, and gracefully.
  //   throws  what the first of them threw
  virtual void shutdown() = 0;
  // w0 alone leaves, at once.
  virtual void leave() = 0;

  // The worker's process ends as by SIGKILL; stands still as by SIGSTOP; goes on.
  virtual void kill(int rank) = 0;
  virtual void freeze(int rank) = 0;
  virtual void thaw(int rank) = 0;

  // Neither killed nor shut down; nobody does once w0 has left.
  virtual bool serves(int rank) const = 0;
};

struct ClusterKind {
  std::string name;
  std::function<std::unique_ptr<Cluster>(const ClusterOptions&)> make;
  bool real = true;        // threads, sockets and limits are; else simulated
  bool can_kill = true;    // each worker is a process, or simulated as one
  bool can_freeze = true;  // and may be stopped
  bool costly = false;     // to make: tests that leave it as it was may share one
};

// Over "shm", "unix", "tcp" or "loopback".
ClusterKind in_one_process(const std::string& transport);
// Over "tcp" between several addresses, with lanes.
ClusterKind on_hosts_in_one_process();
ClusterKind in_the_world(uint64_t seed);
// Over "shm", "unix" or "tcp".
ClusterKind in_processes(const std::string& transport);

// The role, of support/processes.h, of a worker of in_processes().
int be_worker();

inline void PrintTo(const ClusterKind& kind, std::ostream* out) { *out << kind.name; }

}  // namespace farspan::testing
