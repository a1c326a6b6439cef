// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// The stores that need a library of others, and may not have been built: the one place that knows.
#pragma once

#include <memory>

#include <farspan/c10d/store/rendezvous.h>
#include <farspan/c10d/store/store.h>

namespace farspan::dist {

// The store that a redis:// or etcd:// URL names, which they join.
//   throws  Error kInvalidArgument: what is wrong with the URL; or farspan was built without it
//           (what is missing then); and what RedisStore and EtcdStore throw
std::shared_ptr<Store> join_redis(const RendezvousUrl& url, const RendezvousOptions& options);
std::shared_ptr<Store> join_etcd(const RendezvousUrl& url, const RendezvousOptions& options);

}  // namespace farspan::dist
