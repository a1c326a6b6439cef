// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// EtcdClient: the part of etcd's API that EtcdStore needs, in C++ types: transactions, watches, and
// the login.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <farspan/c10d/base/error.h>
#include <farspan/c10d/base/mutex.h>
#include <farspan/c10d/base/time.h>
#include <farspan/c10d/net/address.h>
#include <farspan/c10d/store/etcd_http.h>
#include <farspan/c10d/store/server_connections.h>

namespace farspan::dist {

// Keys from `first` to before `end`; `end` empty: `first` alone.
struct EtcdRange {
  std::string first;
  std::string end = {};
};
// All keys that begin with `prefix`, which is not empty and does not end with '\xff'.
EtcdRange etcd_keys_with(const std::string& prefix);

struct EtcdOperation {
  enum class Kind { kPut, kGet, kDelete };
  Kind kind = Kind::kGet;
  EtcdRange range = {};
  std::string value = {};   // kPut
  bool keys_only = false;   // kGet: without values
  bool count_only = false;  // kGet: not even the keys
  int64_t limit = 0;        // kGet: the first so many in order; 0: all
  int64_t revision = 0;     // kGet: as it was then; 0: now
};

struct EtcdEntry {
  std::string key;
  std::string value;
  int64_t mod_revision = 0;
};

struct EtcdResult {
  std::vector<EtcdEntry> entries;
  int64_t count = 0;  // of keys in the range, or deleted
};

// Holds when the key was last changed at this revision; 0: when it is missing.
struct EtcdCondition {
  std::string key;
  int64_t mod_revision = 0;
};

struct EtcdOutcome {
  bool succeeded = false;
  int64_t revision = 0;  // of the whole server, after the transaction
  std::vector<EtcdResult> results;
};

// Lines of a watch, until it is destroyed.
//
// Threading: one thread at a time.
class EtcdWatch {
 public:
  explicit EtcdWatch(std::unique_ptr<EtcdHttp> http) : http_(std::move(http)) {}

  enum class Seen { kNothing, kChange, kEnd };
  // kNothing at the deadline; kEnd when the server has ended this watch, or has refused it: look
  // (which says why), and make another.
  //   throws  Error kDisconnected, kUnavailable, kTimeout (connecting), kOverloaded, kCorrupt
  Seen wait(Deadline deadline);

 private:
  std::unique_ptr<EtcdHttp> http_;
};

// Whether the revision that was asked for is gone.
bool is_compacted(const Error& error);

// Threading: any thread, many at once; a call takes a connection of its own.
class EtcdClient {
 public:
  EtcdClient(net::HostPort where, std::string user, std::string password);

  // Does all of `success` in one step if all conditions hold, else all of `failure`.
  // Results are those of the operations, with keys in their range and in order.
  //   throws  Error kUnavailable, kTimeout, kDisconnected (it may have been done), kCorrupt (no
  //           etcd there), and what the server refuses with: kInvalidArgument, kOverloaded,
  //           kUnavailable
  EtcdOutcome transact(const std::vector<EtcdCondition>& conditions,
                       const std::vector<EtcdOperation>& success,
                       const std::vector<EtcdOperation>& failure, Deadline deadline);
  EtcdOutcome transact(const std::vector<EtcdOperation>& operations, Deadline deadline) {
    return transact({}, operations, {}, deadline);
  }

  // Tells of keys that are set, from `revision` on.
  EtcdWatch watch(const std::vector<EtcdRange>& ranges, int64_t revision, Deadline deadline);

 private:
  std::string post(const std::string& path, const std::string& body, const std::string& token,
                   Deadline deadline);
  std::string token(const std::string& not_this, Deadline deadline);

  const net::HostPort where_;
  const std::string user_;
  const std::string password_;
  IdleConnections<EtcdHttp> idle_;
  Mutex mutex_;
  std::string token_ FARSPAN_GUARDED_BY(mutex_);  // empty: not logged in, or no user
};

}  // namespace farspan::dist
