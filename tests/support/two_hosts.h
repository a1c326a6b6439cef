// Two workers as on two hosts: under hosts.py in network namespaces of their own, which only a
// cable joins, else at two addresses of this one.
#pragma once

#include <fcntl.h>
#include <sched.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>

#include <farspan/c10d/net/owned_descriptor.h>
#include <farspan/c10d/store/file_store.h>
#include <farspan/rpc/init/init.h>
#include <farspan/rpc/init/spawn.h>
#include <farspan/rpc/rpc.h>

namespace farspan::testing {

// Runs `run()` in "here" and "there", which `change` gives options of, as spawn() does.
//   meeting  a file that is not there yet
inline void run_on_two_hosts(const std::string& meeting,
                             const std::function<void(WorkerOptions&)>& change,
                             const std::function<void(int rank)>& run) {
  const char* const other = std::getenv("FARSPAN_OTHER_HOST");
  // Who dials on this host has the address 127.0.0.1.
  const auto address_of = [&](int rank) {
    return other ? "10.77.0." + std::to_string(rank + 1) : "127.0.0." + std::to_string(rank + 2);
  };
  spawn(2, [&](int rank, int size) {
    if (other && rank == 1) {
      const net::OwnedDescriptor host(open(other, O_RDONLY | O_CLOEXEC));
      if (setns(host.get(), CLONE_NEWNET) != 0) throw std::runtime_error("no way to that host");
    }
    WorkerOptions options;
    options.store = std::make_shared<dist::FileStore>(meeting);
    options.rank = rank;
    options.world_size = size;
    options.transports = {"tcp"};
    options.bind_host = address_of(rank);
    change(options);
    init_rpc(rank == 0 ? "here" : "there", options);
    run(rank);
    shutdown();
  });
}

}  // namespace farspan::testing
