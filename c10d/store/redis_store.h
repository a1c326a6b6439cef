// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// RedisStore: a store in a Redis server, which may outlive the job and serve many.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <farspan/c10d/net/address.h>
#include <farspan/c10d/store/store.h>

namespace farspan::dist {

class RedisConnection;
struct RedisReply;
struct ServerTimes;
template <class Connection>
class IdleConnections;

struct RedisStoreOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 6379;
  int db = 0;
  std::string user;      // of an ACL; empty: the server's default user
  std::string password;  // empty: none
  // The job: all workers of one give the same, other jobs another. Letters, digits, '.', '_', '-'
  // and '/'. All of the job's keys and channels begin with "farspan:<prefix>:".
  std::string prefix = "default";
  // Of every call; and for how long the constructor keeps trying while nobody is there.
  Millis timeout = kDefaultStoreTimeout;
};

// Needs one Redis server of version 6 or newer (not a cluster), and farspan built with hiredis.
// Each operation is one command or script, so others see all of it or nothing. Who waits is woken
// by a message of the writer, and looks by itself every two seconds. queue_pop serves whoever has
// waited longest.
//
// A pop takes nothing after its deadline, except that it waits up to 5 s for a value that is under
// way then. If the answer does not come (kTimeout: the server is stuck) or the server goes away
// meanwhile (kDisconnected), the value that it may have taken by then, or takes later when it reads
// the request, is lost.
//
// A call takes a connection that no other thread is using, or makes one; a few are kept. A server
// that ends fails every call at once, those that wait too, with kDisconnected or kUnavailable;
// later calls reach a new one at the same place. What a server that starts again still knows is up
// to its persistence ("appendonly yes", for instance). Besides what Store says, an answer that is
// not of Redis is kCorrupt, and kInvalidArgument says also: wrong password, no permission.
//
// Threading: as Store; the client has no thread of its own.
// Source:    the Redis commands and protocol (redis.io/docs); the client library is hiredis.
class RedisStore final : public Store {
 public:
  //   throws  Error kUnavailable (nobody there until the timeout), kCorrupt (no Redis there),
  //           kInvalidArgument (prefix, password, permission)
  explicit RedisStore(RedisStoreOptions options);
  RedisStore(RedisStoreOptions options, const ServerTimes& times);  // for tests
  ~RedisStore() override;

  // "redis://127.0.0.1:6379/0?prefix=default"; never with user or password.
  std::string address() const override;
  bool has_queues() const noexcept override { return true; }

  // Deletes all keys and queues of the job, which the server would keep for ever. For whoever knows
  // that no worker of the job uses them any more.
  void clear();

 private:
  // Runs `talk(connection)`; the connection is kept for others unless it throws.
  template <class Talk>
  auto with_connection(Deadline deadline, Talk talk);
  RedisReply ask(const std::vector<std::string_view>& command, Deadline deadline);
  // Waits until `look()` is something, which is when somebody makes `key` or pushes to it.
  template <class Look>
  auto watch(std::unique_ptr<RedisConnection>& ear, const std::string& key, Look look,
             Deadline deadline) -> decltype(look());
  std::unique_ptr<RedisConnection> connect(Deadline deadline);
  std::optional<std::string> read_now(const std::string& key, Deadline deadline);
  size_t first_missing(const std::vector<std::string>& keys, size_t begin, size_t end,
                       Deadline deadline);

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

  const RedisStoreOptions options_;
  const std::unique_ptr<const ServerTimes> times_;  // never null
  const net::HostPort where_;
  const std::string keys_;     // a hash: the user's keys and values
  const std::string queue_;    // and a queue's name: a list
  const std::string queues_;   // a set: the names of all queues that there were, for clear()
  const std::string channel_;  // and a key: told when it comes into being
  const std::unique_ptr<IdleConnections<RedisConnection>> idle_;  // never null
};

}  // namespace farspan::dist
