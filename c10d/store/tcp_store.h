// farspan: RPC, remote references and distributed autograd for LibTorch. BSD-3-Clause.
//
// TcpStore: a store that a server holds: a TcpStoreServer, or PyTorch's TCPStore (in a Python
// worker, or in torchrun's agent).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <farspan/c10d/net/address.h>
#include <farspan/c10d/store/store.h>
#include <farspan/c10d/store/tcp_store_server.h>

namespace farspan::dist {

class TcpConnection;
template <class Connection>
class IdleConnections;

struct TcpStoreOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 0;
  // Also host the store, on `bind_host` (empty: `host`) and `port`; the server ends with the last
  // clone of this store. Port 0 takes a free one.
  bool is_server = false;
  std::string bind_host;
  // With world_size > 0: counts this worker among those that have come; and the server's own
  // client waits until all have.
  int world_size = 0;
  bool wait_for_workers = true;
  // Of every call; and for how long the constructor keeps trying while nobody is there.
  Millis timeout = kDefaultStoreTimeout;
};

// A call takes a connection that no other thread is using, or makes one; a few are kept. So a get()
// that waits holds up nobody. A dead server fails every call at once, those that wait too, with
// kDisconnected or kUnavailable; later calls try to reach a new one at the same place, once each.
// Besides what Store says, a server that breaks the protocol is kCorrupt.
//
// Threading: as Store; the client has no thread of its own.
// Lifetime:  the clones of one store, and all who asked for one port in this process, share the
//            server, where it is hosted here; it ends with the last of them.
class TcpStore final : public Store {
 public:
  //   throws  Error kUnavailable (nobody there until the timeout), kTimeout (workers are missing),
  //           kCorrupt (no store there), and what TcpStoreServer::start throws
  explicit TcpStore(const TcpStoreOptions& options);
  ~TcpStore() override;

  std::string address() const override { return "tcp://" + where_.to_string(); }
  bool has_queues() const noexcept override { return true; }
  const net::HostPort& where() const noexcept { return where_; }
  // The server, where this store hosts it; else null.
  const std::shared_ptr<TcpStoreServer>& server() const noexcept { return server_; }

 private:
  TcpStore(net::HostPort where, std::shared_ptr<TcpStoreServer> server, Millis timeout);
  void connect(Deadline deadline);
  void meet(int world_size, bool wait, Deadline deadline);

  // Runs `talk(connection)`; the connection is kept for others unless it throws.
  template <class Talk>
  auto with_connection(Deadline deadline, Talk talk);
  std::optional<std::string> read_now(const std::string& key, Deadline deadline);

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

  const std::shared_ptr<TcpStoreServer> server_;  // with the clones, and who asked for shared()
  const net::HostPort where_;
  const std::string absent_;  // a value that nobody stores, see read_now()
  const std::unique_ptr<IdleConnections<TcpConnection>> idle_;  // never null
};

}  // namespace farspan::dist
