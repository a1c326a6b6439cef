// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// EtcdStore: a store in etcd, which may outlive the job and serve many.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <farspan/c10d/net/address.h>
#include <farspan/c10d/store/store.h>

namespace farspan::dist {

class EtcdClient;
class EtcdWatch;
struct EtcdRange;
struct ServerTimes;

struct EtcdStoreOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 2379;
  std::string user;  // empty: none, and no password
  std::string password;
  // The job: all workers of one give the same, other jobs another. Letters, digits, '.', '_', '-'
  // and '/'. All of the job's keys begin with "farspan:<prefix>:".
  std::string prefix = "default";
  // Of every call; and for how long the constructor keeps trying while nobody is there.
  Millis timeout = kDefaultStoreTimeout;
};

// Needs etcd 3.4 or newer with its JSON gateway (on unless it was switched off), and farspan built
// with libcurl and nlohmann-json. What a call writes is one transaction, so others see all of it or
// nothing; but multi_set and multi_get, and check of more than 60 keys, are several. add, append,
// compare_set and queue_push read, and then write if nothing has changed, again until the deadline.
// Who waits is told by a watch, and looks by itself every two seconds. Of those who wait in
// queue_pop any gets the next value.
//
// etcd takes requests up to its --max-request-bytes, which is 1.5 MiB unless told otherwise: a
// value that is larger, with its key, is kInvalidArgument; with 16777216 it takes what every store
// does. Values that append() grows are sent whole. Its --max-txn-ops must be 120 at least; it is
// 128.
//
// A pop takes nothing after its deadline, except that it waits up to 5 s for a value that is under
// way then. If the answer does not come (kTimeout) or the server goes away meanwhile
// (kDisconnected), that value may be lost.
//
// A call takes a connection that no other thread is using, or makes one; a few are kept. A server
// that ends fails every call at once, those that wait too, with kDisconnected or kUnavailable;
// later calls reach a new one at the same place, and log in again where its tokens have expired.
// Besides what Store says, an answer that is not of etcd is kCorrupt, and kInvalidArgument says
// also: wrong password, no permission.
//
// Threading: as Store; the client has no thread of its own.
// Source:    etcd's API reference and "gRPC gateway" (etcd.io/docs/v3.4); libcurl speaks HTTP.
class EtcdStore final : public Store {
 public:
  //   throws  Error kUnavailable (nobody there until the timeout), kCorrupt (no etcd there),
  //           kInvalidArgument (prefix, password, permission)
  explicit EtcdStore(EtcdStoreOptions options);
  EtcdStore(EtcdStoreOptions options, const ServerTimes& times);  // for tests
  ~EtcdStore() override;

  // "etcd://127.0.0.1:2379?prefix=default"; never with user or password.
  std::string address() const override;
  bool has_queues() const noexcept override { return true; }

  // Deletes all keys and queues of the job, which the server would keep for ever. For whoever knows
  // that no worker of the job uses them any more.
  void clear();

 private:
  // A value as it was found, and the revision of the server then.
  template <class Value>
  struct Found {
    std::optional<Value> value;
    int64_t revision = 0;
  };
  // Waits until `look()` finds something; it does when somebody makes a key in one of `ranges`.
  template <class Look>
  auto watch(const std::vector<EtcdRange>& ranges, Look look, Deadline deadline)
      -> decltype(look().value);
  // Replaces the value by what `change` makes of it, in one step; nothing leaves it as it is.
  using Change = std::function<std::optional<std::string>(const std::optional<std::string>&)>;
  void update(const std::string& key, const Change& change, Deadline deadline);
  Found<std::string> read_now(const std::string& key, Deadline deadline);
  Found<std::string> pop_now(const std::string& queue, Deadline deadline);
  Found<size_t> first_missing(const std::vector<std::string>& keys, size_t from, Deadline deadline);

  std::string name_of(const std::string& key) const;
  EtcdRange entries_of(const std::string& queue) const;

  std::shared_ptr<Store> do_clone() override;
  void do_set(const std::string& key, const std::string& value, Deadline deadline) override;
  std::string do_get(const std::string& key, Deadline deadline) override;
  int64_t do_add(const std::string& key, int64_t delta, Deadline deadline) override;
  std::optional<std::string> do_compare_set(const std::string& key, const std::string& expected,
                                            const std::string& desired, Deadline deadline) override;
  bool do_check(const std::vector<std::string>& keys, Deadline deadline) override;
  void do_wait(const std::vector<std::string>& keys, Deadline deadline) override;
  bool do_delete_key(const std::string& key, Deadline deadline) override;
  void do_append(const std::string& key, const std::string& value, Deadline deadline) override;
  std::vector<std::string> do_multi_get(const std::vector<std::string>& keys,
                                        Deadline deadline) override;
  void do_multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values,
                    Deadline deadline) override;
  int64_t do_num_keys(Deadline deadline) override;
  std::vector<std::string> do_list_keys(Deadline deadline) override;
  void do_queue_push(const std::string& key, const std::string& value, Deadline deadline) override;
  std::string do_queue_pop(const std::string& key, Deadline deadline) override;
  std::optional<std::string> do_queue_try_pop(const std::string& key, Deadline deadline) override;
  int64_t do_queue_len(const std::string& key, Deadline deadline) override;

  const EtcdStoreOptions options_;
  const std::unique_ptr<const ServerTimes> times_;  // never null
  const std::string base_;                          // what all keys of the job begin with
  const std::unique_ptr<EtcdClient> client_;        // never null
};

}  // namespace farspan::dist
