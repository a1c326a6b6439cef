// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// Rendezvous: where the workers of a job meet, from a URL: the store, this worker's rank, and how
// many there are.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include <farspan/c10d/base/time.h>
#include <farspan/c10d/store/launch_environment.h>
#include <farspan/c10d/store/store.h>

namespace farspan::dist {

// Threading: what is declared here, from any thread, many at once. rendezvous() blocks its thread.

struct RendezvousOptions {
  int rank = -1;        // -1: as the URL says, or else RANK
  int world_size = -1;  // -1: as the URL says, or else WORLD_SIZE
  // Until the store is reached (and, at its host, all workers have come); then the store's timeout.
  Millis timeout = kDefaultStoreTimeout;
  // What rank 0 listens on when it hosts the store. Empty: the host that the URL names.
  std::string bind_host;
  bool wait_for_workers = true;
  std::shared_ptr<Store> store;  // the caller's own: where to meet is not asked of the URL
  LaunchEnvironment environment = LaunchEnvironment::read();
};

struct Rendezvous {
  std::shared_ptr<Store> store;
  int rank = 0;
  int world_size = 0;
};

// Where this worker meets the others:
//   env://                                  MASTER_ADDR and MASTER_PORT; where mpirun or srun has
//                                           started all ranks on one host, a file of their own
//   tcp://host:port[?rank=0&world_size=2]   an IPv6 address in brackets
//   file:///path[?rank=0&world_size=2]      a path that all workers reach
//   redis://[user:password@]host:port[/db][?rank=0&world_size=2&prefix=job]
//   etcd://[user:password@]host:port[?rank=0&world_size=2&prefix=job]
// The last two are servers of their own, and `prefix` keeps jobs apart that share one: see
// redis_store.h and etcd_store.h. A password need not stand in the URL, where others may see it:
// FARSPAN_STORE_PASSWORD_FILE names a file, FARSPAN_STORE_PASSWORD is one.
// For env and tcp rank 0 hosts the store, unless torchrun's agent does: it does where
// TORCHELASTIC_USE_AGENT_STORE is set and the place is exactly MASTER_ADDR:MASTER_PORT.
//   throws  Error kInvalidArgument (names the variable or the part of the URL; or farspan was built
//           without this store), and what the stores throw: kAlreadyExists (port in use),
//           kUnavailable (no store there), kTimeout
Rendezvous rendezvous(const std::string& url, const RendezvousOptions& options = {});

// A URL in its parts.
struct RendezvousUrl {
  std::string scheme;                        // "tcp"
  std::string place;                         // "host:port", "user:password@host:port", "/path"
  std::map<std::string, std::string> query;  // "rank" -> "0"
};
//   throws  Error kInvalidArgument
RendezvousUrl parse_rendezvous_url(const std::string& url);

// Rank and world size, as far as somebody has given them: the options, or else the URL, or else the
// environment.
//   throws  Error kInvalidArgument: no number
struct GivenNumber {
  int number = 0;
  std::string where;  // "rank", "rank in the URL", "RANK"
};
struct GivenMembership {
  std::optional<GivenNumber> rank, world_size;
};
GivenMembership given_membership(const RendezvousUrl& url, const RendezvousOptions& options);

// Both of them.
//   throws  Error kInvalidArgument: missing, no number, or out of range
struct Membership {
  int rank = 0;
  int world_size = 0;
};
Membership membership_of(const RendezvousUrl& url, const RendezvousOptions& options);

// Makes URLs of another scheme known ("zookeeper"), for the whole process and for good. The handler
// throws what rendezvous() should. It runs in the threads that call rendezvous(), in several at
// once, and under no lock.
//   throws  Error kAlreadyExists: the scheme has a handler
using RendezvousHandler =
    std::function<Rendezvous(const RendezvousUrl& url, const RendezvousOptions& options)>;
void register_rendezvous(const std::string& scheme, RendezvousHandler handler);

}  // namespace farspan::dist
